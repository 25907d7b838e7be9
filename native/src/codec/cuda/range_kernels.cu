#include "codec/cuda/range_kernels.hpp"
#include "exec/cuda_check.hpp"

namespace ciera::codec::cuda {
namespace {

// A thread owns a range: they are short.
__global__ void find_nonzero_kernel(const DeviceRange* ranges, std::uint64_t count,
                                    unsigned* nonzero) {
  const std::uint64_t i = static_cast<std::uint64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i >= count) {
    return;
  }
  const DeviceRange range = ranges[i];
  for (std::uint64_t b = 0; b < range.bytes; ++b) {
    if (range.data[b] != std::byte{0}) {
      atomicExch(nonzero, 1U);
    }
  }
}

}  // namespace

void launch_find_nonzero(const DeviceRange* ranges, std::uint64_t count, unsigned* nonzero,
                         cudaStream_t stream) {
  constexpr std::uint64_t kBlock = 128;
  find_nonzero_kernel<<<static_cast<unsigned>((count + kBlock - 1) / kBlock), kBlock, 0, stream>>>(
      ranges, count, nonzero);
  CIERA_CUDA_TRY(cudaGetLastError());
}

}  // namespace ciera::codec::cuda
