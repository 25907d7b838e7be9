// What ends the encode of a delta mode: stored changes, the frame put together, its checksum; and
// the exponents that exponent-delta starts from.
#pragma once

#include "codec/cuda/checksum.cuh"
#include "codec/cuda/delta_count_kernels.cuh"
#include "codec/cuda/stream_assembly.cuh"
#include "codec/cuda/value_groups.cuh"

namespace ciera::codec::cuda {

struct ExtractArgs {
  const std::byte* src;
  std::uint64_t numel;
  bool wide;  // src is aligned to 16 bytes
  std::uint8_t* exponents;
  std::uint8_t* sign_mantissa;  // the section; null: not written
};

template <class Format>
__global__ void __launch_bounds__(kThreads)
    extract_kernel(const __grid_constant__ ExtractArgs args) {
  const auto* src = reinterpret_cast<const typename Format::Word*>(args.src);
  const std::uint64_t stride = static_cast<std::uint64_t>(gridDim.x) * kThreads;
  for (std::uint64_t g = static_cast<std::uint64_t>(blockIdx.x) * kThreads + threadIdx.x;
       8 * g < args.numel; g += stride) {
    const std::uint64_t left = args.numel - 8 * g;
    const auto count = static_cast<std::uint32_t>(left < 8 ? left : 8);
    const Words8<Format> words = load_words<Format>(src, 8 * g, count, args.wide);
    if (args.sign_mantissa != nullptr) {
      SignMantissa<Format>::store(words, args.sign_mantissa, 8 * g, count, args.numel,
                                  [](std::uint64_t, std::uint64_t) {});
    }
    store_bytes(exponents_of<Format>(words), args.exponents + 8 * g, count);
  }
}

// The values of the changed blocks one after the other; those of exponent-delta packed as `Format`
// stores exponents.
template <class Kind, class Format>
__device__ void assemble_stored_changes(const DeltaCodeArgs& args, std::byte* section) {
  using Word = typename Kind::Word;
  const auto* now = reinterpret_cast<const Word*>(args.now);
  const std::uint32_t block_size = args.params.block_size;
  const std::uint64_t values = args.state->values;
  const std::uint64_t stride = static_cast<std::uint64_t>(gridDim.x) * kThreads;
  for (std::uint64_t g = static_cast<std::uint64_t>(blockIdx.x) * kThreads + threadIdx.x;
       8 * g < values; g += stride) {
    const std::uint64_t j = 8 * g;  // a group lies in one block: blocks are a multiple of 8
    const std::uint64_t value =
        static_cast<std::uint64_t>(args.scratch.list[j / block_size]) * block_size + j % block_size;
    const auto count = static_cast<std::uint32_t>(values - j < 8 ? values - j : 8);
    if constexpr (std::is_same_v<Kind, ExponentByte>) {
      store_exponents8<Format>(load_bytes(now + value, count),
                               reinterpret_cast<std::uint8_t*>(section), j, count);
    } else {
      auto* to = reinterpret_cast<Word*>(section) + j;
      for (std::uint32_t i = 0; i < count; ++i) {
        to[i] = now[value + i];
      }
    }
  }
}

template <class Kind, class Format>
__global__ void __launch_bounds__(kThreads)
    delta_assemble_kernel(const __grid_constant__ DeltaCodeArgs args) {
  __shared__ std::uint64_t shared[kWarps];
  const DeltaEncodeState& state = *args.state;
  const wire::FrameHeader& header = state.header;
  if (blockIdx.x == 0 && threadIdx.x == 0) {
    write_header_and_padding(header, args.frame);
  }
  if (header.kind != wire::Kind::kDelta) {
    return;  // what a raw frame holds is copied apart
  }
  std::byte* section = args.frame + header.last().offset;
  if (header.last().coder == Coder::kRaw) {
    assemble_stored_changes<Kind, Format>(args, section);
    return;
  }
  if (blockIdx.x == gridDim.x - 1) {
    for (std::uint32_t i = threadIdx.x; i < state.table_bytes; i += kThreads) {
      section[i] = state.table[i];
    }
  }
  assemble_streams({args.scratch.words, args.words_room, args.scratch.segment_words,
                    args.scratch.segment_states},
                   coded_segments(args), section + state.table_bytes, shared);
}

// For frames whose kind is known beforehand.
__global__ void set_header_kernel(DeltaEncodeState* state, wire::FrameHeader header,
                                  std::byte* frame) {
  state->header = header;
  state->changed_blocks =
      header.kind == wire::Kind::kSame ? 0 : block_count(header.numel, header.block_size);
  write_header_and_padding(header, frame);
}

// Writes the checksum and the result.
__global__ void __launch_bounds__(kThreads)
    delta_seal_kernel(DeltaEncodeState* state, std::byte* frame, EncodeResult* result) {
  __shared__ std::uint64_t shared[kWarps];
  const wire::FrameHeader& header = state->header;
  const std::uint64_t bytes = header.frame_bytes;
  const std::uint64_t sum =
      block_sum(checksum_share(frame, 0, bytes, blockIdx.x, gridDim.x), shared);
  if (threadIdx.x == 0) {
    atomicAdd(&state->checksum_sum, static_cast<unsigned long long>(sum));
  }
  if (last_block(&state->ticket) && threadIdx.x == 0) {
    const std::uint64_t checksum = finish_checksum(atomicExch(&state->checksum_sum, 0ULL), bytes);
    base::store_le(frame + wire::kChecksumOffset, checksum);
    result->frame_bytes = bytes;
    result->checksum = checksum;
    result->kind = static_cast<FrameKind>(header.kind);
    result->blocks = block_count(header.numel, header.block_size);
    result->changed_blocks = state->changed_blocks;
  }
}

}  // namespace ciera::codec::cuda
