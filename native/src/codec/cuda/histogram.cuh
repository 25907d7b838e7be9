// Counters of bytes in shared memory.
#pragma once

#include "codec/cuda/block_ops.cuh"

namespace ciera::codec::cuda {

// Counts of exponents or levels. Sixteen copies, one for each pair of lanes, since a few of them
// are very frequent and would queue up at one counter.
struct Histogram {
  static constexpr std::uint32_t kCopies = 16;
  std::uint32_t bins[256 * kCopies];

  __device__ void clear() {
    for (std::uint32_t i = threadIdx.x; i < 256 * kCopies; i += kThreads) {
      bins[i] = 0;
    }
  }
  __device__ void add_one(std::uint32_t value) {
    atomicAdd(bins + lane_id() % kCopies + value * kCopies, 1U);
  }
  __device__ void add(std::uint64_t exponents, std::uint32_t count) {
#pragma unroll
    for (std::uint32_t i = 0; i < 8; ++i) {
      if (i < count) {
        add_one(byte_of(exponents, i));
      }
    }
  }
  // Adds to the counters of all blocks; sums do not depend on the order.
  __device__ void flush(unsigned long long* counts) const {
    std::uint32_t sum = 0;
    for (std::uint32_t copy = 0; copy < kCopies; ++copy) {
      sum +=
          bins[threadIdx.x * kCopies + (copy + threadIdx.x) % kCopies];  // each lane another bank
    }
    if (sum != 0) {
      atomicAdd(&counts[threadIdx.x], static_cast<unsigned long long>(sum));
    }
  }
};

}  // namespace ciera::codec::cuda
