#include <algorithm>

#include "codec/cuda/changed_list.cuh"
#include "exec/cuda_check.hpp"

namespace ciera::codec::cuda {
namespace {

// A warp owns a tile; where its part of the list begins is known from the scan.
__global__ void __launch_bounds__(kThreads) list_kernel(ListArgs args) {
  if (args.without != nullptr && *args.without != 0) {
    return;
  }
  const std::uint64_t stride = static_cast<std::uint64_t>(gridDim.x) * kWarps;
  for (std::uint64_t tile = static_cast<std::uint64_t>(blockIdx.x) * kWarps + warp_id();
       tile < args.tiles; tile += stride) {
    std::uint32_t at = args.tile_changed[tile];
    const std::uint64_t first = tile * args.tile_blocks;
    const std::uint64_t end =
        first + args.tile_blocks < args.blocks ? first + args.tile_blocks : args.blocks;
    for (std::uint64_t base = first; base < end; base += 32) {
      const std::uint64_t block = base + lane_id();
      const bool set = block < end && is_set(args.bitmap, block);
      const unsigned mask = __ballot_sync(kFullWarp, set);
      if (set) {
        args.list[at + __popc(mask & ((1U << lane_id()) - 1))] = static_cast<std::uint32_t>(block);
      }
      at += __popc(mask);
    }
  }
}

}  // namespace

void launch_changed_list(const ListArgs& args, int multiprocessors, cudaStream_t stream) {
  const std::uint64_t blocks =
      std::clamp<std::uint64_t>(ceil_div(args.tiles, kWarps), 1, 8ULL * multiprocessors);
  list_kernel<<<static_cast<unsigned>(blocks), kThreads, 0, stream>>>(args);
  CIERA_CUDA_TRY(cudaGetLastError());
}

}  // namespace ciera::codec::cuda
