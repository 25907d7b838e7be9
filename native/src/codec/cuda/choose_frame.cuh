// The decision that ends coding, whichever the coder (docs/wire-format.md, sections 2 and 4).
#pragma once

#include "codec/cuda/encode_state.hpp"

namespace ciera::codec::cuda {

// One thread. Writes state.header: exponents coded in `coded` bytes or stored, frame raw or not.
// `may`: coding succeeded, or was asked for at all.
__device__ inline void choose_frame(const FrameParams& params, EncodeState& state,
                                    std::uint64_t coded, bool may) {
  const std::uint64_t stored = stored_exponent_bytes(params.dtype, state.symbols);
  const bool shrinks = may && state.symbols != 0 && coded < stored;
  wire::FrameHeader header =
      make_header(params, is_delta(params) ? wire::Kind::kDelta : wire::Kind::kKey);
  header.last().bytes = shrinks ? coded : stored;
  header.last().coder = shrinks ? params.coder : Coder::kRaw;
  wire::lay_out(header);
  const wire::FrameHeader raw = make_header(params, wire::Kind::kRaw);
  if (header.frame_bytes >= raw.frame_bytes) {
    header = raw;
    state.changed_blocks = block_count(params.numel, params.block_size);
  }
  state.header = header;
}

}  // namespace ciera::codec::cuda
