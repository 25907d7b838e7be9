#include "codec/cuda/launch_shape.hpp"
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

// Threads of a block look at a piece of neighbouring vectors at a time, and stop when one of them
// has found a difference; other blocks see the flag at their next piece.
template <class Vector>
__global__ void find_difference_kernel(const Vector* a, const Vector* b, std::uint64_t vectors,
                                       volatile unsigned* differs) {
  constexpr std::uint32_t kPiece = 8;
  const std::uint64_t stride = static_cast<std::uint64_t>(gridDim.x) * blockDim.x * kPiece;
  for (std::uint64_t base = static_cast<std::uint64_t>(blockIdx.x) * blockDim.x * kPiece;
       base < vectors; base += stride) {
    bool found = false;
#pragma unroll
    for (std::uint32_t k = 0; k < kPiece; ++k) {
      const std::uint64_t i = base + k * blockDim.x + threadIdx.x;
      found = found || (i < vectors && a[i] != b[i]);
    }
    if (__syncthreads_or(found ? 1 : 0) != 0) {
      *differs = 1;
      return;
    }
    if (__syncthreads_or(threadIdx.x == 0 && *differs != 0 ? 1 : 0) != 0) {
      return;
    }
  }
}

template <class Vector>
void find_difference(const std::byte* a, const std::byte* b, std::uint64_t bytes, unsigned* differs,
                     int multiprocessors, cudaStream_t stream) {
  find_difference_kernel<<<grid_for(bytes / sizeof(Vector) / 2048, 8ULL * multiprocessors), 256, 0,
                           stream>>>(reinterpret_cast<const Vector*>(a),
                                     reinterpret_cast<const Vector*>(b), bytes / sizeof(Vector),
                                     differs);
  CIERA_CUDA_TRY(cudaGetLastError());
}

}  // namespace

void launch_find_difference(const std::byte* a, const std::byte* b, std::uint64_t bytes,
                            unsigned* differs, int multiprocessors, cudaStream_t stream) {
  if ((reinterpret_cast<std::uintptr_t>(a) | reinterpret_cast<std::uintptr_t>(b) | bytes) % 8 ==
      0) {
    find_difference<std::uint64_t>(a, b, bytes, differs, multiprocessors, stream);
  } else {
    find_difference<std::uint8_t>(a, b, bytes, differs, multiprocessors, stream);
  }
}

void launch_find_nonzero(const DeviceRange* ranges, std::uint64_t count, unsigned* nonzero,
                         cudaStream_t stream) {
  constexpr std::uint64_t kBlock = 128;
  find_nonzero_kernel<<<static_cast<unsigned>((count + kBlock - 1) / kBlock), kBlock, 0, stream>>>(
      ranges, count, nonzero);
  CIERA_CUDA_TRY(cudaGetLastError());
}

}  // namespace ciera::codec::cuda
