// Streams, events and memory of a GPU as owned objects.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <string>

#include "ciera/error.hpp"
#include "exec/cuda_check.hpp"
#include "exec/cuda_device_guard.hpp"
#include "exec/memory.hpp"

namespace ciera::exec {

// A stream that is not ordered with the default stream. Made with its GPU current.
class CudaStream {
 public:
  CudaStream() { CIERA_CUDA_TRY(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking)); }
  ~CudaStream() { cudaStreamDestroy(stream_); }
  CudaStream(const CudaStream&) = delete;
  CudaStream& operator=(const CudaStream&) = delete;
  cudaStream_t get() const { return stream_; }

 private:
  cudaStream_t stream_ = nullptr;
};

class CudaEvent {
 public:
  CudaEvent() { CIERA_CUDA_TRY(cudaEventCreateWithFlags(&event_, cudaEventDisableTiming)); }
  ~CudaEvent() { cudaEventDestroy(event_); }
  CudaEvent(const CudaEvent&) = delete;
  CudaEvent& operator=(const CudaEvent&) = delete;
  void record(cudaStream_t stream) { CIERA_CUDA_TRY(cudaEventRecord(event_, stream)); }
  void hold(cudaStream_t stream) const { CIERA_CUDA_TRY(cudaStreamWaitEvent(stream, event_, 0)); }

 private:
  cudaEvent_t event_ = nullptr;
};

// Memory of one GPU. Releasing waits for the GPU.
class CudaMemory final : public MemoryResource {
 public:
  explicit CudaMemory(int device) : device_(device) {}
  std::byte* allocate(std::size_t bytes) override {
    const CudaDeviceGuard guard(device_);
    void* data = nullptr;
    check(cudaMalloc(&data, bytes), "GPU " + std::to_string(device_), bytes);
    return static_cast<std::byte*>(data);
  }
  void release(std::byte* data) noexcept override { cudaFree(data); }

  // Throws Error (kOutOfMemory) when `owner` gave no memory, Error (kDevice) for other failures.
  static void check(cudaError_t result, const std::string& owner, std::size_t bytes) {
    if (result == cudaErrorMemoryAllocation) {
      cudaGetLastError();  // not for the next caller to find
      throw Error(ErrorCode::kOutOfMemory,
                  owner + " gives no " + std::to_string(bytes) + " bytes of memory");
    }
    check_cuda(result, "allocating memory", __FILE__, __LINE__);
  }

 private:
  int device_;
};

// Host memory that the GPU reaches directly.
class PinnedMemory final : public MemoryResource {
 public:
  std::byte* allocate(std::size_t bytes) override {
    void* data = nullptr;
    CudaMemory::check(cudaHostAlloc(&data, bytes, cudaHostAllocPortable), "the host (pinned)",
                      bytes);
    return static_cast<std::byte*>(data);
  }
  void release(std::byte* data) noexcept override { cudaFreeHost(data); }
};

}  // namespace ciera::exec
