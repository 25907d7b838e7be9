// Runs of values against their old values: differences, levels, quads (docs/wire-format.md, section
// 11).
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/bytes.hpp"
#include "ciera/types.hpp"
#include "codec/host/rans.hpp"

namespace ciera::codec::host {

// Values handled at once, so that what is derived from them stays in cache; a multiple of 4.
inline constexpr std::size_t kDeltaTile = 2048;

// What depends on the kind of value: exponent bytes (exponent-delta) or words of a dtype. Values
// and u are `word_bits` wide, at any address.
struct ValueKernels {
  std::uint32_t word_bits;
  // u, min(u, 3) and level of each value.
  void (*compare)(const std::byte* old, const std::byte* now, std::size_t count, std::byte* u,
                  std::uint8_t* t, std::uint8_t* levels);
  void (*levels)(const std::byte* old, std::size_t count, std::uint8_t* levels);
  // values[i] moves by u[i].
  void (*apply)(std::byte* values, const std::byte* u, std::size_t count);
  // u[i] = small[i].
  void (*widen)(const std::uint8_t* small, std::size_t count, std::byte* u);
  // Moves u of each escape (t[i] == 3) behind one another; returns how many. `values` has room for
  // `count`, all of which may be written.
  std::size_t (*gather)(const std::uint8_t* t, std::size_t count, const std::byte* u,
                        std::byte* values);
  // u[i] of each escape is the next of `values`; returns how many. `count` of them may be read.
  std::size_t (*scatter)(const std::uint8_t* t, std::size_t count, const std::byte* values,
                         std::byte* u);
  void (*symbols)(const std::byte* u, std::size_t count, std::uint8_t* symbols);
};
const ValueKernels& value_kernels(ReuseMode mode, DType dtype);

inline std::uint64_t load_word(const std::byte* words, std::uint32_t word_bits,
                               std::uint64_t index) {
  const std::byte* from = words + index * (word_bits / 8);
  return word_bits == 8    ? base::load_le<std::uint8_t>(from)
         : word_bits == 16 ? base::load_le<std::uint16_t>(from)
         : word_bits == 32 ? base::load_le<std::uint32_t>(from)
                           : base::load_le<std::uint64_t>(from);
}
inline void store_word(std::byte* words, std::uint32_t word_bits, std::uint64_t index,
                       std::uint64_t word) {
  std::byte* to = words + index * (word_bits / 8);
  switch (word_bits) {
    case 8:
      return base::store_le(to, static_cast<std::uint8_t>(word));
    case 16:
      return base::store_le(to, static_cast<std::uint16_t>(word));
    case 32:
      return base::store_le(to, static_cast<std::uint32_t>(word));
    default:
      return base::store_le(to, word);
  }
}

// The bytes of quads and their smallest levels, from 4 t and 4 levels each.
void make_quads(const std::uint8_t* t, const std::uint8_t* levels, std::size_t quads,
                std::uint8_t* bytes, std::uint8_t* smallest, Isa isa = best_isa());
void smallest_levels(const std::uint8_t* levels, std::size_t quads, std::uint8_t* smallest);
// The four t of each quad, from its byte and its levels.
void split_quads(const std::uint8_t* bytes, const std::uint8_t* levels, std::size_t quads,
                 std::uint8_t* t, Isa isa = best_isa());

// Turns levels into contexts (context_of).
void to_contexts(std::uint8_t* levels, std::size_t count, std::uint32_t top,
                 std::uint32_t contexts);
std::size_t count_equal(const std::uint8_t* bytes, std::size_t count, std::uint32_t wanted);
// Adds how often each byte occurs.
void count_bytes(const std::uint8_t* bytes, std::size_t count, std::uint32_t (&counts)[256]);

// Moves bytes[i] of each escape behind one another; returns how many. `to` has room for `count`,
// all of which may be written.
std::size_t gather_bytes(const std::uint8_t* t, std::size_t count, const std::uint8_t* bytes,
                         std::uint8_t* to, Isa isa = best_isa());

// Calls body(i) for each i below `count` with t[i] == 3, ascending.
template <class Body>
void for_escapes(const std::uint8_t* t, std::size_t count, Body&& body) {
  std::size_t i = 0;
  for (; i + 8 <= count; i += 8) {
    std::uint64_t eight;
    __builtin_memcpy(&eight, t + i, 8);
    for (std::uint64_t hits = eight & eight >> 1 & 0x0101010101010101ULL; hits != 0;
         hits &= hits - 1) {
      body(i + static_cast<std::size_t>(__builtin_ctzll(hits)) / 8);
    }
  }
  for (; i < count; ++i) {
    if (t[i] == 3) {
      body(i);
    }
  }
}

}  // namespace ciera::codec::host
