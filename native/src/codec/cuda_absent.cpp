// Stands in for codec/cuda in a build without a CUDA compiler.
#include "ciera/error.hpp"
#include "codec/cuda/cuda_backend.hpp"

namespace ciera::codec::cuda {

CudaSupport cuda_support() { return {false, "this build has no CUDA; build it where nvcc is"}; }

std::unique_ptr<CodecBackend> make_cuda_backend(int, Coder) {
  throw Error(ErrorCode::kNoDevice,
              cuda_support().detail + ", or use the CPU (backend host, in Python device=\"cpu\")");
}

}  // namespace ciera::codec::cuda
