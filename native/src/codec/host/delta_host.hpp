// The section coder of changes on the host (docs/wire-format.md, section 11).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "ciera/types.hpp"
#include "codec/frame.hpp"
#include "codec/host/rans.hpp"

namespace ciera::codec::host {

// The changed blocks of a shard, ascending, and the values in them (at least one).
struct ChangedBlocks {
  std::span<const std::uint64_t> blocks;
  std::uint64_t values = 0;
};

// Worst cases: most of it is touched only when most values change.
std::size_t delta_encode_scratch_bytes(const FrameParams& params);
std::size_t delta_decode_scratch_bytes(const FrameParams& params);

// Codes the changed blocks of `now` against `old` (numel values: exponent bytes in exponent-delta,
// words in word-delta) into `out` when that takes fewer bytes than `out` holds; returns the bytes,
// or 0 (then `out` is unspecified).
std::uint64_t delta_encode(const FrameParams& params, const ChangedBlocks& changed,
                           const std::byte* old, const std::byte* now, std::span<std::byte> out,
                           std::span<std::byte> scratch, ThreadPool* pool, Isa isa = best_isa());

// Checks the section's tables and sizes: ok, bad_padding, bad_table or bad_stream.
Verdict delta_check(const FrameParams& params, std::span<const std::byte> section,
                    std::uint64_t values);

// Decodes a section that delta_check accepted; the changed blocks of `values` move to their new
// values. Unless it is empty, `dst` (numel values, apart from `values`) becomes a copy of `values`.
// Both are unspecified after bad_stream.
Verdict delta_decode(const FrameParams& params, std::span<const std::byte> section,
                     const ChangedBlocks& changed, std::byte* values, std::span<std::byte> dst,
                     std::span<std::byte> scratch, ThreadPool* pool, Isa isa = best_isa());

}  // namespace ciera::codec::host
