// The check of an nvcomp-ans section: after it, nothing that the frame says leads out of it.
#pragma once

#include "codec/cuda/block_ops.cuh"
#include "codec/cuda/decode_state.hpp"
#include "codec/nvcomp_section.hpp"

namespace ciera::codec::cuda {

// The same verdict in every thread of the block; all of them call it.
__device__ inline Verdict check_nvcomp_section(const DecodeCall& call) {
  const DecodeState& state = *call.state;
  const wire::Section& section = state.header.last();
  const std::byte* bytes = call.frame + section.offset;
  const Verdict head =
      check_nvcomp_head(bytes, section.bytes, state.symbols, call.expected.nvcomp_major);
  if (head != Verdict::kOk) {
    return head;  // all threads have read the same
  }
  bool bad_padding = false;
  bool bad_table = false;
  const std::uint64_t chunks = nvcomp_chunks(state.symbols);
  for (std::uint64_t c = threadIdx.x; c < chunks; c += kThreads) {
    const Verdict verdict = check_nvcomp_chunk(bytes, section.bytes, c, chunks);
    bad_padding = bad_padding || verdict == Verdict::kBadPadding;
    bad_table = bad_table || verdict == Verdict::kBadTable;
  }
  const bool any_padding = __syncthreads_or(bad_padding ? 1 : 0) != 0;
  const bool any_table = __syncthreads_or(bad_table ? 1 : 0) != 0;
  return any_padding ? Verdict::kBadPadding : any_table ? Verdict::kBadTable : Verdict::kOk;
}

}  // namespace ciera::codec::cuda
