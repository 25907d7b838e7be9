// Little-endian loads and stores at any alignment. Shared by host and GPU.
#pragma once

#include <bit>
#include <cstddef>
#include <cstring>

#include "base/host_device.hpp"

namespace ciera::base {

static_assert(std::endian::native == std::endian::little, "the wire format is little-endian");

template <class T>
CIERA_HD T load_le(const std::byte* from) {
  T number;
  memcpy(&number, from, sizeof number);
  return number;
}

template <class T>
CIERA_HD void store_le(std::byte* to, T number) {
  memcpy(to, &number, sizeof number);
}

}  // namespace ciera::base
