// Stands in for codec/cuda/nvcomp_support.cpp in a build without a CUDA compiler.
#include "ciera/nvcomp.hpp"

namespace ciera {

NvcompSupport nvcomp_support() { return {false, "this build has no CUDA; build it where nvcc is"}; }

}  // namespace ciera
