// Stands in for exec/cuda_stream_ops.cpp in a build without a CUDA compiler.
#include "ciera/error.hpp"
#include "exec/stream_ops.hpp"

namespace ciera::exec {
namespace {

[[noreturn]] void throw_absent() {
  throw Error(ErrorCode::kNoDevice, "this build has no CUDA; build it where nvcc is");
}

}  // namespace

bool has_streams() { return false; }
std::shared_ptr<void> record_point(DeviceStream) { throw_absent(); }
void hold_until(DeviceStream, const std::shared_ptr<void>&) { throw_absent(); }
void copy_on(DeviceStream, std::span<std::byte>, std::span<const std::byte>) { throw_absent(); }
void wait_for(DeviceStream) { throw_absent(); }

}  // namespace ciera::exec
