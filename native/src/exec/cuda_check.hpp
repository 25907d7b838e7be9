// Failures of CUDA calls as exceptions.
#pragma once

#include <cuda_runtime_api.h>

#include <string>

#include "ciera/error.hpp"

namespace ciera::exec {

[[noreturn]] inline void throw_cuda(cudaError_t result, const char* call, const char* file,
                                    int line) {
  cudaGetLastError();  // the next caller that asks for the last error must not find this one
  throw Error(ErrorCode::kDevice, std::string(call) + " failed: " + cudaGetErrorName(result) +
                                      " (" + cudaGetErrorString(result) + ") at " + file + ":" +
                                      std::to_string(line));
}

inline void check_cuda(cudaError_t result, const char* call, const char* file, int line) {
  if (result != cudaSuccess) {
    throw_cuda(result, call, file, line);
  }
}

}  // namespace ciera::exec

// Throws Error (kDevice) with call text, code, file and line when a CUDA runtime call fails.
#define CIERA_CUDA_TRY(call) ::ciera::exec::check_cuda((call), #call, __FILE__, __LINE__)
