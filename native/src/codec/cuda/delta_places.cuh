// Where the values of a segment lie among the shard's, and walks along them.
#pragma once

#include "codec/cuda/block_ops.cuh"

namespace ciera::codec::cuda {

// Where the values of a segment lie among the shard's, by their place in the segment. Place holds
// any of those.
template <class Place>
class BlockPlaces {
 public:
  // `first`: the segment's first value among the coded ones.
  __device__ BlockPlaces(const std::uint32_t* list, std::uint32_t block_size, std::uint64_t first)
      : list_(list),
        block_size_(block_size),
        scale_(~std::uint32_t{0} / block_size),
        block_(static_cast<std::uint32_t>(first / block_size)),
        offset_(static_cast<std::uint32_t>(first % block_size)) {}

  __device__ Place operator()(std::uint32_t value) const {
    const std::uint32_t at = offset_ + value;  // a segment holds at most 2^22 values
    // The quotient, or one less: the scale falls short by less than 1 in 2^32 / block_size.
    std::uint32_t block = __umulhi(at, scale_);
    block += at - block * block_size_ >= block_size_ ? 1 : 0;
    return static_cast<Place>(list_[block_ + block]) * block_size_ + (at - block * block_size_);
  }

 private:
  template <class>
  friend class PlaceWalk;
  template <class, std::uint32_t, std::uint32_t>
  friend class RunWalk;
  const std::uint32_t* list_;
  std::uint32_t block_size_;
  std::uint32_t scale_;
  std::uint32_t block_;  // the first one's place in the list, which holds fewer than 2^32
  std::uint32_t offset_;
};

// The same for every stride-th value, without a division for each. May stand anywhere, as long as
// value() is asked within the segment only.
template <class Place>
class PlaceWalk {
 public:
  __device__ PlaceWalk(const BlockPlaces<Place>& places, std::uint32_t first, std::uint32_t stride)
      : list_(places.list_),
        block_size_(places.block_size_),
        blocks_(stride / places.block_size_),
        rest_(stride % places.block_size_) {
    const std::uint32_t at = places.offset_ + first;
    block_ = places.block_ + at / block_size_;
    offset_ = at % block_size_;
  }

  __device__ Place value() const {
    return static_cast<Place>(list_[block_]) * block_size_ + offset_;
  }
  __device__ void forward() {
    block_ += blocks_;
    offset_ += rest_;
    if (offset_ >= block_size_) {
      offset_ -= block_size_;
      ++block_;
    }
  }

 private:
  const std::uint32_t* list_;
  std::uint32_t block_size_;
  std::uint32_t blocks_;  // of a stride, and what is left of it
  std::uint32_t rest_;
  std::uint32_t block_;
  std::uint32_t offset_;
};

// Places of this lane's items, of kWidth values each, in kSteps steps of a warp, run after run of
// such steps. These walks may stand beyond the segment, as long as no place there is used.
//
// Blocks hold whole runs, so that a run needs the list once, and that ahead of time.
template <class Place, std::uint32_t kWidth, std::uint32_t kSteps>
class RunWalk {
 public:
  static constexpr std::uint32_t kRun = 32 * kWidth * kSteps;
  struct Run {
    Place first;
    __device__ Place at(std::uint32_t step) const { return first + 32 * kWidth * step; }
  };
  __device__ static bool fits(const BlockPlaces<Place>& places) {
    return places.block_size_ % kRun == 0 && places.offset_ % kRun == 0;
  }

  __device__ explicit RunWalk(const BlockPlaces<Place>& places)
      : list_(places.list_ + places.block_),
        block_size_(places.block_size_),
        offset_(places.offset_),
        block_(*list_) {}

  __device__ Run next() {
    const Run run{static_cast<Place>(block_) * block_size_ + offset_ + kWidth * lane_id()};
    offset_ += kRun;
    if (offset_ == block_size_) {
      offset_ = 0;
      ++list_;  // one beyond the last block at most
    }
    block_ = *list_;
    return run;
  }

 private:
  const std::uint32_t* list_;
  std::uint32_t block_size_;
  std::uint32_t offset_;
  std::uint32_t block_;
};

// Blocks of any size.
template <class Place, std::uint32_t kWidth, std::uint32_t kSteps>
class AnyWalk {
 public:
  struct Run {
    Place places[kSteps];
    __device__ Place at(std::uint32_t step) const { return places[step]; }
  };

  __device__ explicit AnyWalk(const BlockPlaces<Place>& places)
      : walk_(places, kWidth * lane_id(), 32 * kWidth) {}

  __device__ Run next() {
    Run run;
#pragma unroll
    for (std::uint32_t k = 0; k < kSteps; ++k) {
      run.places[k] = walk_.value();
      walk_.forward();
    }
    return run;
  }

 private:
  PlaceWalk<Place> walk_;
};

}  // namespace ciera::codec::cuda
