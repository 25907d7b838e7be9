// Runs of values against their old values: differences, levels, quads (docs/wire-format.md, section
// 11).
#pragma once

#include <cstddef>
#include <cstdint>

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
  // u of small values.
  void (*widen)(const std::uint8_t* t, std::size_t count, std::byte* u);
};
const ValueKernels& value_kernels(ReuseMode mode, DType dtype);

std::uint64_t load_word(const std::byte* words, std::uint32_t word_bits, std::uint64_t index);
void store_word(std::byte* words, std::uint32_t word_bits, std::uint64_t index, std::uint64_t word);

// The bytes of quads and their smallest levels, from 4 t and 4 levels each.
void make_quads(const std::uint8_t* t, const std::uint8_t* levels, std::size_t quads,
                std::uint8_t* bytes, std::uint8_t* smallest, Isa isa = best_isa());
void smallest_levels(const std::uint8_t* levels, std::size_t quads, std::uint8_t* smallest);
// The four t of each quad, from its byte and its levels.
void split_quads(const std::uint8_t* bytes, const std::uint8_t* levels, std::size_t quads,
                 std::uint8_t* t, Isa isa = best_isa());

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
