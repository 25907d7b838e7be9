// SplitMix64's finaliser and the two increments of the position-keyed sums (docs/wire-format.md,
// section 5).
#pragma once

#include <cstdint>

#include "base/host_device.hpp"

namespace ciera::base {

inline constexpr std::uint64_t kGamma0 = 0x9E3779B97F4A7C15ULL;
inline constexpr std::uint64_t kGamma1 = 0xD1B54A32D192ED03ULL;

CIERA_HD constexpr std::uint64_t mix(std::uint64_t z) {
  z ^= z >> 30;
  z *= 0xBF58476D1CE4E5B9ULL;
  z ^= z >> 27;
  z *= 0x94D049BB133111EBULL;
  z ^= z >> 31;
  return z;
}

// One word's share of a sum; the sum does not depend on the order in which words are added.
CIERA_HD constexpr std::uint64_t keyed(std::uint64_t word, std::uint64_t index,
                                       std::uint64_t gamma) {
  return mix(word + (index + 1) * gamma);
}

}  // namespace ciera::base
