#include "codec/cuda/changed_list.cuh"
#include "exec/cuda_check.hpp"

namespace ciera::codec::cuda {
namespace {

__global__ void __launch_bounds__(kThreads) list_kernel(ListArgs args) {
  list_changed(args, blockIdx.x, gridDim.x);
}

}  // namespace

void launch_changed_list(const ListArgs& args, int multiprocessors, cudaStream_t stream) {
  list_kernel<<<static_cast<unsigned>(list_grid(args.tiles, multiprocessors)), kThreads, 0,
                stream>>>(args);
  CIERA_CUDA_TRY(cudaGetLastError());
}

}  // namespace ciera::codec::cuda
