// The decoding of coded changes: a warp decodes a segment (delta_segment.cuh).
#pragma once

#include "codec/cuda/delta_segment.cuh"

namespace ciera::codec::cuda {

// One block a multiprocessor, so that its tables are loaded once; segments are dealt out across
// blocks first, so that small shards reach many multiprocessors.
inline constexpr std::uint32_t kDeltaWarps = 32;
inline constexpr std::uint32_t kDeltaThreads = 32 * kDeltaWarps;

template <class Kind, bool kWide>
__device__ __forceinline__ void decode_segments(const DecodeCall& call, DeltaWarpShared& shared,
                                                const std::uint32_t* slots) {
  const DecodeState& state = *call.state;
  const std::byte* section = call.frame + state.header.last().offset;
  const bool high = state.delta.form == Effort::kHigh;
  const std::uint32_t* value_slots = call.delta_slots + value_slots_at(state.delta.prob_bits);
  bool good = true;
  for (std::uint64_t segment = static_cast<std::uint64_t>(warp_id()) * gridDim.x + blockIdx.x;
       segment < state.layout.segments;
       segment += kDeltaWarps * static_cast<std::uint64_t>(gridDim.x)) {
    DeltaSegment<Kind, kWide> decoder(call, segment_words(section, state.layout, segment), segment,
                                      shared);
    if (high) {
      decoder.decode_values(slots);
    } else {
      decoder.decode_quads(slots, value_slots);
    }
    good = decoder.good() && good;
    __syncwarp();  // the ring is about to be filled anew
  }
  if (!good && lane_id() == 0) {
    call.verdict->verdict = Verdict::kBadStream;  // every writer writes the same
  }
}

// `capacity`: slots that fit in shared memory; tables that do not, and words that are not aligned
// to quads (not `wide`), take a slower way. In form 0 the tables of values, which few quads need,
// stay in global memory.
template <class Kind>
__global__ void __launch_bounds__(kDeltaThreads, 1)
    delta_decode_kernel(const __grid_constant__ DecodeCall call, std::uint32_t capacity,
                        bool wide) {
  extern __shared__ uint4 delta_shared[];
  auto* warps = reinterpret_cast<DeltaWarpShared*>(delta_shared);
  auto* slots = reinterpret_cast<std::uint32_t*>(warps + kDeltaWarps);
  const DecodeState& state = *call.state;
  if (*call.refused != 0 || state.header.kind != wire::Kind::kDelta ||
      state.header.last().coder != Coder::kRans || blockIdx.x >= state.layout.segments) {
    return;
  }
  const DeltaHead& head = state.delta;
  const bool high = head.form == Effort::kHigh;
  const std::uint32_t* tables =
      call.delta_slots + (high ? value_slots_at(head.prob_bits) : std::uint64_t{0});
  const std::uint32_t size = (high ? head.value.contexts : head.quad.contexts) << head.prob_bits;
  const bool fits = size <= capacity;
  for (std::uint32_t i = threadIdx.x; fits && i < size / 4; i += kDeltaThreads) {
    reinterpret_cast<uint4*>(slots)[i] = reinterpret_cast<const uint4*>(tables)[i];
  }
  __syncthreads();  // the tables are whole
  if (fits && wide) {
    decode_segments<Kind, true>(call, warps[warp_id()], slots);
  } else {
    decode_segments<Kind, false>(call, warps[warp_id()], fits ? slots : tables);
  }
}

// The launch of that kernel, in a file for each group of kinds.
void launch_float_changes(const DecodeCall& call, int multiprocessors, cudaStream_t stream);
void launch_opaque_changes(const DecodeCall& call, int multiprocessors, cudaStream_t stream);

}  // namespace ciera::codec::cuda
