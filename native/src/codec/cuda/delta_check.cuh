// The check of a coded changes section: its head, the places of its tables, and the ends of its
// segments. After it, nothing that the frame says leads out of it.
#pragma once

#include "codec/cuda/block_ops.cuh"
#include "codec/cuda/decode_state.hpp"

namespace ciera::codec::cuda {

// Whether segments cover the words, in order. The same in every thread of the block; all of them
// call it.
__device__ inline bool check_segment_ends(const std::byte* section, const RansLayout& layout) {
  const auto* ends = reinterpret_cast<const std::uint32_t*>(section + layout.ends);
  bool good = true;
  for (std::uint64_t s = threadIdx.x; s < layout.segments; s += kThreads) {
    good = good && (s == 0 || ends[s] >= ends[s - 1]);
    good = good && (s + 1 != layout.segments || ends[s] == layout.word_count);
  }
  return __syncthreads_and(good ? 1 : 0) != 0;
}

struct DeltaCheck {
  struct Shared {
    DeltaHead head;
    RansLayout layout;
    Verdict verdict;
    std::byte section[kDeltaMaxTableBytes];
  };

  // Of the section's first bytes, in shared memory: one thread walks from table to table, of which
  // it reads the ends only.
  __device__ static void read_head(const DecodeCall& call, std::uint64_t available,
                                   Shared& shared) {
    const DecodeState& state = *call.state;
    const auto word_bits = static_cast<std::uint32_t>(
        8 * own_reference_bytes(call.expected.mode, call.expected.dtype));
    shared.verdict = read_delta_head(shared.section, available, word_bits, &shared.head);
    if (shared.verdict == Verdict::kOk) {
      shared.verdict =
          lay_out_delta(shared.head, state.header.last().bytes, state.symbols, &shared.layout);
    }
  }

  // Leaves head and layout in the call's state. The same verdict in every thread of the block; all
  // of them call it, once the number of changed values is known.
  __device__ static Verdict check(const DecodeCall& call, Shared& shared) {
    DecodeState& state = *call.state;
    const wire::Section& section = state.header.last();
    const std::byte* bytes = call.frame + section.offset;
    if (section.coder != Coder::kRans) {
      return section.bytes == stored_change_bytes(call.expected, state.symbols)
                 ? Verdict::kOk
                 : Verdict::kBadSizes;
    }
    const std::uint64_t head =
        section.bytes < kDeltaMaxTableBytes ? section.bytes : kDeltaMaxTableBytes;
    for (std::uint64_t i = threadIdx.x; i < head; i += kThreads) {
      shared.section[i] = bytes[i];
    }
    __syncthreads();  // the head is there
    if (threadIdx.x == 0) {
      read_head(call, head, shared);
    }
    __syncthreads();  // its verdict and the layout are there
    if (shared.verdict != Verdict::kOk) {
      return shared.verdict;
    }
    if (threadIdx.x == 0) {
      state.delta = shared.head;
      state.layout = shared.layout;
    }
    return check_segment_ends(bytes, shared.layout) ? Verdict::kOk : Verdict::kBadStream;
  }
};

}  // namespace ciera::codec::cuda
