#include "codec/cuda/delta_decode_launch.cuh"

namespace ciera::codec::cuda {

void launch_float_changes(const DecodeCall& call, int multiprocessors, cudaStream_t stream) {
  with_float_kind(call.expected, [&](auto kind) {
    launch_changes_as<decltype(kind)>(call, multiprocessors, stream);
  });
}

}  // namespace ciera::codec::cuda
