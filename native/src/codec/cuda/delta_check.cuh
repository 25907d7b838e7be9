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
#pragma unroll 8  // loads under way before the first is looked at
  for (std::uint64_t s = threadIdx.x; s < layout.segments; s += kThreads) {
    const std::uint32_t before = s == 0 ? 0 : ends[s - 1];
    const std::uint32_t end = ends[s];
    const bool covers = s + 1 != layout.segments || end == layout.word_count;
    good = good & (end >= before) & covers;
  }
  return __syncthreads_and(good ? 1 : 0) != 0;
}

struct DeltaCheck {
  struct Shared {
    DeltaHead head;
    RansLayout layout;
    Verdict verdict;
    alignas(16) std::byte section[kDeltaMaxTableBytes];
  };

  // The section's first bytes, which are there after a barrier.
  __device__ static void load_head(const std::byte* frame, const wire::Section& section,
                                   Shared& shared) {
    const std::byte* bytes = frame + section.offset;  // aligned to 16
    const std::uint64_t vectors = head_bytes(section) / 16;
    for (std::uint64_t i = threadIdx.x; i < vectors; i += kThreads) {
      reinterpret_cast<uint4*>(shared.section)[i] = reinterpret_cast<const uint4*>(bytes)[i];
    }
    const std::uint64_t at = 16 * vectors + threadIdx.x;
    if (at < head_bytes(section)) {
      shared.section[at] = bytes[at];
    }
  }

  // Of the section's first bytes: one thread walks from table to table, of which it reads the ends
  // only.
  __device__ static void read_head(const DecodeCall& call, const wire::Section& section,
                                   std::uint64_t symbols, Shared& shared) {
    const auto word_bits = static_cast<std::uint32_t>(
        8 * own_reference_bytes(call.expected.mode, call.expected.dtype));
    shared.verdict = read_delta_head(shared.section, head_bytes(section), word_bits, &shared.head);
    if (shared.verdict == Verdict::kOk) {
      shared.verdict = lay_out_delta(shared.head, section.bytes, symbols, &shared.layout);
    }
  }

  // Leaves head and layout in the call's state. The same verdict in every thread of the block; all
  // of them call it, once the number of changed values is known and a coded section's head is
  // there.
  __device__ static Verdict check(const DecodeCall& call, const wire::Section& section,
                                  std::uint64_t symbols, Shared& shared) {
    if (section.coder != Coder::kRans) {
      return section.bytes == stored_change_bytes(call.expected, symbols) ? Verdict::kOk
                                                                          : Verdict::kBadSizes;
    }
    if (threadIdx.x == 0) {
      read_head(call, section, symbols, shared);
    }
    __syncthreads();  // its verdict and the layout are there
    if (shared.verdict != Verdict::kOk) {
      return shared.verdict;
    }
    if (threadIdx.x == 0) {
      call.state->delta = shared.head;
      call.state->layout = shared.layout;
    }
    return check_segment_ends(call.frame + section.offset, shared.layout) ? Verdict::kOk
                                                                          : Verdict::kBadStream;
  }

 private:
  __device__ static std::uint64_t head_bytes(const wire::Section& section) {
    return section.bytes < kDeltaMaxTableBytes ? section.bytes : kDeltaMaxTableBytes;
  }
};

}  // namespace ciera::codec::cuda
