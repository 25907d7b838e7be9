// One frame on the host: the entry points the pipeline, the bench and the fuzz target use.
// Method: the paper's split, 128-bit block hash, bitmap and coded exponents (docs/wire-format.md).
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "ciera/types.hpp"
#include "codec/frame.hpp"

namespace ciera {
class ThreadPool;  // exec; null = the calling thread only
}

namespace ciera::codec::host {

// Scratch that a call needs: a pure function of params.
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

// In exponent-delta and word-delta: what the sender knows that its receivers hold.
struct OwnReference {
  // Own exponents (a byte a value) or words; empty in a key frame.
  std::span<const std::byte> values{};
  Claim claim = Claim::kCompare;
};
// The same for the delta modes. Nothing is kept: the caller brings the reference up to date with
// store_reference once the frame is committed.
EncodeResult encode(const FrameParams& params, std::span<const std::byte> src,
                    OwnReference reference, std::span<std::byte> frame,
                    std::span<std::byte> scratch, ThreadPool* pool);
// In exponent-block and exponent-delta: the same frame, when the receivers hold the words and src
// is known to be equal to them: `words` (own words as of the reference, empty when they are not
// known) or the claim says so. Nothing otherwise, and in other modes.
std::optional<EncodeResult> encode_same(const FrameParams& params, std::span<const std::byte> src,
                                        OwnReference words, std::span<std::byte> frame,
                                        ThreadPool* pool);
void store_reference(const FrameParams& params, std::span<const std::byte> src,
                     std::span<std::byte> reference, ThreadPool* pool);

// Checks everything that can be checked without decoding: header, flags, sizes, padding, checksum,
// and that it is the frame `expected` describes (mode, dtype, block size, numel, shard, base; coder
// is the frame's own choice). `frame` must be exactly one frame. Touches nothing.
Verdict check(const FrameParams& expected, std::span<const std::byte> frame, FrameInfo* info,
              ThreadPool* pool);

// Decodes a frame that `check` accepted into `dst` (numel elements, any alignment). `cache` is that
// peer's ExpCache (numel bytes) or in word-delta its WordCache (numel elements): read for what did
// not change, updated in place; empty in exponent-only. `dst` may be the WordCache itself. A same
// frame of an exponent mode leaves `dst` as it is: it holds the words. On a
// verdict other than ok, dst and cache are unspecified and the caller drops that state.
Verdict decode(const FrameParams& expected, std::span<const std::byte> frame,
               std::span<std::byte> cache, std::span<std::byte> dst, std::span<std::byte> scratch,
               ThreadPool* pool);

}  // namespace ciera::codec::host
