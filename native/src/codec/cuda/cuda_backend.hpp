// The backend for the memory of one GPU.
#pragma once

#include <memory>
#include <string>

#include "codec/backend.hpp"

namespace ciera::codec::cuda {

// Whether a GPU can be used, and its name and driver, or why not. Never throws.
struct CudaSupport {
  bool available = false;
  std::string detail;
};
CudaSupport cuda_support();

// Throws Error (kNoDevice) without a usable GPU, Error (kArgument) for an ordinal out of range.
// Only with coder nvcomp-ans it loads nvCOMP, and then codes with it and takes its frames; throws
// Error (kLibrary) when it cannot be used.
std::unique_ptr<CodecBackend> make_cuda_backend(int device, Coder coder = Coder::kRans);

}  // namespace ciera::codec::cuda
