#include "codec/cuda/encode_state.hpp"
#include "codec/cuda/launch_shape.hpp"
#include "codec/cuda/nvcomp_state.hpp"
#include "codec/cuda/rans_encode_kernels.cuh"
#include "codec/cuda/split_kernels.cuh"
#include "exec/cuda_check.hpp"

namespace ciera::codec::cuda {
namespace {

struct ScratchSizes {
  std::uint64_t words, segment_words, segment_states, tile_changed, list, exponents;
};

ScratchSizes scratch_sizes(const FrameParams& params) {
  const bool nvcomp = params.coder == Coder::kNvcompAns;
  const std::uint64_t segments = nvcomp ? 0 : rans_segments(params.numel, params.segment_log2);
  return {align256(2 * (segments << params.segment_log2)),
          align256(4 * segments),
          align256(kRansStateBytes * segments),
          align256(4 * tile_count(params.numel, params.block_size)),
          align256(4 * (block_count(params.numel, params.block_size) + kListPadding)),
          nvcomp ? align256(params.numel + 16) : 0};
}

SplitArgs split_args(const EncodeCall& call) {
  const FrameParams& params = call.params;
  const bool delta = is_delta(params);
  const wire::FrameHeader header =
      make_header(params, delta ? wire::Kind::kDelta : wire::Kind::kKey);
  return {.src = call.src,
          .numel = params.numel,
          .block_size = params.block_size,
          .tile_blocks = tile_blocks(params.numel, params.block_size),
          .tiles = tile_count(params.numel, params.block_size),
          .wide = is_wide(call.src),
          .frame = call.frame,
          .sign_mantissa = header.sections[delta ? 1 : 0].offset,
          .bitmap = header.sections[0].offset,
          .old_hashes = call.old_hashes,
          .new_hashes = params.mode == ReuseMode::kExponentBlock ? call.new_hashes : nullptr,
          .tile_changed = call.scratch.tile_changed,
          .state = call.state};
}

template <class Format>
void launch_split_as(const EncodeCall& call, int multiprocessors, cudaStream_t stream) {
  const SplitArgs args = split_args(call);
  const unsigned grid = grid_for(args.tiles, 8ULL * multiprocessors);
  if (is_delta(call.params)) {
    split_kernel<Format, true><<<grid, kThreads, 0, stream>>>(args);
  } else {
    split_kernel<Format, false><<<grid, kThreads, 0, stream>>>(args);
  }
  CIERA_CUDA_TRY(cudaGetLastError());
}

template <class Format>
void launch_rans_encode(const EncodeCall& call, cudaStream_t stream) {
  const FrameParams& params = call.params;
  const std::uint64_t segments = rans_segments(params.numel, params.segment_log2);
  const unsigned grid = grid_for(ceil_div(segments, kEncodeWarps), 1U << 30);
  const RansEncodeArgs args{params, call.src, call.scratch, call.state};
  if (is_delta(params)) {
    rans_encode_kernel<Format, true><<<grid, 32 * kEncodeWarps, 0, stream>>>(args);
  } else {
    rans_encode_kernel<Format, false><<<grid, 32 * kEncodeWarps, 0, stream>>>(args);
  }
  CIERA_CUDA_TRY(cudaGetLastError());
}

template <class Format>
void launch_encode_as(const EncodeCall& call, int multiprocessors, cudaStream_t stream) {
  const FrameParams& params = call.params;
  launch_split_as<Format>(call, multiprocessors, stream);
  if (is_delta(params)) {
    const SplitArgs args = split_args(call);
    launch_changed_list(
        {call.frame + args.bitmap, block_count(params.numel, params.block_size), args.tile_blocks,
         args.tiles, args.tile_changed, call.scratch.list, nullptr},
        multiprocessors, stream);
  }
  const unsigned grid = grid_for(ceil_div(params.numel, 8ULL * kThreads), 8ULL * multiprocessors);
  if (call.nvcomp != nullptr) {
    gather_kernel<Format><<<grid, kThreads, 0, stream>>>(
        {params, call.scratch, call.state, call.src, is_wide(call.src), call.frame});
    CIERA_CUDA_TRY(cudaGetLastError());
    launch_nvcomp_encode(call, stream);
  } else {
    launch_rans_encode<Format>(call, stream);
  }
  assemble_kernel<Format><<<grid, kThreads, 0, stream>>>(
      {params, call.scratch, call.state, call.src, is_wide(call.src), call.frame});
  CIERA_CUDA_TRY(cudaGetLastError());
  if (call.nvcomp != nullptr) {
    launch_nvcomp_assemble(call, multiprocessors, stream);
  }
  seal_kernel<Format><<<grid, kThreads, 0, stream>>>(
      call.state, call.frame, block_count(params.numel, params.block_size), call.result);
  CIERA_CUDA_TRY(cudaGetLastError());
}

}  // namespace

std::size_t encode_scratch_bytes(const FrameParams& params) {
  const ScratchSizes sizes = scratch_sizes(params);
  return sizes.words + sizes.segment_words + sizes.segment_states + sizes.tile_changed +
         sizes.list + sizes.exponents;
}

EncodeScratch divide_encode_scratch(const FrameParams& params, std::byte* scratch) {
  const ScratchSizes sizes = scratch_sizes(params);
  EncodeScratch parts{};
  parts.words = reinterpret_cast<std::uint16_t*>(scratch);
  scratch += sizes.words;
  parts.segment_words = reinterpret_cast<std::uint32_t*>(scratch);
  scratch += sizes.segment_words;
  parts.segment_states = reinterpret_cast<std::uint32_t*>(scratch);
  scratch += sizes.segment_states;
  parts.tile_changed = reinterpret_cast<std::uint32_t*>(scratch);
  scratch += sizes.tile_changed;
  parts.list = reinterpret_cast<std::uint32_t*>(scratch);
  scratch += sizes.list;
  parts.exponents = reinterpret_cast<std::uint8_t*>(scratch);
  return parts;
}

void launch_encode(const EncodeCall& call, int multiprocessors, cudaStream_t stream) {
  switch (call.params.dtype) {
    case DType::kBf16:
      return launch_encode_as<Bf16>(call, multiprocessors, stream);
    case DType::kFp16:
      return launch_encode_as<Fp16>(call, multiprocessors, stream);
    default:
      return launch_encode_as<Fp32>(call, multiprocessors, stream);
  }
}

void launch_split(const EncodeCall& call, int multiprocessors, cudaStream_t stream) {
  switch (call.params.dtype) {
    case DType::kBf16:
      return launch_split_as<Bf16>(call, multiprocessors, stream);
    case DType::kFp16:
      return launch_split_as<Fp16>(call, multiprocessors, stream);
    default:
      return launch_split_as<Fp32>(call, multiprocessors, stream);
  }
}

}  // namespace ciera::codec::cuda
