// The frame checksum (docs/wire-format.md, section 6), by all threads of a launch.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/splitmix64.hpp"
#include "codec/cuda/block_ops.cuh"

namespace ciera::codec::cuda {

// This thread's share of the sum over bytes [from, to) of a frame (docs/wire-format.md, section 6),
// its checksum field as it stands, when `blocks` blocks of threads share the work and this is
// number `block`. `frame` is aligned to 16 bytes; from is a multiple of 8, and so is `to` unless it
// is the frame's end.
__device__ inline std::uint64_t checksum_share(const std::byte* frame, std::uint64_t from,
                                               std::uint64_t to, unsigned block, unsigned blocks) {
  const auto word = [frame, to](std::uint64_t at) {  // zero-filled
    if (at + 8 <= to) {
      return base::keyed(*reinterpret_cast<const std::uint64_t*>(frame + at), at / 8,
                         base::kGamma0);
    }
    std::uint64_t last = 0;
    for (std::uint64_t b = at; b < to; ++b) {
      last |= static_cast<std::uint64_t>(frame[b]) << (8 * (b - at));
    }
    return base::keyed(last, at / 8, base::kGamma0);
  };
  const std::uint64_t stride = static_cast<std::uint64_t>(blocks) * kThreads;
  const std::uint64_t start = static_cast<std::uint64_t>(block) * kThreads + threadIdx.x;
  const std::uint64_t first_pair = (from + 15) / 16;
  const std::uint64_t last_pair = to / 16;
  const auto* pairs = reinterpret_cast<const ulonglong2*>(frame);
  std::uint64_t sum = 0;
  const auto share = [](const ulonglong2& pair, std::uint64_t i) {
    return base::keyed(pair.x, 2 * i, base::kGamma0) +
           base::keyed(pair.y, 2 * i + 1, base::kGamma0);
  };
  constexpr std::uint32_t kAtOnce = 4;  // loads under way before the first is used
  std::uint64_t i = first_pair + start;
  for (; i + (kAtOnce - 1) * stride < last_pair; i += kAtOnce * stride) {
    ulonglong2 loaded[kAtOnce];
#pragma unroll
    for (std::uint32_t k = 0; k < kAtOnce; ++k) {
      loaded[k] = pairs[i + k * stride];
    }
#pragma unroll
    for (std::uint32_t k = 0; k < kAtOnce; ++k) {
      sum += share(loaded[k], i + k * stride);
    }
  }
  for (; i < last_pair; i += stride) {
    sum += share(pairs[i], i);
  }
  if (start == 0 && from < to) {  // what is left at both ends
    if (from % 16 != 0) {
      sum += word(from);
    }
    for (std::uint64_t at = 16 * (last_pair > first_pair ? last_pair : first_pair); at < to;
         at += 8) {
      sum += word(at);
    }
  }
  return sum;
}

__device__ inline std::uint64_t finish_checksum(std::uint64_t sum, std::uint64_t frame_bytes) {
  const std::uint64_t checksum = base::mix(sum + frame_bytes);
  return checksum == 0 ? 1 : checksum;
}

}  // namespace ciera::codec::cuda
