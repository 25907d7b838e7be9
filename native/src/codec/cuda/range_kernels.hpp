// Small work on many ranges of GPU memory at once.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

namespace ciera::codec::cuda {

struct DeviceRange {
  const std::byte* data;
  std::uint64_t bytes;
};

// Sets *nonzero when a byte of a range is not zero. `ranges` is GPU memory or host memory that the
// GPU can read.
void launch_find_nonzero(const DeviceRange* ranges, std::uint64_t count, unsigned* nonzero,
                         cudaStream_t stream);

}  // namespace ciera::codec::cuda
