#include "ciera/devices.hpp"

#include <utility>

#include "codec/cuda/cuda_backend.hpp"
#include "exec/pointer_device.hpp"

namespace ciera {

DeviceSupport cuda_support() {
  codec::cuda::CudaSupport support = codec::cuda::cuda_support();
  return {support.available, std::move(support.detail)};
}

std::optional<int> device_of(const void* memory) { return exec::pointer_device(memory); }

}  // namespace ciera
