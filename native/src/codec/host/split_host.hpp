// Split and merge of runs of values, and the packing of narrow fields (docs/wire-format.md, section
// 3).
#pragma once

#include <cstddef>
#include <cstdint>

#include "ciera/types.hpp"

namespace ciera::codec::host {

// Values [from, to) of a shard of `numel`; `from` is a multiple of 8, and so is `to` unless it is
// numel. `words`, `exponents` and `sign_mantissa` point to the start of the whole shard (section).
struct Range {
  std::uint64_t from;
  std::uint64_t to;
  std::uint64_t numel;
};
void split(DType dtype, Range range, const std::byte* words, std::uint8_t* exponents,
           std::byte* sign_mantissa);
void merge(DType dtype, Range range, const std::uint8_t* exponents, const std::byte* sign_mantissa,
           std::byte* words);
// Exponents only.
void extract_exponents(DType dtype, Range range, const std::byte* words, std::uint8_t* exponents);

// `count` exponent bytes to and from their stored form.
void store_exponents(DType dtype, const std::uint8_t* exponents, std::uint64_t count,
                     std::byte* to);
void load_exponents(DType dtype, const std::byte* from, std::uint64_t count,
                    std::uint8_t* exponents);

}  // namespace ciera::codec::host
