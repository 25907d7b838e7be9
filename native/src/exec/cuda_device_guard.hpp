// The calling thread's current GPU, set for a scope.
#pragma once

#include "exec/cuda_check.hpp"

namespace ciera::exec {

class CudaDeviceGuard {
 public:
  explicit CudaDeviceGuard(int device) {
    CIERA_CUDA_TRY(cudaGetDevice(&previous_));
    if (previous_ != device) {
      CIERA_CUDA_TRY(cudaSetDevice(device));
      changed_ = true;
    }
  }
  ~CudaDeviceGuard() {
    if (changed_) {
      cudaSetDevice(previous_);
    }
  }
  CudaDeviceGuard(const CudaDeviceGuard&) = delete;
  CudaDeviceGuard& operator=(const CudaDeviceGuard&) = delete;

 private:
  int previous_ = 0;
  bool changed_ = false;
};

}  // namespace ciera::exec
