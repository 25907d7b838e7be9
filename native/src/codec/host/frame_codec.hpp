// One frame on the host: the entry points the pipeline, the bench and the fuzz target use.
// Method: the paper's split, 128-bit block hash, bitmap and coded exponents (docs/wire-format.md).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "ciera/types.hpp"

namespace ciera {
class ThreadPool;  // exec; null = the calling thread only
}

namespace ciera::codec::host {

// 128-bit hash of one block's exponents.
struct BlockHash {
  std::uint64_t low = 0;
  std::uint64_t high = 0;
  friend bool operator==(const BlockHash&, const BlockHash&) = default;
};

// What both ends agree on before a frame is made.
struct FrameParams {
  ReuseMode mode = ReuseMode::kExponentBlock;
  Coder coder = Coder::kRans;
  DType dtype = DType::kBf16;
  std::uint32_t block_size = 512;
  std::uint64_t numel = 0;
  std::uint64_t shard_key = 0;
  std::uint64_t base_epoch = 0;   // 0: no reference, a key frame
  std::uint64_t base_digest = 0;  // 0 with base_epoch 0
};

// Checked: a frame kind's name for statistics.
enum class FrameKind : std::uint8_t { kRaw = 0, kKey = 1, kDelta = 2, kSame = 3 };

struct EncodeResult {
  std::uint64_t frame_bytes = 0;
  std::uint64_t checksum = 0;  // the digest of the state after this frame
  FrameKind kind = FrameKind::kRaw;
  std::uint64_t blocks = 0;          // ceil(numel / block_size)
  std::uint64_t changed_blocks = 0;  // all of them in raw and key frames
};

std::uint64_t block_count(std::uint64_t numel, std::uint32_t block_size);

// Bytes that `encode` may write at most, and the size of the scratch it needs. Both are pure
// functions of params.
std::size_t max_frame_bytes(const FrameParams& params);
std::size_t encode_scratch_bytes(const FrameParams& params);
std::size_t decode_scratch_bytes(const FrameParams& params);

// Encodes `src` (numel elements, any alignment) into `frame` (at least max_frame_bytes).
// `old_hashes` is HashCache of the reference (block_count entries; empty for a key frame);
// `new_hashes` (block_count entries; may be empty in exponent-only) receives the hashes of this
// input. Nothing is kept: the caller commits new_hashes. Deterministic for any number of threads.
// Throws std::invalid_argument when a span is too small or params are out of range.
EncodeResult encode(const FrameParams& params, std::span<const std::byte> src,
                    std::span<const BlockHash> old_hashes, std::span<BlockHash> new_hashes,
                    std::span<std::byte> frame, std::span<std::byte> scratch, ThreadPool* pool);

// What `check` found in a valid frame.
struct FrameInfo {
  FrameKind kind = FrameKind::kRaw;
  std::uint64_t frame_bytes = 0;
  std::uint64_t checksum = 0;
  std::uint64_t changed_blocks = 0;
};

// Checks everything that can be checked without decoding: header, flags, sizes, padding, checksum,
// and that it is the frame `expected` describes (mode, dtype, block size, numel, shard, base; coder
// is the frame's own choice). `frame` must be exactly one frame. Touches nothing.
Verdict check(const FrameParams& expected, std::span<const std::byte> frame, FrameInfo* info,
              ThreadPool* pool);

// Decodes a frame that `check` accepted into `dst` (numel elements, any alignment). `exponents` is
// ExpCache of that peer (numel bytes): read for unchanged blocks, updated in place with the new
// exponents; empty in exponent-only. On a verdict other than ok, dst and exponents are unspecified
// and the caller drops that state.
Verdict decode(const FrameParams& expected, std::span<const std::byte> frame,
               std::span<std::byte> exponents, std::span<std::byte> dst,
               std::span<std::byte> scratch, ThreadPool* pool);

}  // namespace ciera::codec::host
