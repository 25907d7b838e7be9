// Stands in for exec/cuda_pointer_device.cpp in a build without a CUDA compiler.
#include "exec/pointer_device.hpp"

namespace ciera::exec {

std::optional<int> pointer_device(const void*) { return {}; }

}  // namespace ciera::exec
