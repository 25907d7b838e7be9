// The passes over the shard: split, block hash, comparison, bitmap and counts in one; and the
// gathering of changed exponents. Method: the paper's split and hash (docs/wire-format.md, sections
// 3 and 5).
#pragma once

#include <type_traits>

#include "base/splitmix64.hpp"
#include "codec/cuda/block_ops.cuh"
#include "codec/cuda/encode_state.hpp"
#include "codec/cuda/table_kernels.cuh"

namespace ciera::codec::cuda {

struct SplitArgs {
  const std::byte* src;
  std::uint64_t numel;
  std::uint32_t block_size;
  std::uint32_t tile_blocks;
  std::uint64_t tiles;
  bool wide;  // src is aligned to 16 bytes
  std::uint8_t* sign_mantissa;
  std::uint8_t* exponents;  // key: where all exponents go; delta: where those of changed blocks go
  const BlockHash* old_hashes;
  BlockHash* new_hashes;  // null: no hashing
  std::byte* bitmap;
  std::uint32_t* tile_changed;
  EncodeState* state;
};

// Counts of exponents. Sixteen copies, one for each pair of lanes, since a few exponents are very
// frequent and would queue up at one counter.
struct Histogram {
  static constexpr std::uint32_t kCopies = 16;
  std::uint32_t bins[256 * kCopies];

  __device__ void clear() {
    for (std::uint32_t i = threadIdx.x; i < 256 * kCopies; i += kThreads) {
      bins[i] = 0;
    }
  }
  __device__ void add(std::uint64_t exponents, std::uint32_t count) {
#pragma unroll
    for (std::uint32_t i = 0; i < 8; ++i) {
      if (i < count) {
        atomicAdd(&bins[byte_of(exponents, i) * kCopies + lane_id() % kCopies], 1U);
      }
    }
  }
  // Adds to the counters of all blocks; sums do not depend on the order.
  __device__ void flush(unsigned long long* counts) const {
    for (std::uint32_t bin = threadIdx.x; bin < 256; bin += kThreads) {
      std::uint32_t sum = 0;
      for (std::uint32_t copy = 0; copy < kCopies; ++copy) {
        sum += bins[bin * kCopies + (copy + bin) % kCopies];  // each lane another bank
      }
      if (sum != 0) {
        atomicAdd(&counts[bin], static_cast<unsigned long long>(sum));
      }
    }
  }
};

// Sums of the two block hashes of a tile.
struct HashSums {
  unsigned long long sums[2 * kMaxTileBlocks];

  __device__ void clear(std::uint32_t blocks) {
    for (std::uint32_t i = threadIdx.x; i < 2 * blocks; i += kThreads) {
      sums[i] = 0;
    }
  }
  // `at` is the group's first value, counted from the tile's start.
  __device__ void add(std::uint64_t exponents, std::uint32_t at, std::uint32_t block_size) {
    const std::uint32_t block = at / block_size;
    const std::uint64_t index = (at - block * block_size) / 8;
    atomicAdd(&sums[2 * block],
              static_cast<unsigned long long>(base::keyed(exponents, index, base::kGamma0)));
    atomicAdd(&sums[2 * block + 1],
              static_cast<unsigned long long>(base::keyed(exponents, index, base::kGamma1)));
  }
};

// Hashes of the tile's blocks from their sums; in a delta frame their bits too. Returns how many of
// this thread's blocks changed.
template <bool kDelta>
__device__ std::uint32_t finish_blocks(const SplitArgs& args, std::uint64_t first_block,
                                       std::uint32_t blocks, const HashSums& sums) {
  std::uint32_t changed_count = 0;
  for (std::uint32_t b = threadIdx.x; b < (blocks + 31) / 32 * 32; b += kThreads) {
    bool changed = false;
    if (b < blocks) {
      const std::uint64_t block = first_block + b;
      const std::uint64_t values = block_values(block, args.numel, args.block_size);
      const BlockHash hash{base::mix(values + sums.sums[2 * b]),
                           base::mix(values + sums.sums[2 * b + 1])};
      args.new_hashes[block] = hash;
      if constexpr (kDelta) {
        const BlockHash old = args.old_hashes[block];
        changed = hash.low != old.low || hash.high != old.high;
      }
    }
    if constexpr (kDelta) {
      // 32 blocks are 4 bytes of the bitmap; lanes 0 to 3 write one each.
      const unsigned bits = __ballot_sync(kFullWarp, changed);
      if (lane_id() < 4 && b - lane_id() + 8 * lane_id() < blocks) {
        args.bitmap[(first_block + b - lane_id()) / 8 + lane_id()] =
            static_cast<std::byte>(bits >> (8 * lane_id()));
      }
      changed_count += changed ? 1 : 0;
    }
  }
  return changed_count;
}

template <class Format, bool kDelta>
struct SplitBlock {
  struct Nothing {};
  struct Shared {
    HashSums hashes;
    std::conditional_t<kDelta, Nothing, Histogram> histogram;  // a delta frame's come with compact
    std::uint64_t scan[kWarps];
    std::uint32_t sums[kWarps];
  };

  // A tile of values [first, first + values).
  struct Extent {
    std::uint64_t first_block;
    std::uint64_t first;
    std::uint32_t values;
    std::uint32_t blocks;
  };

  // Splits the group at `at` of the tile; returns its exponents.
  __device__ static std::uint64_t group(const SplitArgs& args, const Extent& extent,
                                        std::uint32_t at, std::uint32_t count,
                                        const Words8<Format>& words, Shared& shared) {
    const std::uint64_t exponents = exponents_of<Format>(words);
    SignMantissa<Format>::store(words, args.sign_mantissa, extent.first + at, count, args.numel);
    if constexpr (!kDelta) {
      // The scratch is padded.
      store_bytes(exponents, args.exponents + extent.first + at, 8);
      shared.histogram.add(exponents, count);
    }
    return exponents;
  }

  // Without hashes, or with blocks of any size: a thread owns a group, sums meet in shared memory.
  __device__ static void any_blocks(const SplitArgs& args, const Extent& extent, Shared& shared) {
    const auto* src = reinterpret_cast<const typename Format::Word*>(args.src);
    for (std::uint32_t at = 8 * threadIdx.x; at < extent.values; at += 8 * kThreads) {
      const std::uint32_t count = extent.values - at < 8 ? extent.values - at : 8;
      const auto words = load_words<Format>(src, extent.first + at, count, args.wide);
      const std::uint64_t exponents = group(args, extent, at, count, words, shared);
      if (args.new_hashes != nullptr) {
        shared.hashes.add(exponents, at, args.block_size);
      }
    }
  }

  // Blocks of a multiple of 256 values: a warp owns a block, so that sums stay in registers.
  __device__ static void warp_blocks(const SplitArgs& args, const Extent& extent, Shared& shared) {
    constexpr std::uint32_t kUnroll = 2;
    const auto* src = reinterpret_cast<const typename Format::Word*>(args.src);
    for (std::uint32_t b = warp_id(); b < extent.blocks; b += kWarps) {
      unsigned long long low = 0;
      unsigned long long high = 0;
      const std::uint32_t begin = b * args.block_size;
      for (std::uint32_t base = 0; base < args.block_size; base += 256 * kUnroll) {
        Words8<Format> words[kUnroll];
        std::uint32_t counts[kUnroll];
#pragma unroll
        for (std::uint32_t u = 0; u < kUnroll; ++u) {
          const std::uint32_t offset = base + 256 * u + 8 * lane_id();
          const std::uint32_t at = begin + offset;
          const bool inside = offset < args.block_size && at < extent.values;
          counts[u] = !inside ? 0 : extent.values - at < 8 ? extent.values - at : 8;
          if (counts[u] > 0) {
            words[u] = load_words<Format>(src, extent.first + at, counts[u], args.wide);
          }
        }
#pragma unroll
        for (std::uint32_t u = 0; u < kUnroll; ++u) {
          if (counts[u] > 0) {
            const std::uint32_t offset = base + 256 * u + 8 * lane_id();
            const std::uint64_t exponents =
                group(args, extent, begin + offset, counts[u], words[u], shared);
            low += base::keyed(exponents, offset / 8, base::kGamma0);
            high += base::keyed(exponents, offset / 8, base::kGamma1);
          }
        }
      }
      low = warp_sum(low);
      high = warp_sum(high);
      if (lane_id() == 0) {
        shared.hashes.sums[2 * b] = low;
        shared.hashes.sums[2 * b + 1] = high;
      }
    }
  }

  __device__ static void tile(const SplitArgs& args, std::uint64_t tile, Shared& shared) {
    Extent extent{};
    extent.first_block = tile * args.tile_blocks;
    extent.first = extent.first_block * args.block_size;
    const std::uint64_t rest = args.numel - extent.first;
    const std::uint64_t whole = static_cast<std::uint64_t>(args.tile_blocks) * args.block_size;
    extent.values = static_cast<std::uint32_t>(rest < whole ? rest : whole);
    extent.blocks = static_cast<std::uint32_t>(block_count(extent.values, args.block_size));
    if (args.new_hashes == nullptr) {
      any_blocks(args, extent, shared);
      return;
    }
    if (args.block_size % 256 == 0) {
      warp_blocks(args, extent, shared);
    } else {
      shared.hashes.clear(extent.blocks);
      __syncthreads();  // before any thread adds
      any_blocks(args, extent, shared);
    }
    __syncthreads();  // all sums are in
    const std::uint32_t changed =
        finish_blocks<kDelta>(args, extent.first_block, extent.blocks, shared.hashes);
    if constexpr (kDelta) {
      const std::uint32_t sum = block_sum(changed, shared.sums);
      if (threadIdx.x == 0) {
        args.tile_changed[tile] = sum;
      }
    }
    __syncthreads();  // before the next tile replaces the sums
  }

  // Of the block that comes last.
  __device__ static void finish(const SplitArgs& args, Shared& shared) {
    EncodeState& state = *args.state;
    if constexpr (kDelta) {
      const std::uint64_t changed =
          block_exclusive_scan(args.tile_changed, args.tiles, shared.scan);
      if (args.numel == 0) {
        if (threadIdx.x == 0) {
          state.changed_blocks = 0;
          state.symbols = 0;
        }
      } else if (threadIdx.x == 0) {
        // Only the last block may be short.
        const std::uint64_t last = block_count(args.numel, args.block_size) - 1;
        const bool last_changed =
            (args.bitmap[last / 8] >> (last % 8) & std::byte{1}) != std::byte{0};
        const std::uint64_t missing =
            args.block_size - block_values(last, args.numel, args.block_size);
        state.changed_blocks = changed;
        state.symbols = changed * args.block_size - (last_changed ? missing : 0);
      }
    } else {
      if (threadIdx.x == 0) {
        state.changed_blocks = block_count(args.numel, args.block_size);
        state.symbols = args.numel;
      }
      build_encode_table(state, args.numel);
    }
  }
};

template <class Format, bool kDelta>
__global__ void __launch_bounds__(kThreads) split_kernel(SplitArgs args) {
  using Block = SplitBlock<Format, kDelta>;
  __shared__ typename Block::Shared shared;
  if constexpr (!kDelta) {
    shared.histogram.clear();
    __syncthreads();
  }
  for (std::uint64_t tile = blockIdx.x; tile < args.tiles; tile += gridDim.x) {
    Block::tile(args, tile, shared);
  }
  if constexpr (!kDelta) {
    __syncthreads();
    shared.histogram.flush(args.state->counts);
  }
  if (last_block(&args.state->ticket)) {
    Block::finish(args, shared);
  }
}

// Moves the exponents of changed blocks together, in order, and counts them. A block of threads
// owns a tile; where its output starts is known from the scan.
template <class Format>
__global__ void __launch_bounds__(kThreads) compact_kernel(SplitArgs args) {
  __shared__ struct {
    Histogram histogram;
    std::uint16_t changed[kMaxTileBlocks];  // tile-local numbers of changed blocks
    std::uint32_t count;
  } shared;
  shared.histogram.clear();
  const auto* src = reinterpret_cast<const typename Format::Word*>(args.src);
  const std::uint64_t all_blocks = block_count(args.numel, args.block_size);
  for (std::uint64_t tile = blockIdx.x; tile < args.tiles; tile += gridDim.x) {
    const std::uint64_t first_block = tile * args.tile_blocks;
    const std::uint64_t rest = all_blocks - first_block;
    const auto blocks =
        static_cast<std::uint32_t>(rest < args.tile_blocks ? rest : args.tile_blocks);
    __syncthreads();  // the list of the tile before has been read; the histogram is clear
    if (warp_id() == 0) {
      std::uint32_t count = 0;
      for (std::uint32_t b = lane_id(); b < (blocks + 31) / 32 * 32; b += 32) {
        const std::uint64_t block = first_block + b;
        const bool set =
            b < blocks && (args.bitmap[block / 8] >> (block % 8) & std::byte{1}) != std::byte{0};
        const unsigned mask = __ballot_sync(kFullWarp, set);
        if (set) {
          shared.changed[count + __popc(mask & ((1U << lane_id()) - 1))] =
              static_cast<std::uint16_t>(b);
        }
        count += __popc(mask);
      }
      if (lane_id() == 0) {
        shared.count = count;
      }
    }
    __syncthreads();  // the list is whole
    const std::uint64_t out = static_cast<std::uint64_t>(args.tile_changed[tile]) * args.block_size;
    const std::uint32_t groups_a_block = args.block_size / 8;
    for (std::uint32_t g = threadIdx.x; g < shared.count * groups_a_block; g += kThreads) {
      const std::uint32_t k = g / groups_a_block;
      const std::uint32_t offset = 8 * (g - k * groups_a_block);
      const std::uint64_t at = (first_block + shared.changed[k]) * args.block_size + offset;
      if (at >= args.numel) {
        continue;  // the last block is short
      }
      const std::uint64_t left = args.numel - at;
      const auto count = static_cast<std::uint32_t>(left < 8 ? left : 8);
      const std::uint64_t exponents =
          exponents_of<Format>(load_words<Format>(src, at, count, args.wide));
      store_bytes(exponents, args.exponents + out + 8ULL * g, 8);  // the scratch is padded
      shared.histogram.add(exponents, count);
    }
  }
  __syncthreads();
  shared.histogram.flush(args.state->counts);
  if (last_block(&args.state->ticket)) {
    build_encode_table(*args.state, args.state->symbols);
  }
}

}  // namespace ciera::codec::cuda
