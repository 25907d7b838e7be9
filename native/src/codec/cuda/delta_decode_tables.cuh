// The decoding tables of a changes section, one block of threads a context.
#pragma once

#include "codec/cuda/decode_state.hpp"
#include "codec/cuda/lane_stream.cuh"
#include "codec/cuda/table_kernels.cuh"

namespace ciera::codec::cuda {

inline constexpr unsigned kTableGrid = kMaxQuadContexts + kMaxValueContexts;
// What a context without frequencies is full of: no other slot's offset exceeds its frequency.
inline constexpr std::uint32_t kUnusedSlot = 1U << 8;

// Where the slots of value contexts begin among those of all contexts, when n is prob_bits.
CIERA_HD constexpr std::uint64_t value_slots_at(std::uint32_t prob_bits) {
  return std::uint64_t{kMaxQuadContexts} << prob_bits;
}

// Thread s owns symbol s.
struct TableBlock {
  struct Shared {
    QuadModel model;
    std::int32_t least[kWarps];
    std::uint64_t sums[kWarps];
    std::uint64_t rare_sums[kWarps];
    std::uint32_t scan[kWarps];
    std::uint32_t frequencies[256];
    std::uint32_t cum[256];
  };

  __device__ static std::int32_t block_min(std::int32_t value, std::int32_t* shared) {
    const std::int32_t least = __reduce_min_sync(kFullWarp, value);
    if (lane_id() == 0) {
      shared[warp_id()] = least;
    }
    __syncthreads();  // those of all warps are there
    value = shared[0];
    for (std::uint32_t w = 1; w < kWarps; ++w) {
      value = shared[w] < value ? shared[w] : value;
    }
    return value;
  }

  // As quad_frequencies, up to the shares: this thread's, not yet made to fill the range.
  __device__ static std::uint32_t quad_share(const std::byte* section, std::uint32_t context,
                                             std::uint32_t prob_bits, Shared& shared) {
    const std::uint32_t byte = threadIdx.x;
    if (byte < kQuadParameters) {
      shared.model.parameters[byte] = quad_parameter(section, kQuadParameters * context + byte);
    }
    __syncthreads();  // the parameters are there
    const std::int32_t score = half_score(shared.model, 0, byte & 15) +
                               half_score(shared.model, 1, byte >> 4) +
                               moved_score(shared.model, byte);
    const std::int32_t least = block_min(score < kImpossible ? score : kImpossible, shared.least);
    const std::uint64_t weight = weight_of_score(static_cast<std::uint32_t>(score - least));
    const std::uint64_t sum = block_sum(weight, shared.sums);
    const bool rare = is_rare_quad(byte, weight, sum, prob_bits);
    const std::uint64_t rare_sum = block_sum(rare ? weight : std::uint64_t{0}, shared.rare_sums);
    const std::uint64_t mark = rare_sum == 0 ? 1 : rare_sum;
    const ShareOf share(sum - rare_sum + mark, prob_bits);
    return byte == kMark ? share(mark) : rare ? 0 : share(weight);
  }

  // As value_frequencies, up to the shares.
  __device__ static std::uint32_t value_share(const std::byte* section,
                                              const ValueTablePlace& place, std::uint32_t prob_bits,
                                              Shared& shared) {
    const std::uint32_t at = threadIdx.x - place.first;  // below `count` for those in the table
    const std::uint64_t weight =
        at < place.count ? code_weight(value_code(section + place.at, at)) : 0;
    const std::uint64_t sum = block_sum(weight, shared.sums);
    return weight == 0 ? 0 : ShareOf(sum, prob_bits)(weight);
  }

  // Writes the 2^prob_bits slots of a context.
  __device__ static void fill(std::uint32_t share, bool used, std::uint32_t prob_bits,
                              std::uint32_t* slots, Shared& shared) {
    const std::uint32_t size = 1U << prob_bits;
    shared.frequencies[threadIdx.x] = share;
    __syncthreads();  // all shares are there
    if (warp_id() == 0 && used) {
      adjust_in_warp(shared.frequencies, size);
    }
    __syncthreads();  // the frequencies are final
    const std::uint32_t frequency = shared.frequencies[threadIdx.x];
    shared.cum[threadIdx.x] = block_inclusive_scan(frequency, shared.scan) - frequency;
    __syncthreads();  // every symbol's first slot is there
#pragma unroll 4
    for (std::uint32_t slot = threadIdx.x; slot < size; slot += kThreads) {
      const std::uint32_t symbol = symbol_of_slot(shared.cum, slot);
      slots[slot] = used ? arrange_slot(make_decode_slot(symbol, shared.frequencies[symbol],
                                                         slot - shared.cum[symbol]))
                         : kUnusedSlot;
    }
  }

  // Number `table`: of the quad contexts, then of the value contexts. Without value contexts the
  // first one is unused, so that any value turns out to be wrong.
  __device__ static void make(const DecodeCall& call, unsigned table, Shared& shared) {
    const DecodeState& state = *call.state;
    const DeltaHead& head = state.delta;
    const std::byte* section = call.frame + state.header.last().offset;
    if (table < kMaxQuadContexts) {
      if (table < head.quad.contexts) {
        fill(quad_share(section, table, head.prob_bits, shared), true, head.prob_bits,
             call.delta_slots + (table << head.prob_bits), shared);
      }
      return;
    }
    const std::uint32_t context = table - kMaxQuadContexts;
    if (context < head.value.contexts || context == 0) {
      const ValueTablePlace place =
          head.value.contexts == 0 ? ValueTablePlace{} : head.value_tables[context];
      fill(value_share(section, place, head.prob_bits, shared), place.count != 0, head.prob_bits,
           call.delta_slots + value_slots_at(head.prob_bits) + (context << head.prob_bits), shared);
    }
  }
};

}  // namespace ciera::codec::cuda
