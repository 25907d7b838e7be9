#include <algorithm>

#include "codec/cuda/changed_list.cuh"
#include "codec/cuda/delta_decode_kernels.cuh"
#include "codec/cuda/delta_words.cuh"
#include "exec/cuda_check.hpp"

namespace ciera::codec::cuda {
namespace {

// The first kTableGrid blocks make a table each, the others the list of changed blocks.
__global__ void __launch_bounds__(kThreads)
    delta_prepare_kernel(const __grid_constant__ DecodeCall call, ListArgs list) {
  __shared__ TableBlock::Shared shared;
  if (blockIdx.x >= kTableGrid) {
    list_changed(list, blockIdx.x - kTableGrid, gridDim.x - kTableGrid);
    return;
  }
  const wire::FrameHeader& header = call.state->header;
  if (*call.refused == 0 && header.kind == wire::Kind::kDelta &&
      header.last().coder == Coder::kRans) {
    TableBlock::make(call, blockIdx.x, shared);
  }
}

template <class V>
void launch_words_as(const DecodeCall& call, int multiprocessors, cudaStream_t stream) {
  const std::uint64_t bytes = call.expected.numel * element_bytes(call.expected.dtype);
  const auto grid = static_cast<unsigned>(std::clamp<std::uint64_t>(
      ceil_div(bytes, kWarps * kPieceBytes), 1, 8ULL * static_cast<unsigned>(multiprocessors)));
  words_kernel<V><<<grid, kThreads, 0, stream>>>(call);
  CIERA_CUDA_TRY(cudaGetLastError());
}

}  // namespace

void launch_changes(const DecodeCall& call, int multiprocessors, cudaStream_t stream) {
  const ListArgs list = changed_list_args(call);
  const auto grid = static_cast<unsigned>(kTableGrid + list_grid(list.tiles, multiprocessors));
  delta_prepare_kernel<<<grid, kThreads, 0, stream>>>(call, list);
  CIERA_CUDA_TRY(cudaGetLastError());
  if (!is_word_delta(call.expected) || has_exponent(call.expected.dtype)) {
    launch_float_changes(call, multiprocessors, stream);
  } else {
    launch_opaque_changes(call, multiprocessors, stream);
  }
}

void launch_words(const DecodeCall& call, int multiprocessors, cudaStream_t stream) {
  const std::uint64_t block_bytes = call.expected.block_size * element_bytes(call.expected.dtype);
  const std::uint64_t aligned = reinterpret_cast<std::uintptr_t>(call.dst) |
                                reinterpret_cast<std::uintptr_t>(call.exponents) | block_bytes;
  if (aligned % 16 == 0) {
    launch_words_as<uint4>(call, multiprocessors, stream);
  } else if (aligned % 8 == 0) {
    launch_words_as<uint2>(call, multiprocessors, stream);
  } else if (aligned % 4 == 0) {
    launch_words_as<std::uint32_t>(call, multiprocessors, stream);
  } else if (aligned % 2 == 0) {
    launch_words_as<std::uint16_t>(call, multiprocessors, stream);
  } else {
    launch_words_as<std::uint8_t>(call, multiprocessors, stream);
  }
}

}  // namespace ciera::codec::cuda
