#include "codec/host/delta_values.hpp"

#include <algorithm>
#include <array>
#include <cstring>

#include "codec/delta_model.hpp"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

// As in split_host.cpp: plain loops that vectorise, cloned for AVX2 except under sanitizers.
#if defined(__x86_64__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define CIERA_CLONES __attribute__((target_clones("avx2", "default")))
#else
#define CIERA_CLONES
#endif

namespace ciera::codec::host {
namespace {

#if defined(__x86_64__)

using Order = std::array<std::uint8_t, 8>;

// For each mask of eight values: those in it, in order, at the front (gather); and for each value
// the number of those before it (scatter).
constexpr std::array<Order, 256> make_front() {
  std::array<Order, 256> table{};
  for (std::size_t mask = 0; mask < 256; ++mask) {
    std::size_t to = 0;
    for (std::size_t i = 0; i < 8; ++i) {
      if ((mask >> i & 1) != 0) {
        table[mask][to++] = static_cast<std::uint8_t>(i);
      }
    }
  }
  return table;
}
constexpr std::array<Order, 256> make_before() {
  std::array<Order, 256> table{};
  for (std::size_t mask = 0; mask < 256; ++mask) {
    std::uint8_t next = 0;
    for (std::size_t i = 0; i < 8; ++i) {
      table[mask][i] = next;
      next = static_cast<std::uint8_t>(next + (mask >> i & 1));
    }
  }
  return table;
}
constexpr std::array<Order, 256> kFront = make_front();
constexpr std::array<Order, 256> kBefore = make_before();

__attribute__((target("avx2"))) inline __m128i load_order(const Order& order) {
  return _mm_loadl_epi64(reinterpret_cast<const __m128i*>(order.data()));
}
// Indices of eight bytes as indices of the bytes of eight words.
__attribute__((target("avx2"))) inline __m128i word_order(const Order& order) {
  const __m128i twice = _mm_slli_epi16(_mm_cvtepu8_epi16(load_order(order)), 1);
  const __m128i low = _mm_or_si128(twice, _mm_slli_epi16(twice, 8));
  return _mm_add_epi16(low, _mm_set1_epi16(0x0100));
}
// Whether there is an escape among the next 32 values; most often not, when little changes.
__attribute__((target("avx2"))) inline bool any_escape(const std::uint8_t* t) {
  const __m256i all = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(t));
  return _mm256_movemask_epi8(_mm256_cmpeq_epi8(all, _mm256_set1_epi8(3))) != 0;
}
__attribute__((target("avx2"))) inline unsigned escape_mask(const std::uint8_t* t) {
  const __m128i eight = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(t));
  return static_cast<unsigned>(_mm_movemask_epi8(_mm_cmpeq_epi8(eight, _mm_set1_epi8(3)))) & 0xFF;
}

__attribute__((target("avx2"))) std::size_t gather_8_avx2(const std::uint8_t* t, std::size_t count,
                                                          const std::uint8_t* bytes,
                                                          std::uint8_t* to, std::size_t& found) {
  std::size_t i = 0;
  for (; i + 8 <= count; i += 8) {
    if (i % 32 == 0 && i + 32 <= count && !any_escape(t + i)) {
      i += 24;
      continue;
    }
    const unsigned mask = escape_mask(t + i);
    const __m128i eight = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(bytes + i));
    _mm_storel_epi64(reinterpret_cast<__m128i*>(to + found),
                     _mm_shuffle_epi8(eight, load_order(kFront[mask])));
    found += static_cast<std::size_t>(__builtin_popcount(mask));
  }
  return i;
}

__attribute__((target("avx2"))) std::size_t gather_16_avx2(const std::uint8_t* t, std::size_t count,
                                                           const std::byte* u, std::byte* values,
                                                           std::size_t& found) {
  std::size_t i = 0;
  for (; i + 8 <= count; i += 8) {
    if (i % 32 == 0 && i + 32 <= count && !any_escape(t + i)) {
      i += 24;
      continue;
    }
    const unsigned mask = escape_mask(t + i);
    const __m128i eight = _mm_loadu_si128(reinterpret_cast<const __m128i*>(u + 2 * i));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(values + 2 * found),
                     _mm_shuffle_epi8(eight, word_order(kFront[mask])));
    found += static_cast<std::size_t>(__builtin_popcount(mask));
  }
  return i;
}

__attribute__((target("avx2"))) std::size_t scatter_16_avx2(const std::uint8_t* t,
                                                            std::size_t count,
                                                            const std::byte* values, std::byte* u,
                                                            std::size_t& taken) {
  std::size_t i = 0;
  for (; i + 8 <= count; i += 8) {
    if (i % 32 == 0 && i + 32 <= count && !any_escape(t + i)) {
      i += 24;
      continue;
    }
    const __m128i eight = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(t + i));
    const __m128i escapes = _mm_cmpeq_epi8(eight, _mm_set1_epi8(3));
    const unsigned mask = static_cast<unsigned>(_mm_movemask_epi8(escapes)) & 0xFF;
    const __m128i next = _mm_loadu_si128(reinterpret_cast<const __m128i*>(values + 2 * taken));
    const __m128i spread = _mm_shuffle_epi8(next, word_order(kBefore[mask]));
    auto* to = reinterpret_cast<__m128i*>(u + 2 * i);
    _mm_storeu_si128(to, _mm_blendv_epi8(_mm_loadu_si128(to), spread, _mm_cvtepi8_epi16(escapes)));
    taken += static_cast<std::size_t>(__builtin_popcount(mask));
  }
  return i;
}

#else

std::size_t gather_8_avx2(const std::uint8_t*, std::size_t, const std::uint8_t*, std::uint8_t*,
                          std::size_t&) {
  return 0;
}
std::size_t gather_16_avx2(const std::uint8_t*, std::size_t, const std::byte*, std::byte*,
                           std::size_t&) {
  return 0;
}
std::size_t scatter_16_avx2(const std::uint8_t*, std::size_t, const std::byte*, std::byte*,
                            std::size_t&) {
  return 0;
}

#endif

template <class T>
struct Loose {  // a word at any address
  using Type [[gnu::aligned(1), gnu::may_alias]] = T;
};
template <class Kind>
using WordAt = typename Loose<typename Kind::Word>::Type;

template <class Kind>
[[gnu::always_inline]] inline void compare_words(const std::byte* old, const std::byte* now,
                                                 std::size_t count, std::byte* u, std::uint8_t* t,
                                                 std::uint8_t* levels) {
  const auto* a = reinterpret_cast<const WordAt<Kind>*>(old);
  const auto* b = reinterpret_cast<const WordAt<Kind>*>(now);
  auto* to = reinterpret_cast<WordAt<Kind>*>(u);
  for (std::size_t i = 0; i < count; ++i) {
    to[i] = difference<Kind>(a[i], b[i]);
  }
  for (std::size_t i = 0; i < count; ++i) {
    t[i] = static_cast<std::uint8_t>(std::min<typename Kind::Word>(to[i], kEscape));
  }
  for (std::size_t i = 0; i < count; ++i) {
    levels[i] = Kind::level(a[i]);
  }
}

template <class Kind>
[[gnu::always_inline]] inline void levels_of(const std::byte* old, std::size_t count,
                                             std::uint8_t* levels) {
  const auto* a = reinterpret_cast<const WordAt<Kind>*>(old);
  for (std::size_t i = 0; i < count; ++i) {
    levels[i] = Kind::level(a[i]);
  }
}

template <class Kind>
[[gnu::always_inline]] inline void apply_words(std::byte* values, const std::byte* u,
                                               std::size_t count) {
  auto* to = reinterpret_cast<WordAt<Kind>*>(values);
  const auto* by = reinterpret_cast<const WordAt<Kind>*>(u);
  for (std::size_t i = 0; i < count; ++i) {
    to[i] = apply_difference<Kind>(to[i], by[i]);
  }
}

template <class Kind>
[[gnu::always_inline]] inline void widen_bytes(const std::uint8_t* t, std::size_t count,
                                               std::byte* u) {
  auto* to = reinterpret_cast<WordAt<Kind>*>(u);
  for (std::size_t i = 0; i < count; ++i) {
    to[i] = t[i];
  }
}

template <class Kind>
std::size_t gather_words(const std::uint8_t* t, std::size_t count, const std::byte* u,
                         std::byte* values) {
  const auto* from = reinterpret_cast<const WordAt<Kind>*>(u);
  auto* to = reinterpret_cast<WordAt<Kind>*>(values);
  std::size_t found = 0;
  std::size_t done = 0;
  if (sizeof(*to) == 2 && has_vectors(best_isa())) {
    done = gather_16_avx2(t, count, u, values, found);
  }
  for_escapes(t + done, count - done, [&](std::size_t i) { to[found++] = from[done + i]; });
  return found;
}

template <class Kind>
std::size_t scatter_words(const std::uint8_t* t, std::size_t count, const std::byte* values,
                          std::byte* u) {
  const auto* from = reinterpret_cast<const WordAt<Kind>*>(values);
  auto* to = reinterpret_cast<WordAt<Kind>*>(u);
  std::size_t taken = 0;
  std::size_t done = 0;
  if (sizeof(*to) == 2 && has_vectors(best_isa())) {
    done = scatter_16_avx2(t, count, values, u, taken);
  }
  for_escapes(t + done, count - done, [&](std::size_t i) { to[done + i] = from[taken++]; });
  return taken;
}

template <class Kind>
void symbols_of(const std::byte* u, std::size_t count, std::uint8_t* symbols) {
  const auto* from = reinterpret_cast<const WordAt<Kind>*>(u);
  for (std::size_t i = 0; i < count; ++i) {
    symbols[i] = static_cast<std::uint8_t>(value_symbol(from[i]).symbol);
  }
}

// target_clones takes no templates: one set of functions a kind.
#define CIERA_KIND(name, Kind)                                                                     \
  CIERA_CLONES void compare_##name(const std::byte* old, const std::byte* now, std::size_t count,  \
                                   std::byte* u, std::uint8_t* t, std::uint8_t* levels) {          \
    compare_words<Kind>(old, now, count, u, t, levels);                                            \
  }                                                                                                \
  CIERA_CLONES void levels_##name(const std::byte* old, std::size_t count, std::uint8_t* levels) { \
    levels_of<Kind>(old, count, levels);                                                           \
  }                                                                                                \
  CIERA_CLONES void apply_##name(std::byte* values, const std::byte* u, std::size_t count) {       \
    apply_words<Kind>(values, u, count);                                                           \
  }                                                                                                \
  CIERA_CLONES void widen_##name(const std::uint8_t* small, std::size_t count, std::byte* u) {     \
    widen_bytes<Kind>(small, count, u);                                                            \
  }                                                                                                \
  constexpr ValueKernels k_##name = {kWordBits<Kind>,     compare_##name,  levels_##name,          \
                                     apply_##name,        widen_##name,    gather_words<Kind>,     \
                                     scatter_words<Kind>, symbols_of<Kind>};

CIERA_KIND(exponent, ExponentByte)
CIERA_KIND(bf16, FloatWord<Bf16>)
CIERA_KIND(fp16, FloatWord<Fp16>)
CIERA_KIND(fp32, FloatWord<Fp32>)
CIERA_KIND(opaque8, OpaqueWord<std::uint8_t>)
CIERA_KIND(opaque16, OpaqueWord<std::uint16_t>)
CIERA_KIND(opaque32, OpaqueWord<std::uint32_t>)
CIERA_KIND(opaque64, OpaqueWord<std::uint64_t>)
#undef CIERA_KIND

#if defined(__x86_64__)

// Where each of 32 values comes in its quad, times 2: ranks of four bytes in ascending order.
__attribute__((target("avx2"))) inline __m256i quad_shifts(__m256i levels) {
  const __m256i key = _mm256_xor_si256(levels, _mm256_set1_epi8(-128));  // unsigned order
  const __m256i by1 = _mm256_setr_epi8(1, 2, 3, 0, 5, 6, 7, 4, 9, 10, 11, 8, 13, 14, 15, 12, 1, 2,
                                       3, 0, 5, 6, 7, 4, 9, 10, 11, 8, 13, 14, 15, 12);
  // Of equal levels the earlier value comes first: against the one k places on, round the quad,
  // only values from position 4 - k on are the later ones.
  const __m256i wraps[3] = {_mm256_set1_epi32(static_cast<int>(0xFF000000)),
                            _mm256_set1_epi32(static_cast<int>(0xFFFF0000)),
                            _mm256_set1_epi32(static_cast<int>(0xFFFFFF00))};
  __m256i rank = _mm256_setzero_si256();
  __m256i other = key;
  for (const __m256i& wrap : wraps) {
    other = _mm256_shuffle_epi8(other, by1);
    const __m256i above = _mm256_cmpgt_epi8(key, other);
    const __m256i tie = _mm256_and_si256(_mm256_cmpeq_epi8(key, other), wrap);
    rank = _mm256_sub_epi8(rank, _mm256_or_si256(above, tie));
  }
  return rank;
}

__attribute__((target("avx2"))) inline __m256i look_up(__m256i rank, int a, int b, int c, int d) {
  const auto byte = [](int x) { return static_cast<unsigned>(x); };
  const __m256i table =
      _mm256_set1_epi32(static_cast<int>(byte(a) | byte(b) << 8 | byte(c) << 16 | byte(d) << 24));
  return _mm256_shuffle_epi8(table, rank);
}

__attribute__((target("avx2"))) std::size_t make_quads_avx2(const std::uint8_t* t,
                                                            const std::uint8_t* levels,
                                                            std::size_t quads,
                                                            std::uint8_t* bytes) {
  std::size_t q = 0;
  for (; q + 8 <= quads; q += 8) {
    const __m256i level = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(levels + 4 * q));
    const __m256i value = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(t + 4 * q));
    const __m256i factor = look_up(quad_shifts(level), 1, 4, 16, 64);
    const __m256i pairs = _mm256_maddubs_epi16(factor, value);
    const __m256i sums = _mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
    const __m256i words = _mm256_packus_epi32(sums, sums);
    const __m256i packed = _mm256_packus_epi16(words, words);
    const auto low = static_cast<std::uint32_t>(_mm256_extract_epi32(packed, 0));
    const auto high = static_cast<std::uint32_t>(_mm256_extract_epi32(packed, 4));
    const std::uint64_t eight = low | std::uint64_t{high} << 32;
    std::memcpy(bytes + q, &eight, 8);
  }
  return q;
}

__attribute__((target("avx2"))) std::size_t split_quads_avx2(const std::uint8_t* bytes,
                                                             const std::uint8_t* levels,
                                                             std::size_t quads, std::uint8_t* t) {
  const __m256i four_times = _mm256_setr_epi8(0, 0, 0, 0, 4, 4, 4, 4, 8, 8, 8, 8, 12, 12, 12, 12, 0,
                                              0, 0, 0, 4, 4, 4, 4, 8, 8, 8, 8, 12, 12, 12, 12);
  const __m256i even = _mm256_set1_epi16(0x00FF);
  std::size_t q = 0;
  for (; q + 8 <= quads; q += 8) {
    const __m256i level = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(levels + 4 * q));
    const __m256i wide =
        _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(bytes + q)));
    const __m256i spread = _mm256_shuffle_epi8(wide, four_times);
    // Times 64, 16, 4 or 1, the wanted two bits are bits 6 and 7 of the product.
    const __m256i factor = look_up(quad_shifts(level), 64, 16, 4, 1);
    const __m256i low =
        _mm256_mullo_epi16(_mm256_and_si256(spread, even), _mm256_and_si256(factor, even));
    const __m256i high =
        _mm256_mullo_epi16(_mm256_srli_epi16(spread, 8), _mm256_srli_epi16(factor, 8));
    const __m256i both = _mm256_or_si256(
        _mm256_and_si256(_mm256_srli_epi16(low, 6), _mm256_set1_epi16(3)),
        _mm256_slli_epi16(_mm256_and_si256(_mm256_srli_epi16(high, 6), _mm256_set1_epi16(3)), 8));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(t + 4 * q), both);
  }
  return q;
}

#else

std::size_t make_quads_avx2(const std::uint8_t*, const std::uint8_t*, std::size_t, std::uint8_t*) {
  return 0;
}
std::size_t split_quads_avx2(const std::uint8_t*, const std::uint8_t*, std::size_t, std::uint8_t*) {
  return 0;
}

#endif

}  // namespace

const ValueKernels& value_kernels(ReuseMode mode, DType dtype) {
  if (mode == ReuseMode::kExponentDelta) {
    return k_exponent;
  }
  switch (dtype) {
    case DType::kBf16:
      return k_bf16;
    case DType::kFp16:
      return k_fp16;
    case DType::kFp32:
      return k_fp32;
    case DType::kOpaque16:
      return k_opaque16;
    case DType::kOpaque32:
      return k_opaque32;
    case DType::kOpaque64:
      return k_opaque64;
    case DType::kOpaque8:
    case DType::kOpaque128:
      break;
  }
  return k_opaque8;
}

std::size_t gather_bytes(const std::uint8_t* t, std::size_t count, const std::uint8_t* bytes,
                         std::uint8_t* to, Isa isa) {
  std::size_t found = 0;
  const std::size_t done = has_vectors(isa) ? gather_8_avx2(t, count, bytes, to, found) : 0;
  for_escapes(t + done, count - done, [&](std::size_t i) { to[found++] = bytes[done + i]; });
  return found;
}

CIERA_CLONES void to_contexts(std::uint8_t* levels, std::size_t count, std::uint32_t top,
                              std::uint32_t contexts) {
  const auto best = static_cast<std::uint8_t>(top);
  const auto last = static_cast<std::uint8_t>(contexts - 1);
  for (std::size_t i = 0; i < count; ++i) {
    const std::uint8_t level = std::min(levels[i], best);
    levels[i] = std::min(static_cast<std::uint8_t>(best - level), last);
  }
}

CIERA_CLONES std::size_t count_equal(const std::uint8_t* bytes, std::size_t count,
                                     std::uint32_t wanted) {
  const auto byte = static_cast<std::uint8_t>(wanted);
  std::size_t found = 0;
  std::size_t i = 0;
  for (; i + 128 <= count; i += 128) {
    std::uint8_t here = 0;  // in bytes, which vectorises best
    for (std::size_t j = 0; j < 128; ++j) {
      here = static_cast<std::uint8_t>(here + (bytes[i + j] == byte ? 1 : 0));
    }
    found += here;
  }
  for (; i < count; ++i) {
    found += bytes[i] == byte ? 1 : 0;
  }
  return found;
}

void count_bytes(const std::uint8_t* bytes, std::size_t count, std::uint32_t (&counts)[256]) {
  // Four tables, so that runs of one byte do not wait for their own last increment.
  std::uint32_t part[4][256] = {};
  std::size_t i = 0;
  for (; i + 4 <= count; i += 4) {
    for (std::size_t j = 0; j < 4; ++j) {
      ++part[j][bytes[i + j]];
    }
  }
  for (; i < count; ++i) {
    ++part[0][bytes[i]];
  }
  for (std::size_t b = 0; b < 256; ++b) {
    counts[b] += part[0][b] + part[1][b] + part[2][b] + part[3][b];
  }
}

CIERA_CLONES void smallest_levels(const std::uint8_t* levels, std::size_t quads,
                                  std::uint8_t* smallest) {
  for (std::size_t q = 0; q < quads; ++q) {
    const std::uint8_t* four = levels + 4 * q;
    smallest[q] = std::min(std::min(four[0], four[1]), std::min(four[2], four[3]));
  }
}

void make_quads(const std::uint8_t* t, const std::uint8_t* levels, std::size_t quads,
                std::uint8_t* bytes, std::uint8_t* smallest, Isa isa) {
  smallest_levels(levels, quads, smallest);
  std::size_t q = has_vectors(isa) ? make_quads_avx2(t, levels, quads, bytes) : 0;
  for (; q < quads; ++q) {
    std::uint32_t byte = 0;
    for (std::uint32_t i = 0; i < 4; ++i) {
      byte |= static_cast<std::uint32_t>(t[4 * q + i]) << (2 * quad_rank(levels + 4 * q, i));
    }
    bytes[q] = static_cast<std::uint8_t>(byte);
  }
}

void split_quads(const std::uint8_t* bytes, const std::uint8_t* levels, std::size_t quads,
                 std::uint8_t* t, Isa isa) {
  std::size_t q = has_vectors(isa) ? split_quads_avx2(bytes, levels, quads, t) : 0;
  for (; q < quads; ++q) {
    for (std::uint32_t i = 0; i < 4; ++i) {
      t[4 * q + i] = bytes[q] >> (2 * quad_rank(levels + 4 * q, i)) & 3;
    }
  }
}

}  // namespace ciera::codec::host
