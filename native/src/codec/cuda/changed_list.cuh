// The changed blocks of a delta frame as a list, and walks along the values they hold. Symbol j of
// the frame is value offset j mod B of the block that stands at j / B in the list; only the last
// block may be short, and it comes last.
#pragma once

#include "codec/cuda/block_ops.cuh"
#include "codec/cuda/encode_state.hpp"

namespace ciera::codec::cuda {

__device__ inline bool is_set(const std::byte* bitmap, std::uint64_t block) {
  return (bitmap[block / 8] >> (block % 8) & std::byte{1}) != std::byte{0};
}

// How many symbols a frame with `changed` changed blocks has.
__device__ inline std::uint64_t changed_symbols(const std::byte* bitmap, std::uint64_t changed,
                                                std::uint64_t numel, std::uint32_t block_size) {
  if (numel == 0) {
    return 0;
  }
  const std::uint64_t last = block_count(numel, block_size) - 1;
  const std::uint64_t missing = block_size - block_values(last, numel, block_size);
  return changed * block_size - (is_set(bitmap, last) ? missing : 0);
}

struct ListArgs {
  const std::byte* bitmap;
  std::uint64_t blocks;
  std::uint32_t tile_blocks;
  std::uint64_t tiles;
  const std::uint32_t* tile_changed;  // changed blocks before each tile
  std::uint32_t* list;
  const unsigned* without;  // nothing is done when it is set; null in an encode
};

void launch_changed_list(const ListArgs& args, int multiprocessors, cudaStream_t stream);

// Where symbol j lies among the shard's values, and the symbols 32 before and after it. May stand
// up to 32 symbols beyond the last one: the list has kListPadding entries more than blocks.
class ListWalk {
 public:
  __device__ ListWalk(const std::uint32_t* list, std::uint32_t block_size, std::uint64_t j)
      : list_(list + j / block_size),
        block_size_(block_size),
        offset_(static_cast<std::uint32_t>(j % block_size)),
        base_(base()) {}

  __device__ std::uint64_t value() const { return base_ + offset_; }
  __device__ void forward() {
    offset_ += 32;
    if (offset_ >= block_size_) {
      do {
        ++list_;
        offset_ -= block_size_;
      } while (offset_ >= block_size_);
      base_ = base();
    }
  }
  __device__ void back() {
    auto offset = static_cast<std::int32_t>(offset_) - 32;
    if (offset < 0) {
      do {
        --list_;
        offset += static_cast<std::int32_t>(block_size_);
      } while (offset < 0);
      base_ = base();
    }
    offset_ = static_cast<std::uint32_t>(offset);
  }

 private:
  __device__ std::uint64_t base() const { return static_cast<std::uint64_t>(*list_) * block_size_; }

  const std::uint32_t* list_;
  std::uint32_t block_size_;
  std::uint32_t offset_;
  std::uint64_t base_;
};

}  // namespace ciera::codec::cuda
