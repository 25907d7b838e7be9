// How the decoding kernel of one kind of value is launched.
#pragma once

#include <algorithm>

#include "codec/cuda/delta_decode_kernels.cuh"
#include "exec/cuda_check.hpp"

namespace ciera::codec::cuda {

// Shared memory of a block: as many slots as encoders write at most, where the GPU has room.
template <class Kind>
std::uint32_t delta_slot_capacity() {
  int device = 0;
  int most = 0;
  CIERA_CUDA_TRY(cudaGetDevice(&device));
  CIERA_CUDA_TRY(cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, device));
  const auto room =
      static_cast<std::uint32_t>(most) - static_cast<std::uint32_t>(sizeof(DeltaBlockShared));
  return std::min(std::max(kMaxQuadContexts, kMaxValueContexts) << kDeltaProbBits, room / 4);
}

template <class Kind>
void launch_changes_as(const DecodeCall& call, int multiprocessors, cudaStream_t stream) {
  const auto aligned = [](const void* words) {
    return reinterpret_cast<std::uintptr_t>(words) % kQuadAlign<Kind> == 0;
  };
  const bool wide = call.expected.numel < (1ULL << 32) && aligned(call.exponents) &&
                    (aligned(call.dst) || !is_word_delta(call.expected));
  const std::uint32_t capacity = delta_slot_capacity<Kind>();
  const auto shared = static_cast<std::uint32_t>(sizeof(DeltaBlockShared) + 4 * capacity);
  CIERA_CUDA_TRY(cudaFuncSetAttribute(delta_decode_kernel<Kind>,
                                      cudaFuncAttributeMaxDynamicSharedMemorySize,
                                      static_cast<int>(shared)));
  // No more than one block for each of the shortest segments.
  const std::uint64_t segments = ceil_div(call.expected.numel, 1ULL << kRansMinSegmentLog2);
  const auto grid = static_cast<unsigned>(
      std::clamp<std::uint64_t>(segments, 1, static_cast<std::uint64_t>(multiprocessors)));
  delta_decode_kernel<Kind><<<grid, kDeltaThreads, shared, stream>>>(call, capacity, wide);
  CIERA_CUDA_TRY(cudaGetLastError());
}

}  // namespace ciera::codec::cuda
