// The coder nvcomp-ans needs libnvcomp, which is found at run time. A build without CUDA has this
// function too, and it says so.
#pragma once

#include <string>

namespace ciera {

// Whether libnvcomp can be used: its version and path, or why it cannot be loaded. Looked for in
// this order: a libnvcomp.so.6 or .so.5 already in the process, the path in CIERA_NVCOMP_LIBRARY
// when that is set, the loader's search path. Needs no GPU; does not throw for a missing library.
struct NvcompSupport {
  bool available = false;
  std::string detail;
};
NvcompSupport nvcomp_support();

}  // namespace ciera
