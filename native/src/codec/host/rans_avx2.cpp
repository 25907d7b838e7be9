// The 32 lanes as four vectors of eight states. Same bytes as the scalar coder.
#include "codec/host/rans_kernels.hpp"

#if defined(__x86_64__)
#include <immintrin.h>

#include <array>
#include <cstring>

namespace ciera::codec::host {
namespace {

using Permutation = std::array<std::uint32_t, 8>;

// For each mask of lanes: the order that spreads consecutive words over those lanes (decoder).
constexpr std::array<Permutation, 256> make_spread() {
  std::array<Permutation, 256> table{};
  for (std::size_t mask = 0; mask < 256; ++mask) {
    std::uint32_t next = 0;
    for (std::size_t lane = 0; lane < 8; ++lane) {
      table[mask][lane] = next;
      next += mask >> lane & 1;
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

alignas(64) constexpr std::array<Permutation, 256> kSpread = make_spread();
alignas(64) constexpr std::array<Permutation, 256> kGatherUp = make_gather_up();

__attribute__((target("avx2"))) inline __m256i permutation(const Permutation& order) {
  return _mm256_load_si256(reinterpret_cast<const __m256i*>(order.data()));
}

// Eight lanes of one encoder step; moves `top` down by the words emitted.
__attribute__((target("avx2"))) inline __m256i encode_vector(const RansEncodeTable& table,
                                                             const std::uint8_t* symbols, __m256i x,
                                                             std::uint16_t*& top) {
  const __m256i index =
      _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(symbols)));
  const int* entries = reinterpret_cast<const int*>(table.symbols);
  const __m256i packed = _mm256_i32gather_epi32(entries, index, 8);
  const __m256i reciprocal = _mm256_i32gather_epi32(entries + 1, index, 8);
  const __m256i cum = _mm256_and_si256(packed, _mm256_set1_epi32(0xFFF));
  const __m256i rest = _mm256_and_si256(_mm256_srli_epi32(packed, 12), _mm256_set1_epi32(0x1FFF));
  const __m256i shift = _mm256_add_epi32(_mm256_srli_epi32(packed, 25), _mm256_set1_epi32(31));

  // freq << (31 - n) is 2^31 when one symbol has all the probability; minus one it stays a positive
  // signed number.
  const __m256i frequency = _mm256_sub_epi32(_mm256_set1_epi32(1 << table.prob_bits), rest);
  const __m256i last_without = _mm256_sub_epi32(
      _mm256_slli_epi32(frequency, static_cast<int>(31 - table.prob_bits)), _mm256_set1_epi32(1));
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

// Eight lanes of one decoder step; returns the table slots, whose low bytes are the symbols.
__attribute__((target("avx2"))) inline __m256i decode_vector(const RansDecodeTable& table,
                                                             const std::byte*& words, __m256i& x) {
  const int bits = static_cast<int>(table.prob_bits);
  const __m256i slot =
      _mm256_i32gather_epi32(reinterpret_cast<const int*>(table.slots),
                             _mm256_and_si256(x, _mm256_set1_epi32((1 << bits) - 1)), 4);
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

}  // namespace

__attribute__((target("avx2"))) std::uint16_t* encode_segment_avx2(
    const RansEncodeTable& table, std::span<const std::uint8_t> symbols,
    std::span<std::uint16_t> region, std::uint32_t (&states)[kRansLanes]) {
  std::uint16_t* top = region.data() + region.size();
  for (std::uint32_t& state : states) {
    state = kRansLow;
  }
  const std::size_t full = symbols.size() / kRansLanes * kRansLanes;
  for (std::size_t i = symbols.size(); i-- > full;) {
    states[i % kRansLanes] = encode_symbol(table, symbols[i], states[i % kRansLanes], top);
  }
  auto* vectors = reinterpret_cast<__m256i*>(states);
  __m256i x0 = _mm256_loadu_si256(vectors);
  __m256i x1 = _mm256_loadu_si256(vectors + 1);
  __m256i x2 = _mm256_loadu_si256(vectors + 2);
  __m256i x3 = _mm256_loadu_si256(vectors + 3);
  for (std::size_t i = full; i > 0; i -= kRansLanes) {
    const std::uint8_t* step = symbols.data() + i - kRansLanes;
    x3 = encode_vector(table, step + 24, x3, top);
    x2 = encode_vector(table, step + 16, x2, top);
    x1 = encode_vector(table, step + 8, x1, top);
    x0 = encode_vector(table, step, x0, top);
  }
  _mm256_storeu_si256(vectors, x0);
  _mm256_storeu_si256(vectors + 1, x1);
  _mm256_storeu_si256(vectors + 2, x2);
  _mm256_storeu_si256(vectors + 3, x3);
  return top;
}

__attribute__((target("avx2"))) bool decode_segment_avx2(const RansDecodeTable& table,
                                                         std::span<const std::byte> words,
                                                         std::uint32_t (&states)[kRansLanes],
                                                         std::span<std::uint8_t> symbols) {
  auto* vectors = reinterpret_cast<__m256i*>(states);
  __m256i x0 = _mm256_loadu_si256(vectors);
  __m256i x1 = _mm256_loadu_si256(vectors + 1);
  __m256i x2 = _mm256_loadu_si256(vectors + 2);
  __m256i x3 = _mm256_loadu_si256(vectors + 3);
  const std::byte* next = words.data();
  const std::byte* end = words.data() + words.size();
  // A step reads 32 words at most and looks at 8 more; near the end the scalar coder takes over.
  constexpr std::ptrdiff_t kReach = 2 * (kRansLanes + 8);
  std::size_t done = 0;
  while (symbols.size() - done >= kRansLanes && end - next >= kReach) {
    const __m256i a = decode_vector(table, next, x0);
    const __m256i b = decode_vector(table, next, x1);
    const __m256i c = decode_vector(table, next, x2);
    const __m256i d = decode_vector(table, next, x3);
    store_symbols(symbols.data() + done, a, b, c, d);
    done += kRansLanes;
  }
  _mm256_storeu_si256(vectors, x0);
  _mm256_storeu_si256(vectors + 1, x1);
  _mm256_storeu_si256(vectors + 2, x2);
  _mm256_storeu_si256(vectors + 3, x3);
  auto next_word = static_cast<std::size_t>(next - words.data()) / 2;
  return decode_steps(table, done, words, next_word, states, symbols) &&
         finished(words, next_word, states);
}

}  // namespace ciera::codec::host

#else

namespace ciera::codec::host {

// Other processors: best_isa() never names AVX2, and asking for it still gives the right bytes.
std::uint16_t* encode_segment_avx2(const RansEncodeTable& table,
                                   std::span<const std::uint8_t> symbols,
                                   std::span<std::uint16_t> region,
                                   std::uint32_t (&states)[kRansLanes]) {
  return encode_segment_scalar(table, symbols, region, states);
}
bool decode_segment_avx2(const RansDecodeTable& table, std::span<const std::byte> words,
                         std::uint32_t (&states)[kRansLanes], std::span<std::uint8_t> symbols) {
  return decode_segment_scalar(table, words, states, symbols);
}

}  // namespace ciera::codec::host

#endif
