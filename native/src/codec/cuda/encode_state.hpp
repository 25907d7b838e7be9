// What the kernels of one encode hand to each other, in GPU memory, and their launches.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "codec/frame.hpp"
#include "codec/rans_section.hpp"

namespace ciera::codec::cuda {

// Zero before the first encode; every encode leaves counts, sums and tickets at zero.
struct EncodeState {
  unsigned ticket;
  unsigned long long counts[256];   // of each exponent sent
  unsigned long long split_sum;     // checksum share of what the pass over the shard wrote
  unsigned long long checksum_sum;  // and of everything else
  std::uint64_t symbols;            // exponents sent
  std::uint64_t changed_blocks;
  std::uint32_t table_bytes;  // of the rans section; 0 when there are no symbols
  std::uint32_t frequencies[256];
  uint4 table[256];          // see pack_entry
  wire::FrameHeader header;  // once the sizes are known
};

// Tiles are whole blocks, a multiple of 8 of them, so that bytes of the bitmap have one owner.
// Large shards have larger tiles: less is done once a tile.
inline constexpr std::uint32_t kMaxTileBlocks = 1024;
CIERA_HD constexpr std::uint32_t tile_blocks(std::uint64_t numel, std::uint32_t block_size) {
  const std::uint32_t values = block_size >= 256 && numel >= (1U << 24) ? 16384 : 8192;
  const std::uint32_t fitting = values / block_size / 8 * 8;
  return fitting == 0 ? 8 : fitting;
}
CIERA_HD constexpr std::uint64_t tile_count(std::uint64_t numel, std::uint32_t block_size) {
  return ceil_div(block_count(numel, block_size), tile_blocks(numel, block_size));
}

// Places in the backend's scratch memory.
struct EncodeScratch {
  std::uint16_t* words;           // 2^segment_log2 a segment, filled from the end
  std::uint32_t* segment_words;   // how many, then where they end in the section
  std::uint32_t* segment_states;  // 32 a segment
  std::uint32_t* tile_changed;    // changed blocks of a tile, then those before it
  std::uint32_t* list;            // numbers of changed blocks, with kListPadding
  std::uint8_t* exponents;        // those sent, for coders that want them in one piece
};
inline constexpr std::uint32_t kListPadding = 8;

struct NvcompCall;

struct EncodeCall {
  FrameParams params;
  const std::byte* src;
  const BlockHash* old_hashes;
  BlockHash* new_hashes;  // null without state
  std::byte* frame;
  EncodeScratch scratch;
  EncodeState* state;
  EncodeResult* result;                // host memory that the GPU can write
  const NvcompCall* nvcomp = nullptr;  // for the launch, with coder nvcomp-ans
};

std::size_t encode_scratch_bytes(const FrameParams& params);
EncodeScratch divide_encode_scratch(const FrameParams& params, std::byte* scratch);

// Enqueues everything; `*call.result` is there when the stream has run. Throws Error (kDevice).
void launch_encode(const EncodeCall& call, int multiprocessors, cudaStream_t stream);
// The pass over the shard alone, for benches: split, hash, bitmap.
void launch_split(const EncodeCall& call, int multiprocessors, cudaStream_t stream);

}  // namespace ciera::codec::cuda
