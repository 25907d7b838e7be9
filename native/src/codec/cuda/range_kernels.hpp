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

// Sets *differs when `bytes` bytes at `a` and `b` are not the same; stops reading soon after it has
// found that out. `differs` is zero before, in host memory that the GPU can write.
void launch_find_difference(const std::byte* a, const std::byte* b, std::uint64_t bytes,
                            unsigned* differs, int multiprocessors, cudaStream_t stream);

}  // namespace ciera::codec::cuda
