// The implementations that this processor has.
#pragma once

#include <vector>

#include "codec/host/rans.hpp"

namespace ciera::codec::host {

inline std::vector<Isa> every_isa() {
  std::vector<Isa> all;
  for (const Isa isa : {Isa::kScalar, Isa::kAvx2, Isa::kAvx512}) {
    if (isa <= best_isa()) {
      all.push_back(isa);
    }
  }
  return all;
}

}  // namespace ciera::codec::host
