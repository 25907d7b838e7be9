// The frequency table of a rans section, made by one block of threads (docs/wire-format.md, section
// 4).
#pragma once

#include "codec/cuda/block_ops.cuh"
#include "codec/cuda/encode_state.hpp"

namespace ciera::codec::cuda {

// Makes frequencies in shared memory sum to `wanted`, as normalise_counts does. One warp; lane l
// holds symbols 8l to 8l + 7.
__device__ inline void adjust_in_warp(std::uint32_t (&frequencies)[256], std::uint32_t wanted) {
  std::uint32_t own[8];
  std::uint32_t sum = 0;
#pragma unroll
  for (std::uint32_t i = 0; i < 8; ++i) {
    own[i] = frequencies[8 * lane_id() + i];
    sum += own[i];
  }
  sum = __reduce_add_sync(kFullWarp, sum);
  // Frequencies above, symbols below: of equal frequencies the lowest symbol is the largest.
  const auto largest_but = [&own](std::uint32_t left_out) {
    std::uint32_t best = 0;
#pragma unroll
    for (std::uint32_t i = 0; i < 8; ++i) {
      const std::uint32_t symbol = 8 * lane_id() + i;
      const std::uint32_t key = symbol == left_out ? 0 : own[i] << 8 | (255 - symbol);
      best = key > best ? key : best;
    }
    return __reduce_max_sync(kFullWarp, best);
  };
  const auto add = [&own](std::uint32_t symbol, std::uint32_t difference) {
#pragma unroll
    for (std::uint32_t i = 0; i < 8; ++i) {
      own[i] += 8 * lane_id() + i == symbol ? difference : 0;
    }
  };
  if (sum < wanted) {
    add(255 - (largest_but(256) & 0xFF), wanted - sum);
  }
  while (sum > wanted) {  // as many steps at once as the largest stays the largest
    const std::uint32_t best = largest_but(256);
    const std::uint32_t symbol = 255 - (best & 0xFF);
    const std::uint32_t other = largest_but(symbol) >> 8;
    const std::uint32_t second = other == 0 ? 1 : other;
    const std::uint32_t lead = best >> 8 > second ? (best >> 8) - second : 1;
    const std::uint32_t taken = lead < sum - wanted ? lead : sum - wanted;
    add(symbol, 0U - taken);
    sum -= taken;
  }
#pragma unroll
  for (std::uint32_t i = 0; i < 8; ++i) {
    frequencies[8 * lane_id() + i] = own[i];
  }
}

// What coding a symbol needs, each in a register of its own, since the arithmetic pipe is what the
// coder is bound by. x: where a word is emitted, frequency * 2^(31 - n); y: the reciprocal; z: what
// to add; w: 2^n - frequency in bits 5 to 16, the shift in bits 0 to 4, where a funnel shift looks
// for it. The quotient is the upper half of the state times the reciprocal, shifted; a frequency of
// 1, whose reciprocal has 33 bits, takes one less and adds the difference.
__device__ inline uint4 pack_entry(const RansEncodeSymbol& symbol, std::uint32_t prob_bits) {
  const std::uint32_t cum = symbol.packed & 0xFFF;
  const std::uint32_t rest = symbol.packed >> 12 & 0x1FFF;
  const std::uint32_t shift = symbol.packed >> 25;
  const std::uint32_t emit = ((1U << prob_bits) - rest) << (31 - prob_bits);
  if (shift == 0) {
    return {emit, 0xFFFFFFFFU, cum + rest, rest << 5};
  }
  return {emit, symbol.reciprocal, cum, rest << 5 | (shift - 1)};
}

// Writes state.frequencies, state.table and state.table_bytes for state.counts, whose sum is
// `symbols`, and clears the counts. All kThreads threads of one block, a symbol each, after their
// counts are visible.
__device__ inline void build_encode_table(EncodeState& state, std::uint64_t symbols) {
  __shared__ std::uint32_t frequencies[256];
  __shared__ std::uint32_t sums[kWarps];
  const std::uint32_t symbol = threadIdx.x;
  const std::uint64_t count = state.counts[symbol];
  state.counts[symbol] = 0;
  frequencies[symbol] = count == 0 ? 0 : frequency_share(count, symbols, kRansProbBits);
  __syncthreads();  // all shares are there
  if (warp_id() == 0 && symbols != 0) {
    adjust_in_warp(frequencies, 1U << kRansProbBits);
  }
  __syncthreads();  // the frequencies are final
  const std::uint32_t frequency = frequencies[symbol];
  const std::uint32_t end = block_inclusive_scan(frequency, sums);
  state.frequencies[symbol] = frequency;
  if (frequency != 0) {
    state.table[symbol] =
        pack_entry(make_encode_symbol(frequency, end - frequency, kRansProbBits), kRansProbBits);
  }
  const unsigned mask = __ballot_sync(kFullWarp, frequency != 0);
  __syncthreads();  // the sums have been read
  if (lane_id() == 0) {
    sums[warp_id()] = mask;
  }
  __syncthreads();  // the bits of all warps are there
  if (symbol == 0) {
    std::uint32_t present = 0;
    std::uint32_t first = 256;
    std::uint32_t last = 0;
    for (std::uint32_t w = 0; w < kWarps; ++w) {
      present += __popc(sums[w]);
      if (sums[w] != 0) {
        first = first == 256 ? 32 * w + __ffs(sums[w]) - 1 : first;
        last = 32 * w + 31 - __clz(sums[w]);
      }
    }
    state.table_bytes = symbols == 0 ? 0 : rans_table_bytes(first, last, present);
  }
}

// Writes the section's table as write_rans_table does. All threads of one block of kThreads.
__device__ inline void write_table_in_block(const EncodeState& state, std::uint32_t segment_log2,
                                            std::byte* to) {
  __shared__ std::uint32_t frequencies[256];
  __shared__ std::uint32_t ranks[kWarps];
  __shared__ unsigned present_bits[kWarps];
  const std::uint32_t symbol = threadIdx.x;
  const std::uint32_t frequency = state.frequencies[symbol];
  frequencies[symbol] = frequency;
  const unsigned mask = __ballot_sync(kFullWarp, frequency != 0);
  if (lane_id() == 0) {
    present_bits[warp_id()] = mask;
    ranks[warp_id()] = __popc(mask);
  }
  __syncthreads();  // bits and counts of all warps are there
  std::uint32_t before = __popc(mask & ((1U << lane_id()) - 1));
  std::uint32_t present = 0;
  std::uint32_t first = 256;
  std::uint32_t last = 0;
  for (std::uint32_t w = 0; w < kWarps; ++w) {
    before += w < warp_id() ? ranks[w] : 0;
    present += ranks[w];
    if (present_bits[w] != 0) {
      first = first == 256 ? 32 * w + __ffs(present_bits[w]) - 1 : first;
      last = 32 * w + 31 - __clz(present_bits[w]);
    }
  }
  const std::uint32_t presence = (last - first + 8) / 8;
  const std::uint32_t bytes = rans_table_bytes(first, last, present);
  if (frequency != 0) {
    base::store_le(to + 12 + presence + 2 * before, static_cast<std::uint8_t>(frequency - 1));
    base::store_le(to + 13 + presence + 2 * before,
                   static_cast<std::uint8_t>((frequency - 1) >> 8));
  }
  if (threadIdx.x < presence) {
    std::uint32_t bits = 0;
    for (std::uint32_t i = 0; i < 8; ++i) {
      const std::uint32_t s = first + 8 * threadIdx.x + i;
      bits |= (s <= last && frequencies[s] != 0 ? 1U : 0U) << i;
    }
    to[12 + threadIdx.x] = static_cast<std::byte>(bits);
  }
  if (threadIdx.x == 0) {
    base::store_le(to, state.symbols);
    base::store_le(to + 8, static_cast<std::uint8_t>(kRansProbBits));
    base::store_le(to + 9, static_cast<std::uint8_t>(segment_log2));
    base::store_le(to + 10, static_cast<std::uint8_t>(first));
    base::store_le(to + 11, static_cast<std::uint8_t>(last));
    for (std::uint32_t at = 12 + presence + 2 * present; at < bytes; ++at) {
      to[at] = std::byte{0};
    }
  }
}

}  // namespace ciera::codec::cuda
