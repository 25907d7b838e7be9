// The changed blocks of a delta frame as a list, and walks along the values they hold. Symbol j of
// the frame is value offset j mod B of the block that stands at j / B in the list; only the last
// block may be short, and it comes last.
#pragma once

#include "codec/cuda/block_ops.cuh"
#include "codec/cuda/decode_state.hpp"
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

// What one of `grid` blocks does of a list: a warp owns a tile; where its part of the list begins
// is known from the scan.
__device__ inline void list_changed(const ListArgs& args, unsigned block, unsigned grid) {
  if (args.without != nullptr && *args.without != 0) {
    return;
  }
  const std::uint64_t stride = static_cast<std::uint64_t>(grid) * kWarps;
  for (std::uint64_t tile = static_cast<std::uint64_t>(block) * kWarps + warp_id();
       tile < args.tiles; tile += stride) {
    std::uint32_t at = args.tile_changed[tile];
    const std::uint64_t first = tile * args.tile_blocks;
    const std::uint64_t end =
        first + args.tile_blocks < args.blocks ? first + args.tile_blocks : args.blocks;
    for (std::uint64_t base = first; base < end; base += 32) {
      const std::uint64_t block_number = base + lane_id();
      const bool set = block_number < end && is_set(args.bitmap, block_number);
      const unsigned mask = __ballot_sync(kFullWarp, set);
      if (set) {
        args.list[at + __popc(mask & ((1U << lane_id()) - 1))] =
            static_cast<std::uint32_t>(block_number);
      }
      at += __popc(mask);
    }
  }
}

// Blocks that list_changed keeps busy.
inline std::uint64_t list_grid(std::uint64_t tiles, int multiprocessors) {
  const auto most = 8ULL * static_cast<std::uint64_t>(multiprocessors);
  const std::uint64_t wanted = ceil_div(tiles, kWarps);
  return wanted < 1 ? 1 : wanted < most ? wanted : most;
}

// Of the delta frame that the call may turn out to hold.
inline ListArgs changed_list_args(const DecodeCall& call) {
  const FrameParams& expected = call.expected;
  const wire::FrameHeader header = make_header(expected, wire::Kind::kDelta);
  return {call.frame + header.sections[0].offset,
          block_count(expected.numel, expected.block_size),
          tile_blocks(expected.numel, expected.block_size),
          tile_count(expected.numel, expected.block_size),
          call.tile_changed,
          call.list,
          &call.state->without_list};
}

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
