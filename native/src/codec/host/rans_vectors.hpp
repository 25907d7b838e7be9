// Eight lanes of the rANS coder at once, for AVX2. Same bytes as the scalar coder.
#pragma once

#if defined(__x86_64__)
#include <immintrin.h>

#include <array>
#include <cstddef>
#include <cstdint>

#include "codec/rans_table.hpp"

namespace ciera::codec::host {

using Permutation = std::array<std::uint32_t, 8>;

// For each mask of lanes: the order that spreads consecutive words over those lanes (decoder).
constexpr std::array<Permutation, 256> make_spread() {
  std::array<Permutation, 256> table{};
  for (std::size_t mask = 0; mask < 256; ++mask) {
    std::uint32_t next = 0;
    for (std::size_t lane = 0; lane < 8; ++lane) {
      table[mask][lane] = next;
      next += static_cast<std::uint32_t>(mask >> lane & 1);
    }
  }
  return table;
}

// For each mask of lanes: those lanes, in order, at the end of the vector (encoder).
constexpr std::array<Permutation, 256> make_gather_up() {
  std::array<Permutation, 256> table{};
  for (std::size_t mask = 0; mask < 256; ++mask) {
    std::size_t to = 8;
    for (std::size_t lane = 8; lane-- > 0;) {
      if ((mask >> lane & 1) != 0) {
        table[mask][--to] = static_cast<std::uint32_t>(lane);
      }
    }
  }
  return table;
}

alignas(64) inline constexpr std::array<Permutation, 256> kSpread = make_spread();
alignas(64) inline constexpr std::array<Permutation, 256> kGatherUp = make_gather_up();

__attribute__((target("avx2"))) inline __m256i permutation(const Permutation& order) {
  return _mm256_load_si256(reinterpret_cast<const __m256i*>(order.data()));
}

__attribute__((target("avx2"))) inline __m256i load_bytes(const std::uint8_t* bytes) {
  return _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(bytes)));
}

// Eight lanes of one encoder step, the symbols' entries in `table` at `index`; moves `top` down by
// the words emitted.
__attribute__((target("avx2"))) inline __m256i encode_vector(const RansEncodeSymbol* table,
                                                             std::uint32_t prob_bits, __m256i index,
                                                             __m256i x, std::uint16_t*& top) {
  const int* entries = reinterpret_cast<const int*>(table);
  const __m256i packed = _mm256_i32gather_epi32(entries, index, 8);
  const __m256i reciprocal = _mm256_i32gather_epi32(entries + 1, index, 8);
  const __m256i cum = _mm256_and_si256(packed, _mm256_set1_epi32(0xFFF));
  const __m256i rest = _mm256_and_si256(_mm256_srli_epi32(packed, 12), _mm256_set1_epi32(0x1FFF));
  const __m256i shift = _mm256_add_epi32(_mm256_srli_epi32(packed, 25), _mm256_set1_epi32(31));

  // freq << (31 - n) is 2^31 when one symbol has all the probability; minus one it stays a positive
  // signed number.
  const __m256i frequency = _mm256_sub_epi32(_mm256_set1_epi32(1 << prob_bits), rest);
  const __m256i last_without = _mm256_sub_epi32(
      _mm256_slli_epi32(frequency, static_cast<int>(31 - prob_bits)), _mm256_set1_epi32(1));
  const __m256i emits = _mm256_cmpgt_epi32(x, last_without);
  const auto mask = static_cast<unsigned>(_mm256_movemask_ps(_mm256_castsi256_ps(emits)));
  const __m256i low = _mm256_and_si256(x, _mm256_set1_epi32(0xFFFF));
  const __m256i gathered = _mm256_permutevar8x32_epi32(low, permutation(kGatherUp[mask]));
  const __m128i words =
      _mm_packus_epi32(_mm256_castsi256_si128(gathered), _mm256_extracti128_si256(gathered, 1));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(top - 8), words);
  top -= __builtin_popcount(mask);
  x = _mm256_blendv_epi8(x, _mm256_srli_epi32(x, 16), emits);

  const __m256i even = _mm256_srlv_epi64(_mm256_mul_epu32(x, reciprocal),
                                         _mm256_and_si256(shift, _mm256_set1_epi64x(0xFFFFFFFF)));
  const __m256i odd = _mm256_srlv_epi64(
      _mm256_mul_epu32(_mm256_srli_epi64(x, 32), _mm256_srli_epi64(reciprocal, 32)),
      _mm256_srli_epi64(shift, 32));
  const __m256i quotient = _mm256_blend_epi32(even, _mm256_slli_epi64(odd, 32), 0xAA);
  return _mm256_add_epi32(_mm256_add_epi32(x, cum), _mm256_mullo_epi32(quotient, rest));
}

// Eight lanes of one decoder step, their tables at `base` in `slots`; returns the slots, whose low
// bytes are the symbols.
__attribute__((target("avx2"))) inline __m256i decode_vector(const std::uint32_t* slots,
                                                             std::uint32_t prob_bits, __m256i base,
                                                             const std::byte*& words, __m256i& x) {
  const int bits = static_cast<int>(prob_bits);
  const __m256i slot = _mm256_i32gather_epi32(
      reinterpret_cast<const int*>(slots),
      _mm256_add_epi32(base, _mm256_and_si256(x, _mm256_set1_epi32((1 << bits) - 1))), 4);
  const __m256i frequency = _mm256_add_epi32(
      _mm256_and_si256(_mm256_srli_epi32(slot, 8), _mm256_set1_epi32(0xFFF)), _mm256_set1_epi32(1));
  x = _mm256_add_epi32(_mm256_mullo_epi32(frequency, _mm256_srli_epi32(x, bits)),
                       _mm256_srli_epi32(slot, 20));
  const __m256i takes = _mm256_cmpgt_epi32(_mm256_set1_epi32(kRansLow), x);
  const auto mask = static_cast<unsigned>(_mm256_movemask_ps(_mm256_castsi256_ps(takes)));
  const __m256i next =
      _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(words)));
  const __m256i spread = _mm256_permutevar8x32_epi32(next, permutation(kSpread[mask]));
  x = _mm256_blendv_epi8(x, _mm256_or_si256(_mm256_slli_epi32(x, 16), spread), takes);
  words += 2 * __builtin_popcount(mask);
  return slot;
}

__attribute__((target("avx2"))) inline void store_symbols(std::uint8_t* to, __m256i a, __m256i b,
                                                          __m256i c, __m256i d) {
  const __m256i low = _mm256_set1_epi32(0xFF);
  const __m256i ab = _mm256_packus_epi32(_mm256_and_si256(a, low), _mm256_and_si256(b, low));
  const __m256i cd = _mm256_packus_epi32(_mm256_and_si256(c, low), _mm256_and_si256(d, low));
  // Packing works within 128-bit halves; this puts groups of four lanes back in order.
  const __m256i bytes = _mm256_permutevar8x32_epi32(_mm256_packus_epi16(ab, cd),
                                                    _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), bytes);
}

}  // namespace ciera::codec::host

#endif
