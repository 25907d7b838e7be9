// What launches and the division of scratch have in common.
#pragma once

#include <algorithm>
#include <cstdint>

namespace ciera::codec::cuda {

constexpr std::uint64_t align256(std::uint64_t bytes) { return (bytes + 255) / 256 * 256; }

inline unsigned grid_for(std::uint64_t work, std::uint64_t most) {
  return static_cast<unsigned>(std::clamp<std::uint64_t>(work, 1, most));
}

// Whether vectors of 16 bytes can be read and written there.
inline bool is_wide(const void* address) {
  return reinterpret_cast<std::uintptr_t>(address) % 16 == 0;
}

}  // namespace ciera::codec::cuda
