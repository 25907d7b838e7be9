// Where each rank's segments lie in the outputs, and whether the caller's buffers fit.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "ciera/compressed_allgather.hpp"

namespace ciera::pipeline {

// Whether some bytes are in both.
bool overlap(std::span<const std::byte> a, std::span<const std::byte> b);

class OutputMap {
 public:
  // numels[segment][rank] in elements of `dtype`. Nothing when the sizes overflow 64 bits.
  static std::optional<OutputMap> make(OutputLayout layout, DType dtype,
                                       const std::vector<std::vector<std::uint64_t>>& numels);

  std::size_t buffers() const { return buffer_bytes_.size(); }
  std::uint64_t buffer_bytes(std::size_t buffer) const { return buffer_bytes_[buffer]; }
  std::span<std::byte> slot(const std::vector<std::span<std::byte>>& outputs, std::size_t segment,
                            std::size_t rank) const;

  // Why these buffers cannot be used, or nothing. `src` may lie in its own slots of `outputs` and
  // nowhere else there.
  std::optional<std::string> misfit(const std::vector<std::span<std::byte>>& outputs,
                                    std::span<const std::byte> src, std::size_t own_rank) const;

 private:
  struct Slot {
    std::size_t buffer = 0;
    std::uint64_t offset = 0;
    std::uint64_t bytes = 0;
  };
  std::optional<std::string> misplaced(const std::vector<std::span<std::byte>>& outputs,
                                       const std::vector<std::size_t>& order,
                                       std::span<const std::byte> src, std::size_t own_rank) const;

  std::vector<std::vector<Slot>> slots_;  // [segment][rank]
  std::vector<std::uint64_t> buffer_bytes_;
};

}  // namespace ciera::pipeline
