// What the kernels of one encode of a delta mode hand to each other, in GPU memory, and their
// launches (docs/wire-format.md, section 11).
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "codec/cuda/encode_state.hpp"
#include "codec/delta_section.hpp"
#include "codec/frame.hpp"

namespace ciera::codec::cuda {

// The first part is zero before the first encode, and every encode leaves it so.
struct DeltaEncodeState {
  unsigned ticket;
  unsigned lacks_room;  // more escapes in a block than its part of the scratch takes
  unsigned long long moved_quads;
  unsigned long long quad_levels[256];
  unsigned long long value_levels[256];                   // of what the value coder takes
  unsigned long long quad_counts[kMaxQuadContexts][256];  // but for byte 0
  unsigned long long value_counts[kMaxValueContexts][256];
  unsigned long long checksum_sum;

  std::uint64_t values;  // of the changed blocks
  std::uint64_t changed_blocks;
  unsigned long long in_quad_context[kMaxQuadContexts];
  unsigned long long in_value_context[kMaxValueContexts];
  ContextChoice quad;
  ContextChoice value;
  QuadModel models[kMaxQuadContexts];
  std::uint8_t codes[kMaxValueContexts][256];
  std::uint32_t code_first[kMaxValueContexts];  // of those that are not 0
  std::uint32_t code_count[kMaxValueContexts];
  std::uint32_t table_bytes;
  alignas(16) std::byte table[kDeltaMaxTableBytes];  // as it goes into the section
  std::uint32_t rare[kMaxQuadContexts][8];           // bits of the bytes that go behind marks
  uint4 quad_table[kMaxQuadContexts * 256];          // see pack_entry
  uint4 value_table[kMaxValueContexts * 256];
  wire::FrameHeader header;  // once the sizes are known
};

// How much scratch an encode may use. kUsual is enough for steady steps: a quarter of the values of
// each block escape at most, and no segment of the section is longer than its values are.
enum class Room : std::uint8_t { kUsual, kMost };

// Places in the backend's scratch memory.
struct DeltaScratch {
  std::uint8_t* exponents;       // exponent-delta: of the shard
  std::uint16_t* quads;          // of each quad of the shard: its byte, its level above
  std::byte* escapes;            // u of the escapes of each block; later of each segment
  std::uint16_t* escape_kinds;   // of each: its level; later its symbol, its context above
  std::uint32_t* block_escapes;  // how many each block has
  std::uint8_t* marked;          // the bytes behind the marks of each segment
  std::uint32_t* tile_changed;   // changed blocks of a tile, then those before it
  std::uint32_t* list;           // numbers of changed blocks, with kListPadding
  std::uint64_t* segment_first;  // where the escapes of each segment begin
  std::uint32_t* segment_escapes;
  std::uint16_t* words;  // segment_words_room a segment, filled from the end
  std::uint32_t* segment_words;
  std::uint32_t* segment_states;  // 32 a segment
};

// Tiles of the pass over the shard: whole bytes of the bitmap. Small ones for small shards, so that
// these reach many SMs.
CIERA_HD constexpr std::uint32_t delta_tile_blocks(std::uint64_t numel, std::uint32_t block_size) {
  return numel / block_size >= (1U << 14) ? 32 : 8;
}
CIERA_HD constexpr std::uint64_t delta_tiles(std::uint64_t numel, std::uint32_t block_size) {
  return ceil_div(block_count(numel, block_size), delta_tile_blocks(numel, block_size));
}

// Escapes of a block that there is room for.
CIERA_HD constexpr std::uint32_t block_escape_room(const FrameParams& params, Room room) {
  return room == Room::kMost ? params.block_size : params.block_size / 4;
}

// 16-bit words that there is room for in a segment. The slack lets warps look whether there is
// room once for many steps only.
CIERA_HD constexpr std::uint64_t segment_words_room(const FrameParams& params, Room room) {
  constexpr std::uint64_t kSlack = 1024;
  const std::uint64_t items = std::uint64_t{1} << params.segment_log2;
  const bool high = params.effort == Effort::kHigh;
  const std::uint64_t values = high ? items : 4 * items;
  const std::uint64_t width = own_reference_bytes(params.mode, params.dtype);
  const std::uint64_t most =
      (high ? 0 : 2 * items) + values * (1 + raw_steps(static_cast<std::uint32_t>(8 * width)));
  return (room == Room::kMost ? most : values * width / 2) + kSlack;
}

// What became of an encode that could not know its frame beforehand.
struct DeltaOutcome {
  std::uint32_t lacks_room;   // encode once more with Room::kMost
  std::uint32_t may_be_key;   // the key frame may be shorter than the delta frame
  std::uint64_t delta_bytes;  // the delta frame's
};

// kCompare: a delta or same frame, unless the outcome says otherwise. kForce: the delta frame,
// known to be the shortest.
enum class DeltaPolicy : std::uint8_t { kCompare, kForce };

struct DeltaEncodeCall {
  FrameParams params;
  const std::byte* src;
  const std::byte* reference = nullptr;  // own exponents or words of the base
  std::byte* frame;
  Room room = Room::kUsual;
  DeltaPolicy policy = DeltaPolicy::kCompare;
  DeltaScratch scratch{};
  DeltaEncodeState* state;
  EncodeResult* result;             // host memory that the GPU can write, as is `outcome`
  DeltaOutcome* outcome = nullptr;  // not for frames whose kind is known beforehand
};

std::size_t delta_encode_scratch_bytes(const FrameParams& params, Room room);
DeltaScratch divide_delta_scratch(const FrameParams& params, Room room, std::byte* scratch);

// Enqueues everything; `*call.result` and `*call.outcome` are there when the stream has run; the
// result means nothing when the outcome asks for another attempt. Throws Error (kDevice).
void launch_delta_encode(const DeltaEncodeCall& call, int multiprocessors, cudaStream_t stream);

// A frame whose kind is known beforehand: kSame, or kRaw of a dtype without exponents.
void launch_known_frame(const DeltaEncodeCall& call, wire::Kind kind, int multiprocessors,
                        cudaStream_t stream);

// The exponents of `src`, one byte a value.
void launch_extract_exponents(const FrameParams& params, const std::byte* src,
                              std::uint8_t* exponents, int multiprocessors, cudaStream_t stream);

// The pass over the shard alone, for benches: leaves its counts in the state.
void launch_delta_compare(const DeltaEncodeCall& call, int multiprocessors, cudaStream_t stream);

}  // namespace ciera::codec::cuda
