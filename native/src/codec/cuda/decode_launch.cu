#include <algorithm>

#include "codec/cuda/check_kernel.cuh"
#include "codec/cuda/decode_kernels.cuh"
#include "codec/cuda/decode_state.hpp"
#include "codec/cuda/nvcomp_state.hpp"
#include "exec/cuda_check.hpp"

namespace ciera::codec::cuda {
namespace {

constexpr std::uint64_t align256(std::uint64_t bytes) { return (bytes + 255) / 256 * 256; }

unsigned grid_for(std::uint64_t work, std::uint64_t most) {
  return static_cast<unsigned>(std::clamp<std::uint64_t>(work, 1, most));
}

template <class Format>
void launch_merge_as(const DecodeCall& call, int multiprocessors, cudaStream_t stream) {
  const bool wide = reinterpret_cast<std::uintptr_t>(call.dst) % 16 == 0;
  const std::uint64_t blocks = ceil_div(call.expected.numel, 8ULL * kThreads);
  merge_kernel<Format>
      <<<grid_for(blocks, 16ULL * multiprocessors), kThreads, 0, stream>>>(call, wide);
  CIERA_CUDA_TRY(cudaGetLastError());
}

void launch_list(const DecodeCall& call, int multiprocessors, cudaStream_t stream) {
  const FrameParams& expected = call.expected;
  const std::uint64_t tiles = tile_count(expected.numel, expected.block_size);
  const wire::FrameHeader header = make_header(expected, wire::Kind::kDelta);
  launch_changed_list(
      {call.frame + header.sections[0].offset, block_count(expected.numel, expected.block_size),
       tile_blocks(expected.numel, expected.block_size), tiles, call.tile_changed, call.list,
       &call.state->without_list},
      multiprocessors, stream);
}

template <class Format>
void launch_decode_as(const DecodeCall& call, int multiprocessors, cudaStream_t stream) {
  if (is_delta(call.expected)) {
    launch_list(call, multiprocessors, stream);
  }
  if (call.nvcomp != nullptr) {
    launch_nvcomp_decode(call,
                         stream);  // before the next kernel puts its exponents in their places
  }
  // The frame says how long its segments are; the host guesses the sender's choice, and the grid
  // strides over the rest.
  const std::uint64_t segments = rans_segments(call.expected.numel, call.expected.segment_log2);
  if (segments > 0) {
    rans_decode_kernel<Format>
        <<<grid_for(ceil_div(segments, kDecodeWarps), 1U << 30), 32 * kDecodeWarps, 0, stream>>>(
            call);
    CIERA_CUDA_TRY(cudaGetLastError());
  }
  launch_merge_as<Format>(call, multiprocessors, stream);
}

}  // namespace

std::size_t decode_list_bytes(const FrameParams& params) {
  return align256(4 * (block_count(params.numel, params.block_size) + kListPadding));
}

std::size_t decode_tile_bytes(const FrameParams& params) {
  return align256(4 * tile_count(params.numel, params.block_size));
}

void launch_check(const DecodeCall& call, int multiprocessors, cudaStream_t stream) {
  // One block more than the sum needs: the first one reads the frame meanwhile.
  const unsigned grid =
      1 + grid_for(ceil_div(call.frame_bytes, 64ULL * kThreads), 8ULL * multiprocessors);
  check_kernel<<<grid, kThreads, 0, stream>>>(call);
  CIERA_CUDA_TRY(cudaGetLastError());
}

void launch_decode(const DecodeCall& call, int multiprocessors, cudaStream_t stream) {
  switch (call.expected.dtype) {
    case DType::kBf16:
      return launch_decode_as<Bf16>(call, multiprocessors, stream);
    case DType::kFp16:
      return launch_decode_as<Fp16>(call, multiprocessors, stream);
    default:
      return launch_decode_as<Fp32>(call, multiprocessors, stream);
  }
}

void launch_merge(const DecodeCall& call, int multiprocessors, cudaStream_t stream) {
  switch (call.expected.dtype) {
    case DType::kBf16:
      return launch_merge_as<Bf16>(call, multiprocessors, stream);
    case DType::kFp16:
      return launch_merge_as<Fp16>(call, multiprocessors, stream);
    default:
      return launch_merge_as<Fp32>(call, multiprocessors, stream);
  }
}

}  // namespace ciera::codec::cuda
