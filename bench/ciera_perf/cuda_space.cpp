#include <cuda_runtime_api.h>

#include <stdexcept>

#include "memory_space.hpp"

namespace ciera_perf {
namespace {

void check(cudaError_t code, const char* call, int line) {
  if (code != cudaSuccess) {
    throw std::runtime_error(std::string(cudaGetErrorString(code)) + " from " + call +
                             " (cuda_space.cpp:" + std::to_string(line) + ")");
  }
}

#define CIERA_PERF_CUDA_TRY(call) check((call), #call, __LINE__)

class CudaSpace final : public MemorySpace {
 public:
  explicit CudaSpace(int device) : device_(device) {
    CIERA_PERF_CUDA_TRY(cudaSetDevice(device));
    CIERA_PERF_CUDA_TRY(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
  }
  ~CudaSpace() override { cudaStreamDestroy(stream_); }
  CudaSpace(const CudaSpace&) = delete;
  CudaSpace& operator=(const CudaSpace&) = delete;

  Buffer allocate(std::size_t bytes) override {
    void* data = nullptr;
    CIERA_PERF_CUDA_TRY(cudaMalloc(&data, bytes));
    return {std::shared_ptr<std::byte>(static_cast<std::byte*>(data), [](void* p) { cudaFree(p); }),
            bytes};
  }
  void copy_in(std::span<std::byte> to, std::span<const std::byte> host) override {
    copy(to.data(), host.data(), host.size(), cudaMemcpyHostToDevice);
  }
  void copy_out(std::span<std::byte> host, std::span<const std::byte> from) override {
    copy(host.data(), from.data(), from.size(), cudaMemcpyDeviceToHost);
  }
  void zero(std::span<std::byte> to) override {
    CIERA_PERF_CUDA_TRY(cudaMemsetAsync(to.data(), 0, to.size(), stream_));
    CIERA_PERF_CUDA_TRY(cudaStreamSynchronize(stream_));
  }
  ciera::DeviceStream stream() const override { return {stream_}; }
  std::string device_name() const override {
    cudaDeviceProp properties{};
    CIERA_PERF_CUDA_TRY(cudaGetDeviceProperties(&properties, device_));
    return "device " + std::to_string(device_) + " " + properties.name;
  }

 private:
  void copy(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind) {
    CIERA_PERF_CUDA_TRY(cudaMemcpyAsync(to, from, bytes, kind, stream_));
    CIERA_PERF_CUDA_TRY(cudaStreamSynchronize(stream_));
  }

  int device_;
  cudaStream_t stream_ = nullptr;
};

}  // namespace

int cuda_device_count() {
  int count = 0;
  CIERA_PERF_CUDA_TRY(cudaGetDeviceCount(&count));
  return count;
}

std::unique_ptr<MemorySpace> make_cuda_space(int device) {
  return std::make_unique<CudaSpace>(device);
}

}  // namespace ciera_perf
