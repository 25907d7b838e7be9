// The words of one rank's shard, from training step to training step.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>

#include "ciera/types.hpp"

namespace ciera_perf {

class Steps {
 public:
  virtual ~Steps() = default;
  // The shard at this step; host memory, valid until the next advance.
  virtual std::span<const std::byte> words() const = 0;
  // To a step that is one training step away.
  virtual void advance() = 0;
};

// Makes the shard of `rank` with `numel` values; the same arguments give the same words. One object
// makes those of all sizes.
class StepsSource {
 public:
  virtual ~StepsSource() = default;
  virtual std::unique_ptr<Steps> make(std::size_t rank, std::size_t numel) const = 0;
};

// Weights drawn from N(0, 0.02); each step a fraction `change_rate` moves one unit in the last
// place, up or down.
std::unique_ptr<StepsSource> make_synthetic(ciera::DType dtype, double change_rate,
                                            std::uint64_t seed);

// A shard of a recorded trace, walked forth and back. Longer shards are tiled: each tile of each
// rank starts at another place of the trace's shard. Throws std::runtime_error (see read_npz).
std::unique_ptr<StepsSource> make_traced(const std::string& path, const std::string& shard,
                                         ciera::DType dtype, std::uint64_t seed);

// splitmix64's output function: spreads neighbouring numbers over all 64 bits.
constexpr std::uint64_t mixed(std::uint64_t x) {
  x += 0x9e3779b97f4a7c15ULL;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
  return x ^ (x >> 31);
}

}  // namespace ciera_perf
