// The frequency table of a rans section, made by one block of threads (docs/wire-format.md, section
// 4).
#pragma once

#include "codec/cuda/block_ops.cuh"
#include "codec/cuda/encode_state.hpp"

namespace ciera::codec::cuda {

// Frequencies from counts, as normalise_counts makes them: lane l of the warp holds symbols 8l to
// 8l + 7.
__device__ inline void normalise_in_warp(const unsigned long long* counts, std::uint64_t total,
                                         std::uint32_t (&own)[8]) {
  const std::uint32_t wanted = 1U << kRansProbBits;
  std::uint32_t sum = 0;
#pragma unroll
  for (std::uint32_t i = 0; i < 8; ++i) {
    const std::uint64_t count = counts[8 * lane_id() + i];
    own[i] = count == 0 ? 0 : frequency_share(count, total, kRansProbBits);
    sum += own[i];
  }
  sum = __reduce_add_sync(kFullWarp, sum);
  // Of equal frequencies the lowest symbol is the largest.
  const auto add_to_largest = [&own](std::uint32_t difference) {
    std::uint32_t best = 0;
#pragma unroll
    for (std::uint32_t i = 0; i < 8; ++i) {
      const std::uint32_t key = own[i] << 8 | (255 - (8 * lane_id() + i));
      best = key > best ? key : best;
    }
    const std::uint32_t symbol = 255 - (__reduce_max_sync(kFullWarp, best) & 0xFF);
#pragma unroll
    for (std::uint32_t i = 0; i < 8; ++i) {
      own[i] += 8 * lane_id() + i == symbol ? difference : 0;
    }
  };
  if (sum < wanted) {
    add_to_largest(wanted - sum);
  }
  for (; sum > wanted; --sum) {
    add_to_largest(static_cast<std::uint32_t>(-1));
  }
}

// Writes state.frequencies, state.table and state.table_bytes for state.counts, whose sum is
// `symbols`, and clears the counts. All threads of one block call it, after their counts are
// visible.
__device__ inline void build_encode_table(EncodeState& state, std::uint64_t symbols) {
  __syncthreads();
  if (warp_id() == 0) {
    std::uint32_t own[8] = {};
    if (symbols != 0) {
      normalise_in_warp(state.counts, symbols, own);
    }
    std::uint32_t sum = 0;
    std::uint32_t present = 0;
    std::uint32_t first = 256;
    std::uint32_t last = 0;
    for (std::uint32_t i = 0; i < 8; ++i) {
      const std::uint32_t symbol = 8 * lane_id() + i;
      sum += own[i];
      if (own[i] != 0) {
        ++present;
        first = first == 256 ? symbol : first;
        last = symbol;
      }
    }
    std::uint32_t cum = sum;
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
      const std::uint32_t left = __shfl_up_sync(kFullWarp, cum, step);
      cum += lane_id() >= step ? left : 0;
    }
    cum -= sum;
    for (std::uint32_t i = 0; i < 8; ++i) {
      const std::uint32_t symbol = 8 * lane_id() + i;
      state.frequencies[symbol] = own[i];
      if (own[i] != 0) {
        state.table[symbol] = make_encode_symbol(own[i], cum, kRansProbBits);
      }
      cum += own[i];
      state.counts[symbol] = 0;
    }
    present = __reduce_add_sync(kFullWarp, present);
    first = __reduce_min_sync(kFullWarp, first);
    last = __reduce_max_sync(kFullWarp, last);
    if (lane_id() == 0) {
      state.table_bytes = symbols == 0 ? 0 : rans_table_bytes(first, last, present);
    }
  }
  __syncthreads();
}

}  // namespace ciera::codec::cuda
