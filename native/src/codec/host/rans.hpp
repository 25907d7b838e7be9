// The section coder `rans` on the host (docs/wire-format.md, section 4).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "ciera/types.hpp"

namespace ciera {
class ThreadPool;
}

namespace ciera::codec::host {

// Which implementation runs. All write the same bytes; tests compare them.
enum class Isa : std::uint8_t { kScalar, kAvx2, kAvx512 };
// The best one of this processor.
Isa best_isa();
inline bool has_vectors(Isa isa) { return isa != Isa::kScalar; }

std::size_t rans_scratch_bytes(std::uint64_t symbols, std::uint32_t segment_log2);

// Codes `symbols` (at least one), 2^segment_log2 in a segment (10 to 20), into `out` when that
// takes fewer bytes than `out` holds; returns the bytes, or 0 when it does not shrink (then `out`
// is unspecified).
std::uint64_t rans_encode(std::span<const std::uint8_t> symbols, std::uint32_t segment_log2,
                          std::span<std::byte> out, std::span<std::byte> scratch, ThreadPool* pool,
                          Isa isa = best_isa());

// Checks the section's own header against `symbols` and its size: ok, bad_padding, bad_table or
// bad_stream.
Verdict rans_check(std::span<const std::byte> section, std::uint64_t symbols);

// Decodes a section that rans_check accepted: ok or bad_stream. Never reads or writes outside its
// arguments.
Verdict rans_decode(std::span<const std::byte> section, std::span<std::uint8_t> symbols,
                    ThreadPool* pool, Isa isa = best_isa());

}  // namespace ciera::codec::host
