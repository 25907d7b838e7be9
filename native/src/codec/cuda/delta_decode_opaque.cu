#include "codec/cuda/delta_decode_launch.cuh"

namespace ciera::codec::cuda {

void launch_opaque_changes(const DecodeCall& call, int multiprocessors, cudaStream_t stream) {
  with_opaque_kind(call.expected, [&](auto kind) {
    launch_changes_as<decltype(kind)>(call, multiprocessors, stream);
  });
}

}  // namespace ciera::codec::cuda
