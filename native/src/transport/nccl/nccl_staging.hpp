// The way of small host rows through the GPU: one pinned buffer, one device buffer, one stream.
#pragma once

#include <cuda_runtime_api.h>

#include <algorithm>
#include <bit>
#include <cstddef>
#include <memory>

#include "exec/cuda_check.hpp"

namespace ciera::nccl {

// The two buffers hold the same bytes at the same places. Made, used and grown with the GPU
// current.
class Staging {
 public:
  // Not ordered with the default stream: whatever else runs on the GPU does not delay a row.
  Staging() { CIERA_CUDA_TRY(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking)); }
  ~Staging() {
    if (stream_ != nullptr) {
      cudaStreamDestroy(stream_);
    }
  }
  Staging(const Staging&) = delete;
  Staging& operator=(const Staging&) = delete;

  // Both buffers hold at least `bytes` afterwards; their contents are lost when they grow. Nothing
  // may run on the stream.
  void reserve(std::size_t bytes) {
    if (bytes <= capacity_) {
      return;
    }
    const std::size_t grown = std::bit_ceil(std::max(bytes, kSmallest));
    capacity_ = 0;
    device_.reset();
    pinned_.reset();
    void* memory = nullptr;
    CIERA_CUDA_TRY(cudaMalloc(&memory, grown));
    device_.reset(static_cast<std::byte*>(memory));
    CIERA_CUDA_TRY(cudaMallocHost(&memory, grown));
    pinned_.reset(static_cast<std::byte*>(memory));
    capacity_ = grown;
  }

  void upload(std::size_t offset, std::size_t bytes) {
    CIERA_CUDA_TRY(cudaMemcpyAsync(device() + offset, pinned() + offset, bytes,
                                   cudaMemcpyHostToDevice, stream_));
  }
  void download(std::size_t bytes) {
    CIERA_CUDA_TRY(cudaMemcpyAsync(pinned(), device(), bytes, cudaMemcpyDeviceToHost, stream_));
  }

  std::byte* device() { return device_.get(); }
  std::byte* pinned() { return pinned_.get(); }
  cudaStream_t stream() const { return stream_; }

 private:
  static constexpr std::size_t kSmallest = 64 << 10;

  struct FreeDevice {
    void operator()(std::byte* memory) const { cudaFree(memory); }
  };
  struct FreePinned {
    void operator()(std::byte* memory) const { cudaFreeHost(memory); }
  };

  cudaStream_t stream_ = nullptr;
  std::size_t capacity_ = 0;
  std::unique_ptr<std::byte, FreeDevice> device_;
  std::unique_ptr<std::byte, FreePinned> pinned_;
};

}  // namespace ciera::nccl
