#include "codec/host/delta_avx512.hpp"

#if defined(__x86_64__)
// GCC 12 takes the undefined vectors of its own header for a mistake (its bug 105593).
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#endif
#include <immintrin.h>

#include <algorithm>
#include <cstring>

#define CIERA_AVX512     \
  __attribute__((target( \
      "avx512f,avx512bw,avx512cd,avx512dq,avx512vl,avx512vbmi,avx512vbmi2,bmi2,popcnt,lzcnt")))
#define CIERA_AVX512_PART CIERA_AVX512 __attribute__((always_inline)) inline

namespace ciera::codec::host {
namespace {

// Float words of 16 bits whose exponent lies at a shift.
template <int kShift, int kMask>
struct Words16 {
  CIERA_AVX512_PART static __m512i level(__m512i words) {
    return _mm512_and_si512(_mm512_srli_epi16(words, kShift), _mm512_set1_epi16(kMask));
  }
};

CIERA_AVX512_PART __m512i ordered(__m512i words) {
  const __m512i negative = _mm512_srai_epi16(words, 15);
  const __m512i sign = _mm512_set1_epi16(static_cast<short>(0x8000));
  return _mm512_xor_si512(words, _mm512_or_si512(negative, sign));
}
CIERA_AVX512_PART __m512i unordered(__m512i words) {
  const __m512i positive = _mm512_srai_epi16(words, 15);
  const __m512i sign = _mm512_set1_epi16(static_cast<short>(0x8000));
  // words ^ (~positive | sign)
  return _mm512_xor_si512(words, _mm512_ternarylogic_epi32(positive, sign, sign, 0xCF));
}
CIERA_AVX512_PART __m512i difference_of(__m512i old, __m512i now) {
  const __m512i d = _mm512_sub_epi16(ordered(now), ordered(old));
  return _mm512_xor_si512(_mm512_slli_epi16(d, 1), _mm512_srai_epi16(d, 15));
}

// Low bytes of 64 words.
CIERA_AVX512_PART __m512i narrow(__m512i low, __m512i high) {
  return _mm512_inserti64x4(_mm512_castsi256_si512(_mm512_cvtepi16_epi8(low)),
                            _mm512_cvtepi16_epi8(high), 1);
}

// Of 64 values, the first `count`.
CIERA_AVX512_PART __mmask64 first(std::size_t count) {
  return _bzhi_u64(~0ULL, static_cast<unsigned>(std::min<std::size_t>(64, count)));
}

// 64 values, or fewer at the end of a tile.
struct Pair {
  __m512i low;
  __m512i high;
};
CIERA_AVX512_PART Pair load_words(const std::byte* words, __mmask64 mask) {
  return {_mm512_maskz_loadu_epi16(static_cast<__mmask32>(mask), words),
          _mm512_maskz_loadu_epi16(static_cast<__mmask32>(mask >> 32), words + 64)};
}
template <class Words>
CIERA_AVX512_PART __m512i levels_of(const Pair& old, __mmask64 mask) {
  const __m512i levels = narrow(Words::level(old.low), Words::level(old.high));
  return _mm512_mask_mov_epi8(_mm512_set1_epi8(static_cast<char>(kFillLevel)), mask, levels);
}

// Where each value comes in its quad (as quad_shifts of delta_values.cpp).
CIERA_AVX512_PART __m512i quad_ranks(__m512i levels) {
  const __m512i by1 =
      _mm512_broadcast_i32x4(_mm_setr_epi8(1, 2, 3, 0, 5, 6, 7, 4, 9, 10, 11, 8, 13, 14, 15, 12));
  constexpr __mmask64 kWraps[3] = {0x8888888888888888, 0xCCCCCCCCCCCCCCCC, 0xEEEEEEEEEEEEEEEE};
  const __m512i one = _mm512_set1_epi8(1);
  __m512i rank = _mm512_setzero_si512();
  __m512i other = levels;
  for (const __mmask64 wrap : kWraps) {
    other = _mm512_shuffle_epi8(other, by1);
    const __mmask64 later =
        _mm512_cmpgt_epu8_mask(levels, other) | (_mm512_cmpeq_epu8_mask(levels, other) & wrap);
    rank = _mm512_mask_add_epi8(rank, later, rank, one);
  }
  return rank;
}
CIERA_AVX512_PART __m128i quad_bytes(__m512i levels, __m512i t) {
  const __m512i factor = _mm512_shuffle_epi8(_mm512_set1_epi32(0x40100401), quad_ranks(levels));
  const __m512i pairs = _mm512_maddubs_epi16(factor, t);
  return _mm512_cvtepi32_epi8(_mm512_madd_epi16(pairs, _mm512_set1_epi16(1)));
}
CIERA_AVX512_PART __m128i smallest_of(__m512i levels) {
  const __m512i two = _mm512_min_epu8(levels, _mm512_srli_epi32(levels, 8));
  return _mm512_cvtepi32_epi8(_mm512_min_epu8(two, _mm512_srli_epi32(two, 16)));
}

CIERA_AVX512_PART unsigned count_of(__mmask64 mask) {
  return static_cast<unsigned>(__builtin_popcountll(mask));
}

// Whole vectors where there is room for them: masked stores are slow.
CIERA_AVX512_PART void store_16(std::uint8_t* to, __m128i bytes, std::size_t count) {
  if (count >= 16) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to), bytes);
  } else {
    _mm_mask_storeu_epi8(
        to, static_cast<__mmask16>(_bzhi_u32(0xFFFF, static_cast<unsigned>(count))), bytes);
  }
}
CIERA_AVX512_PART void store_64(std::uint8_t* to, __m512i bytes, std::size_t count, bool room) {
  if (room) {
    _mm512_storeu_si512(to, bytes);
  } else {
    _mm512_mask_storeu_epi8(to, first(count), bytes);
  }
}
// The words of `mask`, one behind the other; returns how many.
CIERA_AVX512_PART std::size_t store_packed(std::byte* to, __m512i words, __mmask32 mask,
                                           bool room) {
  const __m512i packed = _mm512_maskz_compress_epi16(mask, words);
  const unsigned count = count_of(mask);
  if (room) {
    _mm512_storeu_si512(to, packed);
  } else {
    _mm512_mask_storeu_epi16(to, _bzhi_u32(~0U, count), packed);
  }
  return count;
}

template <class Words>
CIERA_AVX512 ComparedTile compare_tile(const std::byte* old, const std::byte* now,
                                       std::size_t count, std::uint8_t* quads,
                                       std::uint8_t* smallest, std::uint8_t* levels,
                                       std::byte* values) {
  const __m512i escape = _mm512_set1_epi16(kEscape);
  ComparedTile found;
  for (std::size_t i = 0; i < count; i += 64) {
    const bool whole = count - i >= 64;
    const __mmask64 inside = first(count - i);
    const Pair before = load_words(old + 2 * i, inside);
    const Pair after = load_words(now + 2 * i, inside);
    const __m512i low = difference_of(before.low, after.low);
    const __m512i high = difference_of(before.high, after.high);
    const __m512i t = narrow(_mm512_min_epu16(low, escape), _mm512_min_epu16(high, escape));
    const __m512i level = levels_of<Words>(before, inside);
    const std::size_t quads_here = whole ? 16 : (count - i + 3) / 4;
    const __m128i bytes = quad_bytes(level, t);
    store_16(quads + i / 4, bytes, quads_here);
    store_16(smallest + i / 4, smallest_of(level), quads_here);
    found.moved_quads += count_of(_mm_test_epi8_mask(bytes, bytes));
    const __mmask64 escapes = _mm512_cmpeq_epi8_mask(t, _mm512_set1_epi8(kEscape));
    store_64(levels + found.escapes, _mm512_maskz_compress_epi8(escapes, level), count_of(escapes),
             whole);
    std::byte* to = values + 2 * found.escapes;
    to += 2 * store_packed(to, low, static_cast<__mmask32>(escapes), whole);
    store_packed(to, high, static_cast<__mmask32>(escapes >> 32), whole);
    found.escapes += count_of(escapes);
  }
  return found;
}

template <class Words>
CIERA_AVX512 void contexts_of_tile(const std::byte* old, std::size_t count,
                                   const ContextChoice& choice, std::uint8_t* contexts) {
  const __m128i top = _mm_set1_epi8(static_cast<char>(choice.top));
  const __m128i last = _mm_set1_epi8(static_cast<char>(choice.contexts - 1));
  for (std::size_t i = 0; i < count; i += 64) {
    const __mmask64 inside = first(count - i);
    const __m128i smallest = smallest_of(levels_of<Words>(load_words(old + 2 * i, inside), inside));
    const __m128i below = _mm_subs_epu8(top, smallest);
    store_16(contexts + i / 4, _mm_min_epu8(below, last),
             std::min<std::size_t>(16, (count - i + 3) / 4));
  }
}

template <class Words>
CIERA_AVX512 std::size_t split_tile(const std::byte* old, const std::uint8_t* quads,
                                    std::size_t count, std::uint8_t* t, std::uint8_t* levels) {
  const __m512i four_times =
      _mm512_broadcast_i32x4(_mm_setr_epi8(0, 0, 0, 0, 4, 4, 4, 4, 8, 8, 8, 8, 12, 12, 12, 12));
  const __m512i second_quad = _mm512_set1_epi64(0x2020202000000000);  // its bits in eight bytes
  std::size_t found = 0;
  for (std::size_t i = 0; i < count; i += 64) {
    const bool whole = count - i >= 64;
    const __mmask64 inside = first(count - i);
    const __m512i level = levels_of<Words>(load_words(old + 2 * i, inside), inside);
    const __mmask16 quads_here = static_cast<__mmask16>(first((count - i + 3) / 4));
    const __m512i wide = _mm512_cvtepu8_epi32(_mm_maskz_loadu_epi8(quads_here, quads + i / 4));
    const __m512i rank = quad_ranks(level);
    const __m512i shift = _mm512_add_epi8(_mm512_add_epi8(rank, rank), second_quad);
    const __m512i moved =
        _mm512_and_si512(_mm512_multishift_epi64_epi8(shift, _mm512_shuffle_epi8(wide, four_times)),
                         _mm512_set1_epi8(3));
    if ((_mm512_test_epi8_mask(moved, moved) & ~inside) != 0) {
      return kMovedFilling;
    }
    _mm512_storeu_si512(t + i, moved);
    const __mmask64 escapes = _mm512_cmpeq_epi8_mask(moved, _mm512_set1_epi8(kEscape));
    store_64(levels + found, _mm512_maskz_compress_epi8(escapes, level), count_of(escapes), whole);
    found += count_of(escapes);
  }
  return found;
}

CIERA_AVX512 std::size_t apply_tile(std::byte* values, const std::uint8_t* t,
                                    const std::byte* escapes, std::size_t count) {
  const __m512i one = _mm512_set1_epi16(1);
  std::size_t taken = 0;
  for (std::size_t i = 0; i < count; i += 32) {
    const auto inside = static_cast<__mmask32>(first(count - i));
    const __m256i small = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(t + i));
    const __mmask32 far = _mm256_cmpeq_epi8_mask(small, _mm256_set1_epi8(kEscape)) & inside;
    const __m512i next = _mm512_loadu_si512(escapes + 2 * taken);
    const __m512i u = _mm512_mask_expand_epi16(_mm512_cvtepu8_epi16(small), far, next);
    taken += count_of(far);
    const __m512i odd = _mm512_sub_epi16(_mm512_setzero_si512(), _mm512_and_si512(u, one));
    const __m512i d = _mm512_xor_si512(_mm512_srli_epi16(u, 1), odd);
    const __m512i old = _mm512_maskz_loadu_epi16(inside, values + 2 * i);
    const __m512i now = unordered(_mm512_add_epi16(ordered(old), d));
    if (count - i >= 32) {
      _mm512_storeu_si512(values + 2 * i, now);
    } else {
      _mm512_mask_storeu_epi16(values + 2 * i, inside, now);
    }
  }
  return taken;
}

using Bf16Words = Words16<7, 0xFF>;
using Fp16Words = Words16<10, 0x1F>;
constexpr TileKernels kBf16Tiles = {compare_tile<Bf16Words>, contexts_of_tile<Bf16Words>,
                                    split_tile<Bf16Words>, apply_tile};
constexpr TileKernels kFp16Tiles = {compare_tile<Fp16Words>, contexts_of_tile<Fp16Words>,
                                    split_tile<Fp16Words>, apply_tile};

// Eight entries of an encoding table by pairs of context and symbol. Loads by themselves: gathers
// are slow.
CIERA_AVX512_PART __m512i load_entries(const std::uint64_t* entries, const std::uint16_t* pairs) {
  __m128i two[4];
  for (std::size_t i = 0; i < 4; ++i) {
    two[i] = _mm_set_epi64x(static_cast<long long>(entries[pairs[2 * i + 1]]),
                            static_cast<long long>(entries[pairs[2 * i]]));
  }
  const __m256i low = _mm256_inserti128_si256(_mm256_castsi128_si256(two[0]), two[1], 1);
  const __m256i high = _mm256_inserti128_si256(_mm256_castsi128_si256(two[2]), two[3], 1);
  return _mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1);
}

// Eight lanes of one encoder step (as encode_vector), states in 64 bits each.
CIERA_AVX512_PART __m512i encode_eight(__m512i entry, std::uint32_t prob_bits, __m512i x,
                                       std::uint16_t*& top) {
  const __m512i cum = _mm512_and_si512(entry, _mm512_set1_epi64(0xFFF));
  const __m512i rest = _mm512_and_si512(_mm512_srli_epi64(entry, 12), _mm512_set1_epi64(0x1FFF));
  const __m512i shift =
      _mm512_add_epi64(_mm512_and_si512(_mm512_srli_epi64(entry, 25), _mm512_set1_epi64(0x7F)),
                       _mm512_set1_epi64(31));
  const __m512i frequency = _mm512_sub_epi64(_mm512_set1_epi64(1 << prob_bits), rest);
  const __mmask8 emits = _mm512_cmpge_epu64_mask(x, _mm512_slli_epi64(frequency, 31 - prob_bits));
  const auto emitted = static_cast<unsigned>(__builtin_popcount(emits));
  // The words that are emitted, at the vector's end.
  const __m128i packed = _mm_maskz_compress_epi16(emits, _mm512_cvtepi64_epi16(x));
  const __m128i from = _mm_add_epi16(_mm_setr_epi16(0, 1, 2, 3, 4, 5, 6, 7),
                                     _mm_set1_epi16(static_cast<short>(emitted)));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(top - 8), _mm_permutexvar_epi16(from, packed));
  top -= emitted;
  x = _mm512_mask_srli_epi64(x, emits, x, 16);
  const __m512i quotient =
      _mm512_srlv_epi64(_mm512_mul_epu32(x, _mm512_srli_epi64(entry, 32)), shift);
  return _mm512_add_epi64(_mm512_add_epi64(x, cum), _mm512_mul_epu32(quotient, rest));
}

CIERA_AVX512_PART __m512i decode_sixteen(const ContextDecoder& table, __m128i bits,
                                         const std::uint8_t* contexts, const std::byte*& words,
                                         __m512i& x) {
  const __m512i base = _mm512_sll_epi32(
      _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(contexts))), bits);
  const __m512i at = _mm512_and_si512(x, _mm512_set1_epi32((1 << table.prob_bits) - 1));
  const __m512i slot = _mm512_mask_i32gather_epi32(_mm512_setzero_si512(), 0xFFFF,
                                                   _mm512_add_epi32(base, at), table.slots, 4);
  const __m512i frequency = _mm512_add_epi32(
      _mm512_and_si512(_mm512_srli_epi32(slot, 8), _mm512_set1_epi32(0xFFF)), _mm512_set1_epi32(1));
  x = _mm512_add_epi32(_mm512_mullo_epi32(frequency, _mm512_srl_epi32(x, bits)),
                       _mm512_srli_epi32(slot, 20));
  const __mmask16 takes = _mm512_cmplt_epu32_mask(x, _mm512_set1_epi32(kRansLow));
  const __m512i next =
      _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(words)));
  x = _mm512_mask_or_epi32(x, takes, _mm512_slli_epi32(x, 16),
                           _mm512_maskz_expand_epi32(takes, next));
  words += 2 * __builtin_popcount(takes);
  return slot;
}

}  // namespace

bool has_avx512() {
  return __builtin_cpu_supports("avx512f") != 0 && __builtin_cpu_supports("avx512bw") != 0 &&
         __builtin_cpu_supports("avx512cd") != 0 && __builtin_cpu_supports("avx512dq") != 0 &&
         __builtin_cpu_supports("avx512vl") != 0 && __builtin_cpu_supports("avx512vbmi") != 0 &&
         __builtin_cpu_supports("avx512vbmi2") != 0 && __builtin_cpu_supports("bmi2") != 0;
}

const TileKernels* tile_kernels(ReuseMode mode, DType dtype, Isa isa) {
  if (isa != Isa::kAvx512 || mode != ReuseMode::kWordDelta) {
    return nullptr;
  }
  return dtype == DType::kBf16 ? &kBf16Tiles : dtype == DType::kFp16 ? &kFp16Tiles : nullptr;
}

// Most symbols are 0: those are what is left of each context's number of symbols.
CIERA_AVX512 std::size_t count_pairs_avx512(const std::uint8_t* contexts,
                                            const std::uint8_t* symbols, std::size_t count,
                                            std::uint32_t most_contexts, std::uint32_t* counts) {
  constexpr std::size_t kBatch = 1024;
  std::uint16_t pairs[kBatch + 32];
  std::size_t i = 0;
  while (count - i >= 64) {
    const std::size_t end = i + std::min(kBatch, (count - i) / 64 * 64);
    std::size_t found = 0;
    for (; i < end; i += 64) {
      const __m512i context = _mm512_loadu_si512(contexts + i);
      const __m512i symbol = _mm512_loadu_si512(symbols + i);
      const __mmask64 moved = _mm512_test_epi8_mask(symbol, symbol);
      for (std::uint32_t c = 0; c < most_contexts; ++c) {
        counts[256 * c] += count_of(
            _mm512_mask_cmpeq_epi8_mask(~moved, context, _mm512_set1_epi8(static_cast<char>(c))));
      }
      for (std::size_t half = 0; half < 2; ++half) {
        const auto mask = static_cast<__mmask32>(moved >> (32 * half));
        const auto* from = reinterpret_cast<const __m256i*>(contexts + i + 32 * half);
        const auto* what = reinterpret_cast<const __m256i*>(symbols + i + 32 * half);
        const __m512i pair =
            _mm512_or_si512(_mm512_slli_epi16(_mm512_cvtepu8_epi16(_mm256_loadu_si256(from)), 8),
                            _mm512_cvtepu8_epi16(_mm256_loadu_si256(what)));
        _mm512_storeu_si512(pairs + found, _mm512_maskz_compress_epi16(mask, pair));
        found += count_of(mask);
      }
    }
    for (std::size_t k = 0; k < found; ++k) {
      ++counts[pairs[k]];
    }
  }
  return i;
}

CIERA_AVX512 std::size_t mark_rare_avx512(const std::uint8_t (&rare)[kMaxQuadContexts * 32],
                                          const std::uint8_t* contexts, std::uint8_t* bytes,
                                          std::size_t count, std::uint8_t* marked,
                                          std::size_t& marks) {
  const __m512i bit_of = _mm512_set1_epi64(static_cast<long long>(0x8040201008040201));
  __m512i table[4];
  for (std::size_t k = 0; k < 4; ++k) {
    table[k] = _mm512_loadu_si512(rare + 64 * k);
  }
  std::size_t i = 0;
  for (; count - i >= 64; i += 64) {
    const __m512i context = _mm512_loadu_si512(contexts + i);
    const __m512i byte = _mm512_loadu_si512(bytes + i);
    const __m512i group = _mm512_or_si512(
        _mm512_and_si512(_mm512_slli_epi16(context, 5), _mm512_set1_epi8(static_cast<char>(0xE0))),
        _mm512_and_si512(_mm512_srli_epi16(byte, 3), _mm512_set1_epi8(0x1F)));
    const __m512i flags = _mm512_mask_blend_epi8(
        _mm512_movepi8_mask(group), _mm512_permutex2var_epi8(table[0], group, table[1]),
        _mm512_permutex2var_epi8(table[2], group, table[3]));
    const __m512i bit = _mm512_shuffle_epi8(bit_of, _mm512_and_si512(byte, _mm512_set1_epi8(7)));
    const __mmask64 found = _mm512_test_epi8_mask(flags, bit);
    _mm512_storeu_si512(marked + marks, _mm512_maskz_compress_epi8(found, byte));
    marks += count_of(found);
    _mm512_storeu_si512(
        bytes + i, _mm512_mask_mov_epi8(byte, found, _mm512_set1_epi8(static_cast<char>(kMark))));
  }
  return i;
}

CIERA_AVX512 std::size_t value_symbols_avx512(const std::byte* u, std::size_t count,
                                              std::uint8_t* symbols) {
  std::size_t i = 0;
  for (; count - i >= 16; i += 16) {
    const __m512i value =
        _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(u + 2 * i)));
    const __m512i bits = _mm512_sub_epi32(_mm512_set1_epi32(32), _mm512_lzcnt_epi32(value));
    const __m512i high = _mm512_srlv_epi32(value, _mm512_sub_epi32(bits, _mm512_set1_epi32(3)));
    // 16 + 4 (bits - 5) + two bits
    const __m512i coarse =
        _mm512_add_epi32(_mm512_sub_epi32(_mm512_slli_epi32(bits, 2), _mm512_set1_epi32(4)),
                         _mm512_and_si512(high, _mm512_set1_epi32(3)));
    const __mmask16 exact = _mm512_cmplt_epu32_mask(value, _mm512_set1_epi32(16));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(symbols + i),
                     _mm512_cvtepi32_epi8(_mm512_mask_mov_epi32(coarse, exact, value)));
  }
  return i;
}

CIERA_AVX512 void encode_steps_avx512(const ContextEncoder& table, const std::uint8_t* contexts,
                                      const std::uint8_t* symbols, std::size_t steps,
                                      RansWriter& writer) {
  static_assert(sizeof(RansEncodeSymbol) == sizeof(std::uint64_t));
  using Entry [[gnu::may_alias]] = std::uint64_t;
  const auto* entries = reinterpret_cast<const Entry*>(table.symbols);
  __m512i x[4];
  for (std::size_t v = 0; v < 4; ++v) {
    x[v] = _mm512_cvtepu32_epi64(
        _mm256_load_si256(reinterpret_cast<const __m256i*>(writer.states + 8 * v)));
  }
  std::uint16_t* top = writer.top;
  for (std::size_t i = kRansLanes * steps; i > 0; i -= kRansLanes) {
    alignas(64) std::uint16_t pairs[kRansLanes];
    const auto* context = reinterpret_cast<const __m256i*>(contexts + i - kRansLanes);
    const auto* symbol = reinterpret_cast<const __m256i*>(symbols + i - kRansLanes);
    _mm512_store_si512(
        pairs,
        _mm512_or_si512(_mm512_slli_epi16(_mm512_cvtepu8_epi16(_mm256_loadu_si256(context)), 8),
                        _mm512_cvtepu8_epi16(_mm256_loadu_si256(symbol))));
    for (std::size_t v = 4; v-- > 0;) {
      x[v] = encode_eight(load_entries(entries, pairs + 8 * v), table.prob_bits, x[v], top);
    }
  }
  writer.top = top;
  for (std::size_t v = 0; v < 4; ++v) {
    _mm256_store_si256(reinterpret_cast<__m256i*>(writer.states + 8 * v),
                       _mm512_cvtepi64_epi32(x[v]));
  }
}

CIERA_AVX512 std::size_t decode_steps_avx512(const ContextDecoder& table,
                                             const std::uint8_t* contexts, std::size_t count,
                                             std::uint8_t* symbols, RansReader& reader) {
  constexpr std::ptrdiff_t kReach = 2 * (kRansLanes + 16);
  const __m128i bits = _mm_cvtsi32_si128(static_cast<int>(table.prob_bits));
  __m512i x[2] = {_mm512_loadu_si512(reader.states), _mm512_loadu_si512(reader.states + 16)};
  const std::byte* next = reader.next;
  std::size_t done = 0;
  for (; count - done >= kRansLanes && reader.end - next >= kReach; done += kRansLanes) {
    for (std::size_t v = 0; v < 2; ++v) {
      const __m512i slots = decode_sixteen(table, bits, contexts + done + 16 * v, next, x[v]);
      _mm_storeu_si128(reinterpret_cast<__m128i*>(symbols + done + 16 * v),
                       _mm512_cvtepi32_epi8(slots));
    }
  }
  reader.next = next;
  _mm512_storeu_si512(reader.states, x[0]);
  _mm512_storeu_si512(reader.states + 16, x[1]);
  return done;
}

}  // namespace ciera::codec::host

#else

namespace ciera::codec::host {

bool has_avx512() { return false; }
const TileKernels* tile_kernels(ReuseMode, DType, Isa) { return nullptr; }
std::size_t count_pairs_avx512(const std::uint8_t*, const std::uint8_t*, std::size_t, std::uint32_t,
                               std::uint32_t*) {
  return 0;
}
std::size_t mark_rare_avx512(const std::uint8_t (&)[kMaxQuadContexts * 32], const std::uint8_t*,
                             std::uint8_t*, std::size_t, std::uint8_t*, std::size_t&) {
  return 0;
}
std::size_t value_symbols_avx512(const std::byte*, std::size_t, std::uint8_t*) { return 0; }
void encode_steps_avx512(const ContextEncoder&, const std::uint8_t*, const std::uint8_t*,
                         std::size_t, RansWriter&) {}
std::size_t decode_steps_avx512(const ContextDecoder&, const std::uint8_t*, std::size_t,
                                std::uint8_t*, RansReader&) {
  return 0;
}

}  // namespace ciera::codec::host

#endif
