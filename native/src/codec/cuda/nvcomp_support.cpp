#include "ciera/nvcomp.hpp"
#include "codec/cuda/nvcomp_api.hpp"

namespace ciera {

NvcompSupport nvcomp_support() {
  const nvcomp::Loaded loaded = nvcomp::load();
  if (loaded.api == nullptr) {
    return {false, loaded.reason};
  }
  return {true, "nvCOMP " + nvcomp::version_text(loaded.api->version) + ", " + loaded.api->path};
}

}  // namespace ciera
