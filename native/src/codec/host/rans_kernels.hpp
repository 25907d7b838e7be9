// One segment of a `rans` section, by implementation.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "ciera/types.hpp"
#include "codec/rans_table.hpp"

namespace ciera::codec::host {

struct RansEncodeTable {
  RansEncodeSymbol symbols[256];
  std::uint32_t prob_bits;
};

struct RansDecodeTable {
  alignas(64) std::uint32_t slots[1U << kRansMaxProbBits];
  std::uint32_t prob_bits;
};

// Words in front of a segment's region that the vector encoder may scribble on.
inline constexpr std::size_t kEncodeSlackWords = 8;

// Codes one segment. Words go to the end of `region` (kEncodeSlackWords + one word a symbol),
// growing downwards; returns the first of them.
std::uint16_t* encode_segment_scalar(const RansEncodeTable& table,
                                     std::span<const std::uint8_t> symbols,
                                     std::span<std::uint16_t> region,
                                     std::uint32_t (&states)[kRansLanes]);
std::uint16_t* encode_segment_avx2(const RansEncodeTable& table,
                                   std::span<const std::uint8_t> symbols,
                                   std::span<std::uint16_t> region,
                                   std::uint32_t (&states)[kRansLanes]);

// Decodes one segment; `words` are little-endian at any alignment. False when words are missing or
// left over or a final state is wrong.
bool decode_segment_scalar(const RansDecodeTable& table, std::span<const std::byte> words,
                           std::uint32_t (&states)[kRansLanes], std::span<std::uint8_t> symbols);
bool decode_segment_avx2(const RansDecodeTable& table, std::span<const std::byte> words,
                         std::uint32_t (&states)[kRansLanes], std::span<std::uint8_t> symbols);

// Steps of the scalar coder, which the vector coder uses for what does not fill its vectors.
inline std::uint32_t encode_symbol(const RansEncodeTable& table, std::uint8_t symbol,
                                   std::uint32_t x, std::uint16_t*& top) {
  const RansEncodeSymbol& entry = table.symbols[symbol];
  const std::uint32_t cum = entry.packed & 0xFFF;
  const std::uint32_t rest = entry.packed >> 12 & 0x1FFF;  // 2^n - freq
  const std::uint32_t frequency = (1U << table.prob_bits) - rest;
  if (x >= static_cast<std::uint64_t>(frequency) << (31 - table.prob_bits)) {
    *--top = static_cast<std::uint16_t>(x);
    x >>= 16;
  }
  const auto quotient = static_cast<std::uint32_t>(
      static_cast<std::uint64_t>(x) * entry.reciprocal >> (31 + (entry.packed >> 25)));
  return x + cum + quotient * rest;
}

// Takes `symbols` from step `from` on; false when a word is missing.
bool decode_steps(const RansDecodeTable& table, std::size_t from, std::span<const std::byte> words,
                  std::size_t& next_word, std::uint32_t (&states)[kRansLanes],
                  std::span<std::uint8_t> symbols);
bool finished(std::span<const std::byte> words, std::size_t next_word,
              const std::uint32_t (&states)[kRansLanes]);

}  // namespace ciera::codec::host
