// Exponent and sign+mantissa of one value (docs/wire-format.md, section 3). Shared by host and GPU.
#pragma once

#include <cstdint>

#include "base/host_device.hpp"

namespace ciera::codec {

struct Bf16 {
  using Word = std::uint16_t;
  static constexpr std::uint32_t kExponentBits = 8;
  static constexpr std::uint32_t kMantissaBits = 7;
};
struct Fp16 {
  using Word = std::uint16_t;
  static constexpr std::uint32_t kExponentBits = 5;
  static constexpr std::uint32_t kMantissaBits = 10;
};
struct Fp32 {
  using Word = std::uint32_t;
  static constexpr std::uint32_t kExponentBits = 8;
  static constexpr std::uint32_t kMantissaBits = 23;
};

template <class Format>
inline constexpr std::uint32_t kSignMantissaBits = Format::kMantissaBits + 1;

template <class Format>
CIERA_HD constexpr std::uint8_t exponent_of(typename Format::Word word) {
  return static_cast<std::uint8_t>(word >> Format::kMantissaBits &
                                   ((1U << Format::kExponentBits) - 1));
}

template <class Format>
CIERA_HD constexpr typename Format::Word sign_mantissa_of(typename Format::Word word) {
  using Word = typename Format::Word;
  constexpr std::uint32_t kSignBit = Format::kMantissaBits + Format::kExponentBits;
  return static_cast<Word>((word >> kSignBit) << Format::kMantissaBits |
                           (word & ((1U << Format::kMantissaBits) - 1)));
}

template <class Format>
CIERA_HD constexpr typename Format::Word merge_word(std::uint8_t exponent,
                                                    typename Format::Word sign_mantissa) {
  using Word = typename Format::Word;
  constexpr std::uint32_t kSignBit = Format::kMantissaBits + Format::kExponentBits;
  const auto wide = static_cast<std::uint32_t>(sign_mantissa);
  return static_cast<Word>((wide >> Format::kMantissaBits) << kSignBit |
                           static_cast<std::uint32_t>(exponent) << Format::kMantissaBits |
                           (wide & ((1U << Format::kMantissaBits) - 1)));
}

}  // namespace ciera::codec
