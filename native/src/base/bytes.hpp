// Little-endian loads and stores at any alignment.
#pragma once

#include <bit>
#include <cstddef>
#include <cstring>

namespace ciera::base {

static_assert(std::endian::native == std::endian::little, "the wire format is little-endian");

template <class T>
T load_le(const std::byte* from) {
  T number;
  std::memcpy(&number, from, sizeof number);
  return number;
}

template <class T>
void store_le(std::byte* to, T number) {
  std::memcpy(to, &number, sizeof number);
}

}  // namespace ciera::base
