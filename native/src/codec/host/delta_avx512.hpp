// Fused passes of the delta modes for processors with AVX-512 (VBMI2). Same bytes as the others.
#pragma once

#include <cstddef>
#include <cstdint>

#include "ciera/types.hpp"
#include "codec/delta_model.hpp"
#include "codec/host/delta_rans.hpp"
#include "codec/host/rans.hpp"

namespace ciera::codec::host {

bool has_avx512();

// What a tile of values gives the encoder beside its quads.
struct ComparedTile {
  std::size_t escapes = 0;
  std::size_t moved_quads = 0;
};

// Passes over a tile of float words of 16 bits, at any address; the last quad may be filled.
struct TileKernels {
  // Quads, their smallest levels, and of each escape its level and u. `levels` and `values` have
  // room for `count`, all of which may be written.
  ComparedTile (*compare)(const std::byte* old, const std::byte* now, std::size_t count,
                          std::uint8_t* quads, std::uint8_t* smallest, std::uint8_t* levels,
                          std::byte* values);
  // The context of each quad.
  void (*contexts)(const std::byte* old, std::size_t count, const ContextChoice& choice,
                   std::uint8_t* contexts);
  // The t of each value, of which 64 may be written too many, and the level of each escape, with
  // room as above; returns how many escapes, or kMovedFilling.
  std::size_t (*split)(const std::byte* old, const std::uint8_t* quads, std::size_t count,
                       std::uint8_t* t, std::uint8_t* levels);
  // Moves `values`; u of escapes is the next of `escapes`, of which 64 may be read too many.
  // Returns how many were taken.
  std::size_t (*apply)(std::byte* values, const std::uint8_t* t, const std::byte* escapes,
                       std::size_t count);
};
inline constexpr std::size_t kMovedFilling = ~std::size_t{0};

// Null where a kind of value or a processor has none.
const TileKernels* tile_kernels(ReuseMode mode, DType dtype, Isa isa);

// The rest works on whole vectors and returns how many items it has done, from the first one on.

// Adds to `counts`, 256 a context, how often each symbol occurs in it.
std::size_t count_pairs_avx512(const std::uint8_t* contexts, const std::uint8_t* symbols,
                               std::size_t count, std::uint32_t most_contexts,
                               std::uint32_t* counts);
// Quads that `rare` (a bit each, 256 a context) names become marks; their bytes go to `marked`.
std::size_t mark_rare_avx512(const std::uint8_t (&rare)[kMaxQuadContexts * 32],
                             const std::uint8_t* contexts, std::uint8_t* bytes, std::size_t count,
                             std::uint8_t* marked, std::size_t& marks);
// Symbols of values of 16 bits.
std::size_t value_symbols_avx512(const std::byte* u, std::size_t count, std::uint8_t* symbols);
// `steps` whole steps of 32 symbols.
void encode_steps_avx512(const ContextEncoder& table, const std::uint8_t* contexts,
                         const std::uint8_t* symbols, std::size_t steps, RansWriter& writer);
// Whole steps of 32 symbols, as long as no step can run out of words.
std::size_t decode_steps_avx512(const ContextDecoder& table, const std::uint8_t* contexts,
                                std::size_t count, std::uint8_t* symbols, RansReader& reader);

}  // namespace ciera::codec::host
