// Sums, scans and turns that the kernels share. A block has kThreads threads.
#pragma once

#include <cstdint>

#include "codec/cuda/device_values.cuh"

namespace ciera::codec::cuda {

inline constexpr std::uint32_t kThreads = 256;
inline constexpr std::uint32_t kWarps = kThreads / 32;

__device__ inline std::uint32_t lane_id() { return threadIdx.x % 32; }
__device__ inline std::uint32_t warp_id() { return threadIdx.x / 32; }

template <class T>
__device__ T warp_sum(T value) {
#pragma unroll
  for (int step = 16; step > 0; step /= 2) {
    value += __shfl_down_sync(kFullWarp, value, step);
  }
  return value;  // whole in lane 0
}

// The sum over the block, in every thread. `shared` holds kWarps entries and may be used again
// after the next barrier.
template <class T>
__device__ T block_sum(T value, T* shared) {
  value = warp_sum(value);
  if (lane_id() == 0) {
    shared[warp_id()] = value;
  }
  __syncthreads();
  T sum = 0;
#pragma unroll
  for (std::uint32_t w = 0; w < kWarps; ++w) {
    sum += shared[w];
  }
  return sum;
}

// The sum of the values of this lane and those before it.
template <class T>
__device__ T warp_inclusive_scan(T value) {
#pragma unroll
  for (int step = 1; step < 32; step *= 2) {
    const T left = __shfl_up_sync(kFullWarp, value, step);
    value += lane_id() >= step ? left : 0;
  }
  return value;
}

// The sum of the values of this thread and those before it. `shared` as in block_sum.
template <class T>
__device__ T block_inclusive_scan(T value, T* shared) {
  value = warp_inclusive_scan(value);
  if (lane_id() == 31) {
    shared[warp_id()] = value;
  }
  __syncthreads();
  for (std::uint32_t w = 0; w < warp_id(); ++w) {
    value += shared[w];
  }
  return value;
}

// Replaces counts[0, size) in global memory by the sums of those before, and returns the whole sum
// in every thread. All threads of the block take part.
template <class Count>
__device__ std::uint64_t block_exclusive_scan(Count* counts, std::uint64_t size,
                                              std::uint64_t* shared) {
  // Each thread owns a run, so that its sums need one pass over the block only.
  const std::uint64_t run = (size + kThreads - 1) / kThreads;
  const std::uint64_t from = threadIdx.x * run < size ? threadIdx.x * run : size;
  const std::uint64_t to = from + run < size ? from + run : size;
  std::uint64_t own = 0;
  for (std::uint64_t i = from; i < to; ++i) {
    own += counts[i];
  }
  const std::uint64_t before = warp_inclusive_scan(own);
  __syncthreads();  // `shared` may still be read from an earlier use
  if (lane_id() == 31) {
    shared[warp_id()] = before;
  }
  __syncthreads();
  std::uint64_t total = 0;
  std::uint64_t base = 0;
  for (std::uint32_t w = 0; w < kWarps; ++w) {
    base += w < warp_id() ? shared[w] : 0;
    total += shared[w];
  }
  std::uint64_t sum = base + before - own;
  for (std::uint64_t i = from; i < to; ++i) {
    const Count count = counts[i];
    counts[i] = static_cast<Count>(sum);
    sum += count;
  }
  return total;
}

// The symbol that a slot of a decoding table belongs to, from the first slot of each symbol: the
// last one that begins at or before it.
__device__ inline std::uint32_t symbol_of_slot(const std::uint32_t (&cum)[256],
                                               std::uint32_t slot) {
  std::uint32_t symbol = 0;
#pragma unroll
  for (std::uint32_t bit = 128; bit > 0; bit /= 2) {
    symbol += cum[symbol + bit] <= slot ? bit : 0;
  }
  return symbol;
}

// True in every thread of the block that comes last of all blocks of the launch; what the others
// wrote before is visible to it then. The ticket is back at zero for the next launch.
__device__ inline bool last_block(unsigned* ticket) {
  __shared__ bool last;
  __threadfence();
  __syncthreads();  // every thread's writes are fenced before the ticket is drawn
  if (threadIdx.x == 0) {
    last = atomicAdd(ticket, 1U) == gridDim.x - 1;
    if (last) {
      *ticket = 0;
    }
  }
  __syncthreads();
  __threadfence();
  return last;
}

}  // namespace ciera::codec::cuda
