#include <cuda_runtime_api.h>

#include "exec/pointer_device.hpp"

namespace ciera::exec {

std::optional<int> pointer_device(const void* memory) {
  cudaPointerAttributes attributes{};
  if (memory == nullptr || cudaPointerGetAttributes(&attributes, memory) != cudaSuccess) {
    cudaGetLastError();  // not for the next caller to find
    return {};
  }
  const bool on_gpu =
      attributes.type == cudaMemoryTypeDevice || attributes.type == cudaMemoryTypeManaged;
  return on_gpu ? std::optional(attributes.device) : std::nullopt;
}

}  // namespace ciera::exec
