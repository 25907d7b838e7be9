// Few of many items, such as the escapes of a segment, 32 at a time for the lanes of a warp.
#pragma once

#include "codec/cuda/block_ops.cuh"

namespace ciera::codec::cuda {

// The flagged items of a warp in ascending order. A chunk is 32 items in each lane, whose flags are
// the bits of flags_of(chunk). All lanes call everything together.
class FlaggedItems {
 public:
  static constexpr std::uint32_t kListed = 128;  // in shared memory, a power of two

  __device__ FlaggedItems(std::uint32_t* list, std::uint32_t chunks)
      : list_(list), chunks_(chunks) {}

  // How many items there were left, at most 32; lane i gets the i-th of these as `item`.
  template <class FlagsOf>
  __device__ __forceinline__ std::uint32_t next(const FlagsOf& flags_of, std::uint32_t& item) {
    while (listed_ - taken_ < 32 && (listed_ != end_ || chunk_ < chunks_)) {
      if (listed_ == end_) {
        open_chunk(flags_of(chunk_++));
      }
      if (listed_ != end_) {
        list();
      }
    }
    const std::uint32_t count = min(listed_ - taken_, 32U);
    item = lane_id() < count ? list_[(taken_ + lane_id()) % kListed] : 0;
    taken_ += count;
    return count;
  }

 private:
  __device__ __forceinline__ void open_chunk(std::uint32_t flags) {
    flags_ = flags;
    if (__any_sync(kFullWarp, flags != 0) == 0) {
      return;
    }
    const auto own = static_cast<std::uint32_t>(__popc(flags));
    std::uint32_t before = own;
#pragma unroll
    for (std::uint32_t step = 1; step < 32; step *= 2) {
      const std::uint32_t left = __shfl_up_sync(kFullWarp, before, step);
      before += lane_id() >= step ? left : 0;
    }
    rank_ = end_ + before - own;
    end_ += __shfl_sync(kFullWarp, before, 31);
  }

  // As many of the chunk as there is room for.
  __device__ __forceinline__ void list() {
    const std::uint32_t most = taken_ + kListed;
    const std::uint32_t first = 32 * (32 * (chunk_ - 1) + lane_id());
    __syncwarp();  // what is overwritten has been read
#pragma unroll 1
    while (flags_ != 0 && rank_ < most) {
      list_[rank_ % kListed] = first + static_cast<std::uint32_t>(__ffs(flags_)) - 1;
      flags_ &= flags_ - 1;
      ++rank_;
    }
    listed_ = min(end_, most);
    __syncwarp();  // the items are there
  }

  std::uint32_t* list_;
  std::uint32_t chunks_;
  std::uint32_t chunk_ = 0;   // the next one
  std::uint32_t taken_ = 0;   // items before those that are listed,
  std::uint32_t listed_ = 0;  // with those that are,
  std::uint32_t end_ = 0;     // and with all of the chunk
  std::uint32_t flags_ = 0;   // of this lane's items that are not listed
  std::uint32_t rank_ = 0;    // of the first of these
};

}  // namespace ciera::codec::cuda
