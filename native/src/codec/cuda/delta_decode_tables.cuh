// The decoding tables of a changes section, one block of threads a context.
#pragma once

#include "codec/cuda/decode_state.hpp"
#include "codec/cuda/delta_tables.cuh"
#include "codec/cuda/lane_stream.cuh"

namespace ciera::codec::cuda {

// What a context without frequencies is full of: no other slot's offset exceeds its frequency.
inline constexpr std::uint32_t kUnusedSlot = 1U << 8;

// Where the slots of value contexts begin among those of all contexts, when n is prob_bits.
CIERA_HD constexpr std::uint64_t value_slots_at(std::uint32_t prob_bits) {
  return std::uint64_t{kMaxQuadContexts} << prob_bits;
}

struct TableBlock {
  using Shared = ContextTable;

  // Writes the 2^prob_bits slots of a context, from its shares.
  __device__ static void fill(std::uint32_t share, bool used, std::uint32_t prob_bits,
                              std::uint32_t* slots, Shared& shared) {
    shared.settle(share, used, prob_bits);
#pragma unroll 4
    for (std::uint32_t slot = threadIdx.x; slot < 1U << prob_bits; slot += kThreads) {
      const std::uint32_t symbol = symbol_of_slot(shared.cum, slot);
      slots[slot] = used ? arrange_slot(make_decode_slot(symbol, shared.frequencies[symbol],
                                                         slot - shared.cum[symbol]))
                         : kUnusedSlot;
    }
  }

  static __device__ std::uint32_t quad_share(const std::byte* section, std::uint32_t context,
                                             std::uint32_t prob_bits, Shared& shared) {
    if (threadIdx.x < kQuadParameters) {
      shared.model.parameters[threadIdx.x] =
          quad_parameter(section, kQuadParameters * context + threadIdx.x);
    }
    __syncthreads();  // the model is there
    return shared.quad_share(prob_bits);
  }

  static __device__ std::uint32_t value_share(const std::byte* section,
                                              const ValueTablePlace& place, std::uint32_t prob_bits,
                                              Shared& shared) {
    const std::uint32_t at = threadIdx.x - place.first;  // below `count` for those in the table
    return shared.value_share(at < place.count ? value_code(section + place.at, at) : 0, prob_bits);
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
