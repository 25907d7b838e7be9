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
  unsigned long long counts[256];  // of each exponent sent
  unsigned long long checksum_sum;
  std::uint64_t symbols;  // exponents sent
  std::uint64_t changed_blocks;
  std::uint32_t table_bytes;  // of the rans section; 0 when there are no symbols
  std::uint32_t frequencies[256];
  RansEncodeSymbol table[256];
  wire::FrameHeader header;  // once the sizes are known
};

// Tiles are whole blocks, a multiple of 8 of them, so that bytes of the bitmap have one owner.
inline constexpr std::uint32_t kTileValues = 8192;
inline constexpr std::uint32_t kMaxTileBlocks = kTileValues / 8;
CIERA_HD constexpr std::uint32_t tile_blocks(std::uint32_t block_size) {
  const std::uint32_t fitting = kTileValues / block_size / 8 * 8;
  return fitting == 0 ? 8 : fitting;
}
CIERA_HD constexpr std::uint64_t tile_count(std::uint64_t numel, std::uint32_t block_size) {
  return ceil_div(block_count(numel, block_size), tile_blocks(block_size));
}

// Places in the backend's scratch memory.
struct EncodeScratch {
  std::uint8_t* exponents;        // sent ones, padded to a multiple of 16
  std::uint16_t* words;           // 2^segment_log2 a segment, filled from the end
  std::uint32_t* segment_words;   // how many, then where they end in the section
  std::uint32_t* segment_states;  // 32 a segment
  std::uint32_t* tile_changed;    // changed blocks of a tile, then those before it
};

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
