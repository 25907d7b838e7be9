// A shard's gathered buffer, owned by the library. In word-delta its peers' parts are the
// WordCache.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "ciera/compressed_allgather.hpp"
#include "exec/memory.hpp"

namespace ciera::cache {

class GatheredBuffer final : public ShardBuffer {
 public:
  // `numels` (values of every rank) together fit memory. `keeper` keeps `memory` in existence: the
  // buffer outlives its communicator when somebody holds it. Throws Error (kOutOfMemory).
  GatheredBuffer(std::shared_ptr<void> keeper, MemoryResource& memory, DType dtype,
                 std::vector<std::uint64_t> numels)
      : dtype_(dtype), numels_(std::move(numels)), keeper_(std::move(keeper)) {
    std::uint64_t end = 0;
    for (const std::uint64_t numel : numels_) {
      starts_.push_back(end);
      end += numel * element_bytes(dtype);
    }
    memory_ = Buffer(memory, end);
  }

  std::span<std::byte> bytes() const override { return memory_.span(); }
  std::span<std::byte> part(Rank rank) const override { return part(std::size_t{value(rank)}); }
  std::span<std::byte> part(std::size_t rank) const {
    return memory_.span().subspan(starts_[rank], numels_[rank] * element_bytes(dtype_));
  }
  DType dtype() const override { return dtype_; }
  const std::vector<std::uint64_t>& numels() const override { return numels_; }
  bool attached() const override { return attached_; }
  void detach() { attached_ = false; }

 private:
  DType dtype_;
  std::vector<std::uint64_t> numels_;
  std::vector<std::uint64_t> starts_;  // of each rank's part, in bytes
  std::shared_ptr<void> keeper_;
  Buffer memory_;  // after what it is taken from
  std::atomic<bool> attached_ = true;
};

}  // namespace ciera::cache
