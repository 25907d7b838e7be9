// The decoding of coded changes: a warp decodes a segment (delta_segment.cuh).
#pragma once

#include "codec/cuda/delta_segment.cuh"

namespace ciera::codec::cuda {

// One block a multiprocessor, so that its tables are loaded once; segments are dealt out across
// blocks first, so that small shards reach many multiprocessors.
inline constexpr std::uint32_t kDeltaWarps = 32;
inline constexpr std::uint32_t kDeltaThreads = 32 * kDeltaWarps;

struct DeltaBlockShared {
  DeltaWarpShared warps[kDeltaWarps];
  QuadEntry entries[256];  // of every symbol of a quad
};

// Where tables are: those of quads (form 1: of values), and of the values behind quads.
struct DeltaSlots {
  const std::uint32_t* items;
  const std::uint32_t* values;
};

template <class Kind, bool kWide>
__device__ __forceinline__ void decode_segments(const DecodeCall& call, DeltaBlockShared& shared,
                                                const DeltaSlots& slots) {
  const DecodeState& state = *call.state;
  const std::byte* section = call.frame + state.header.last().offset;
  const bool high = state.delta.form == Effort::kHigh;
  bool good = true;
  for (std::uint64_t segment = static_cast<std::uint64_t>(warp_id()) * gridDim.x + blockIdx.x;
       segment < state.layout.segments;
       segment += kDeltaWarps * static_cast<std::uint64_t>(gridDim.x)) {
    DeltaSegment<Kind, kWide> decoder(call, segment_words(section, state.layout, segment), segment,
                                      shared.warps[warp_id()]);
    if (high) {
      decoder.decode_values(slots.items);
    } else {
      decoder.decode_quads(slots.items, slots.values, shared.entries);
    }
    good = decoder.good() && good;
    __syncwarp();  // the ring is about to be filled anew
  }
  if (!good && lane_id() == 0) {
    call.verdict->verdict = Verdict::kBadStream;  // every writer writes the same
  }
}

__device__ inline void copy_slots(std::uint32_t* to, const std::uint32_t* from,
                                  std::uint32_t count) {
  for (std::uint32_t i = threadIdx.x; i < count / 4; i += kDeltaThreads) {
    reinterpret_cast<uint4*>(to)[i] = reinterpret_cast<const uint4*>(from)[i];
  }
}

// `capacity`: slots that fit in shared memory; tables that do not, and words that are not aligned
// to quads (not `wide`), take a slower way. The tables of values behind quads go there when there
// is room left.
template <class Kind>
__global__ void __launch_bounds__(kDeltaThreads, 1)
    delta_decode_kernel(const __grid_constant__ DecodeCall call, std::uint32_t capacity,
                        bool wide) {
  extern __shared__ uint4 delta_shared[];
  auto& shared = *reinterpret_cast<DeltaBlockShared*>(delta_shared);
  auto* slots = reinterpret_cast<std::uint32_t*>(&shared + 1);
  const DecodeState& state = *call.state;
  if (*call.refused != 0 || state.header.kind != wire::Kind::kDelta ||
      state.header.last().coder != Coder::kRans || blockIdx.x >= state.layout.segments) {
    return;
  }
  const DeltaHead& head = state.delta;
  const bool high = head.form == Effort::kHigh;
  const std::uint32_t* values = call.delta_slots + value_slots_at(head.prob_bits);
  const std::uint32_t* items = high ? values : call.delta_slots;
  const std::uint32_t size = (high ? head.value.contexts : head.quad.contexts) << head.prob_bits;
  const bool fits = size <= capacity;
  if (fits) {
    copy_slots(slots, items, size);
    const std::uint32_t rest = max(head.value.contexts, 1U) << head.prob_bits;
    if (!high && size + rest <= capacity) {
      copy_slots(slots + size, values, rest);
      values = slots + size;
    }
  }
  if (threadIdx.x < 256) {
    shared.entries[threadIdx.x] = QuadEntry::of(threadIdx.x);
  }
  __syncthreads();  // the tables are whole
  if (fits && wide) {
    decode_segments<Kind, true>(call, shared, {slots, values});
  } else {
    decode_segments<Kind, false>(call, shared, {fits ? slots : items, values});
  }
}

// The launch of that kernel, in a file for each group of kinds.
void launch_float_changes(const DecodeCall& call, int multiprocessors, cudaStream_t stream);
void launch_opaque_changes(const DecodeCall& call, int multiprocessors, cudaStream_t stream);

}  // namespace ciera::codec::cuda
