// The frame checksum (docs/wire-format.md, section 6), by all threads of a launch.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/splitmix64.hpp"
#include "codec/cuda/block_ops.cuh"

namespace ciera::codec::cuda {

// This thread's share of the sum over a frame's words (docs/wire-format.md, section 6), its
// checksum field as it stands. `frame` is aligned to 16 bytes.
__device__ inline std::uint64_t checksum_share(const std::byte* frame, std::uint64_t bytes) {
  const std::uint64_t pairs = bytes / 16;
  const std::uint64_t stride = static_cast<std::uint64_t>(gridDim.x) * kThreads;
  const std::uint64_t start = static_cast<std::uint64_t>(blockIdx.x) * kThreads + threadIdx.x;
  const auto* words = reinterpret_cast<const ulonglong2*>(frame);
  std::uint64_t sum = 0;
#pragma unroll 4
  for (std::uint64_t i = start; i < pairs; i += stride) {
    const ulonglong2 pair = words[i];
    sum +=
        base::keyed(pair.x, 2 * i, base::kGamma0) + base::keyed(pair.y, 2 * i + 1, base::kGamma0);
  }
  if (start == 0) {  // the last words, zero-filled
    for (std::uint64_t at = 16 * pairs; at < bytes; at += 8) {
      std::uint64_t word = 0;
      for (std::uint64_t b = 0; b < 8 && at + b < bytes; ++b) {
        word |= static_cast<std::uint64_t>(frame[at + b]) << (8 * b);
      }
      sum += base::keyed(word, at / 8, base::kGamma0);
    }
  }
  return sum;
}

__device__ inline std::uint64_t finish_checksum(std::uint64_t sum, std::uint64_t frame_bytes) {
  const std::uint64_t checksum = base::mix(sum + frame_bytes);
  return checksum == 0 ? 1 : checksum;
}

}  // namespace ciera::codec::cuda
