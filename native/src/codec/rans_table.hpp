// The frequency table of a `rans` section: normalisation and the constants that coding uses. Shared
// by host and GPU. Method: range asymmetric numeral systems (Duda) with interleaved lanes and
// 16-bit renormalisation (Giesen); division by multiplication with a rounded-up reciprocal
// (Granlund and Montgomery).
#pragma once

#include <cstdint>

#include "base/host_device.hpp"

namespace ciera::codec {

inline constexpr std::uint32_t kRansLanes = 32;
inline constexpr std::uint32_t kRansLow = 1U << 15;  // states are in [kRansLow, kRansLow << 16)
inline constexpr std::uint32_t kRansMinProbBits = 8;
inline constexpr std::uint32_t kRansMaxProbBits = 12;
inline constexpr std::uint32_t kRansProbBits = 12;  // what encoders write
inline constexpr std::uint32_t kRansMinSegmentLog2 = 10;
inline constexpr std::uint32_t kRansMaxSegmentLog2 = 20;
inline constexpr std::uint32_t kRansSegmentLog2 = 16;  // the host encoder's default

// n / d for n and d below 2^61 and a quotient of at most 2^33: estimated with floating point, which
// is off by one at most, and put right.
CIERA_HD constexpr std::uint64_t divide_by_estimate(std::uint64_t n, std::uint64_t d) {
  const auto quotient = static_cast<std::uint64_t>(static_cast<double>(n) / static_cast<double>(d));
  const auto rest = static_cast<std::int64_t>(n - quotient * d);
  return rest < 0 ? quotient - 1 : static_cast<std::uint64_t>(rest) >= d ? quotient + 1 : quotient;
}
// The same; a GPU divides whole numbers slowly.
CIERA_HD constexpr std::uint64_t divide(std::uint64_t n, std::uint64_t d) {
#if defined(__CUDA_ARCH__)
  return divide_by_estimate(n, d);
#else
  return n / d;
#endif
}

// What a count of at least 1 is worth before the frequencies are made to sum to 2^prob_bits.
CIERA_HD constexpr std::uint32_t frequency_share(std::uint64_t count, std::uint64_t total,
                                                 std::uint32_t prob_bits) {
  const std::uint64_t share = divide((count << prob_bits) + total / 2, total);
  return share == 0 ? 1 : static_cast<std::uint32_t>(share);
}

// Turns counts (their sum `total` > 0) into frequencies that sum to 2^prob_bits.
CIERA_HD inline void normalise_counts(const std::uint64_t (&counts)[256], std::uint64_t total,
                                      std::uint32_t prob_bits, std::uint32_t (&frequencies)[256]) {
  const std::uint64_t wanted = std::uint64_t{1} << prob_bits;
  std::uint64_t sum = 0;
  const auto largest = [&frequencies] {
    std::uint32_t best = 0;
    for (std::uint32_t s = 1; s < 256; ++s) {
      best = frequencies[s] > frequencies[best] ? s : best;
    }
    return best;
  };
  for (std::uint32_t s = 0; s < 256; ++s) {
    frequencies[s] = counts[s] == 0 ? 0 : frequency_share(counts[s], total, prob_bits);
    sum += frequencies[s];
  }
  if (sum < wanted) {
    frequencies[largest()] += static_cast<std::uint32_t>(wanted - sum);
  }
  while (sum > wanted) {  // as many steps at once as the largest stays the largest
    const std::uint32_t best = largest();
    std::uint32_t second = 1;
    for (std::uint32_t s = 0; s < 256; ++s) {
      second = s != best && frequencies[s] > second ? frequencies[s] : second;
    }
    const std::uint64_t lead = frequencies[best] > second ? frequencies[best] - second : 1;
    const std::uint64_t taken = lead < sum - wanted ? lead : sum - wanted;
    frequencies[best] -= static_cast<std::uint32_t>(taken);
    sum -= taken;
  }
}

// What coding one symbol needs: x -> x + cum + (x / freq) * (2^n - freq), the quotient as (x *
// reciprocal) >> (31 + shift).
struct RansEncodeSymbol {
  std::uint32_t packed = 0;  // cum (12 bits) | 2^n - freq (13 bits) << 12 | shift << 25
  std::uint32_t reciprocal =
      0;  // ceil(2^(31 + shift) / freq), shift = ceil(log2(freq)): exact for x < 2^31
};

CIERA_HD inline RansEncodeSymbol make_encode_symbol(std::uint32_t frequency, std::uint32_t cum,
                                                    std::uint32_t prob_bits) {
  std::uint32_t shift = 0;
  while ((1U << shift) < frequency) {
    ++shift;
  }
  const std::uint64_t numerator = std::uint64_t{1} << (31 + shift);
  return {cum | ((1U << prob_bits) - frequency) << 12 | shift << 25,
          static_cast<std::uint32_t>(divide(numerator + frequency - 1, frequency))};
}

// A slot of the decoding table: symbol (8 bits) | freq - 1 (12 bits) << 8 | slot - cum (12 bits)
// << 20.
CIERA_HD constexpr std::uint32_t make_decode_slot(std::uint32_t symbol, std::uint32_t frequency,
                                                  std::uint32_t offset) {
  return symbol | (frequency - 1) << 8 | offset << 20;
}

}  // namespace ciera::codec
