// Frequencies of a context of a coded changes section, made by one block of threads: thread s owns
// byte or symbol s. The results are those of delta_model.hpp (docs/wire-format.md, section 11).
#pragma once

#include "codec/cuda/block_ops.cuh"
#include "codec/cuda/table_kernels.cuh"
#include "codec/delta_model.hpp"

namespace ciera::codec::cuda {

// A block of threads for each context there may be.
inline constexpr unsigned kTableGrid = kMaxQuadContexts + kMaxValueContexts;

struct ContextTable {
  QuadModel model;
  std::int32_t least[kWarps];
  std::uint64_t sums[kWarps];
  std::uint64_t rare_sums[kWarps];
  std::uint32_t scan[kWarps];
  std::uint32_t frequencies[256];
  std::uint32_t cum[256];

  // The smallest of all threads' values, in each.
  __device__ std::int32_t block_min(std::int32_t value) {
    const std::int32_t warp_least = __reduce_min_sync(kFullWarp, value);
    __syncthreads();  // an earlier use may still be read
    if (lane_id() == 0) {
      least[warp_id()] = warp_least;
    }
    __syncthreads();  // those of all warps are there
    value = least[0];
    for (std::uint32_t w = 1; w < kWarps; ++w) {
      value = least[w] < value ? least[w] : value;
    }
    return value;
  }

  // As quad_weights: this thread's. The model is there.
  __device__ std::uint64_t quad_weight(bool inflated) {
    const std::uint32_t byte = threadIdx.x;
    const std::int32_t score = half_score(model, 0, byte & 15) + half_score(model, 1, byte >> 4) +
                               (inflated ? moved_score(model, byte) : 0);
    const std::int32_t best = block_min(score < kImpossible ? score : kImpossible);
    return weight_of_score(static_cast<std::uint32_t>(score - best));
  }

  // As quad_frequencies, up to the shares: this thread's, not yet made to fill the range.
  __device__ std::uint32_t quad_share(std::uint32_t prob_bits) {
    const std::uint64_t weight = quad_weight(true);
    const std::uint64_t sum = block_sum(weight, sums);
    const bool rare = is_rare_quad(threadIdx.x, weight, sum, prob_bits);
    const std::uint64_t rare_sum = block_sum(rare ? weight : std::uint64_t{0}, rare_sums);
    const std::uint64_t mark = rare_sum == 0 ? 1 : rare_sum;
    const std::uint64_t own = threadIdx.x == kMark ? mark : rare ? 0 : weight;
    return own == 0 ? 0 : frequency_share(own, sum - rare_sum + mark, prob_bits);
  }

  // As value_frequencies, up to the shares.
  __device__ std::uint32_t value_share(std::uint32_t code, std::uint32_t prob_bits) {
    const std::uint64_t weight = code_weight(code);
    const std::uint64_t sum = block_sum(weight, sums);
    return weight == 0 ? 0 : frequency_share(weight, sum, prob_bits);
  }

  // Makes shares fill the range, when the context is used at all; leaves frequencies and where each
  // symbol's slots begin.
  __device__ void settle(std::uint32_t share, bool used, std::uint32_t prob_bits) {
    frequencies[threadIdx.x] = share;
    __syncthreads();  // all shares are there
    if (warp_id() == 0 && used) {
      adjust_in_warp(frequencies, 1U << prob_bits);
    }
    __syncthreads();  // the frequencies are final
    const std::uint32_t frequency = frequencies[threadIdx.x];
    cum[threadIdx.x] = block_inclusive_scan(frequency, scan) - frequency;
    __syncthreads();  // every symbol's first slot is there
  }
};

}  // namespace ciera::codec::cuda
