#include "exec/cuda_stream.hpp"
#include "exec/stream_ops.hpp"

namespace ciera::exec {
namespace {

cudaStream_t native(DeviceStream stream) { return static_cast<cudaStream_t>(stream.handle); }

}  // namespace

bool has_streams() { return true; }

std::shared_ptr<void> record_point(DeviceStream stream) {
  const CudaDeviceGuard guard(stream.device);
  auto event = std::make_shared<CudaEvent>();
  event->record(native(stream));
  return event;
}

void hold_until(DeviceStream stream, const std::shared_ptr<void>& point) {
  const CudaDeviceGuard guard(stream.device);
  static_cast<const CudaEvent*>(point.get())->hold(native(stream));
}

void copy_on(DeviceStream stream, std::span<std::byte> to, std::span<const std::byte> from) {
  const CudaDeviceGuard guard(stream.device);
  CIERA_CUDA_TRY(
      cudaMemcpyAsync(to.data(), from.data(), from.size(), cudaMemcpyDefault, native(stream)));
}

void wait_for(DeviceStream stream) {
  const CudaDeviceGuard guard(stream.device);
  CIERA_CUDA_TRY(cudaStreamSynchronize(native(stream)));
}

}  // namespace ciera::exec
