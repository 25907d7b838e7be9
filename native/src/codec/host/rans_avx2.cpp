// The 32 lanes as four vectors of eight states. Same bytes as the scalar coder.
#include "codec/host/rans_kernels.hpp"

#if defined(__x86_64__)
#include "codec/host/rans_vectors.hpp"

namespace ciera::codec::host {
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
    x3 = encode_vector(table.symbols, table.prob_bits, load_bytes(step + 24), x3, top);
    x2 = encode_vector(table.symbols, table.prob_bits, load_bytes(step + 16), x2, top);
    x1 = encode_vector(table.symbols, table.prob_bits, load_bytes(step + 8), x1, top);
    x0 = encode_vector(table.symbols, table.prob_bits, load_bytes(step), x0, top);
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
  const __m256i none = _mm256_setzero_si256();
  const std::byte* next = words.data();
  const std::byte* end = words.data() + words.size();
  // A step reads 32 words at most and looks at 8 more; near the end the scalar coder takes over.
  constexpr std::ptrdiff_t kReach = 2 * (kRansLanes + 8);
  std::size_t done = 0;
  while (symbols.size() - done >= kRansLanes && end - next >= kReach) {
    const __m256i a = decode_vector(table.slots, table.prob_bits, none, next, x0);
    const __m256i b = decode_vector(table.slots, table.prob_bits, none, next, x1);
    const __m256i c = decode_vector(table.slots, table.prob_bits, none, next, x2);
    const __m256i d = decode_vector(table.slots, table.prob_bits, none, next, x3);
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
