// What the GPU side of this library can do here. Works in a build without CUDA, and says so.
#pragma once

#include <optional>
#include <string>

namespace ciera {

// Whether a GPU can be used: how many, the name and compute capability of the first, or why none.
// Never throws.
struct DeviceSupport {
  bool available = false;
  std::string detail;
};
DeviceSupport cuda_support();

// The ordinal of the GPU that `memory` lies on (managed memory: that it was allocated for), or
// nothing for host memory, a null pointer and without a usable GPU. Never throws.
std::optional<int> device_of(const void* memory);

}  // namespace ciera
