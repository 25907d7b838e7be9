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

template <class Format>
void launch_exponents_as(const DecodeCall& call, int multiprocessors, cudaStream_t stream) {
  if (call.nvcomp != nullptr) {
    launch_nvcomp_decode(call,
                         stream);  // before the next kernel puts its exponents in their places
  }
  // The frame says how long its segments are; the host guesses the sender's choice, and the grid
  // strides over the rest. Where a delta frame is likely, which leaves nothing to do in word-delta,
  // no more blocks than fit on the GPU at once.
  const std::uint64_t segments = rans_segments(call.expected.numel, call.expected.segment_log2);
  const bool rare = is_delta(call.expected) && is_word_delta(call.expected);
  const std::uint64_t most = rare ? 8ULL * static_cast<unsigned>(multiprocessors) : 1ULL << 30;
  if (segments > 0) {
    rans_decode_kernel<Format>
        <<<grid_for(ceil_div(segments, kDecodeWarps), most), 32 * kDecodeWarps, 0, stream>>>(call);
    CIERA_CUDA_TRY(cudaGetLastError());
  }
  launch_merge_as<Format>(call, multiprocessors, stream);
}

void launch_exponents(const DecodeCall& call, int multiprocessors, cudaStream_t stream) {
  switch (call.expected.dtype) {
    case DType::kBf16:
      return launch_exponents_as<Bf16>(call, multiprocessors, stream);
    case DType::kFp16:
      return launch_exponents_as<Fp16>(call, multiprocessors, stream);
    default:
      return launch_exponents_as<Fp32>(call, multiprocessors, stream);
  }
}

}  // namespace

std::size_t decode_list_bytes(const FrameParams& params) {
  return align256(4 * (block_count(params.numel, params.block_size) + kListPadding));
}

std::size_t delta_slot_bytes(const FrameParams& params) {
  constexpr std::size_t kSlots = (kMaxQuadContexts + kMaxValueContexts) << kRansMaxProbBits;
  return params.mode >= ReuseMode::kExponentDelta ? 4 * kSlots : 0;
}

std::size_t quad_flag_bytes(const FrameParams& params) {
  // Whole chunks of 256 are read.
  return params.mode >= ReuseMode::kExponentDelta ? align256(ceil_div(params.numel, 4)) : 0;
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
  const bool words = is_word_delta(call.expected);
  if (is_delta(call.expected)) {
    if (call.expected.mode == ReuseMode::kExponentBlock) {
      launch_changed_list(changed_list_args(call), multiprocessors, stream);
    } else {
      launch_changes(call, multiprocessors, stream);
    }
  }
  if (has_exponent(call.expected.dtype)) {
    DecodeCall exponents = call;
    exponents.exponents = words ? nullptr : call.exponents;  // a WordCache holds none
    launch_exponents(exponents, multiprocessors, stream);
  }
  if (words) {
    launch_words(call, multiprocessors, stream);
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
