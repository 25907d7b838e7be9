// The pass over the shard: split, block hash, comparison, bitmap and counts of the exponents that
// are sent, in one. Method: the paper's split and hash (docs/wire-format.md, sections 3 and 5).
#pragma once

#include "base/splitmix64.hpp"
#include "codec/cuda/block_ops.cuh"
#include "codec/cuda/changed_list.cuh"
#include "codec/cuda/encode_state.hpp"
#include "codec/cuda/histogram.cuh"
#include "codec/cuda/table_kernels.cuh"

namespace ciera::codec::cuda {

struct SplitArgs {
  const std::byte* src;
  std::uint64_t numel;
  std::uint32_t block_size;
  std::uint32_t tile_blocks;
  std::uint64_t tiles;
  bool wide;  // src is aligned to 16 bytes
  std::byte* frame;
  std::uint64_t sign_mantissa;  // offset of the section in the frame
  std::uint64_t bitmap;         // the same; delta frames only
  const BlockHash* old_hashes;
  BlockHash* new_hashes;  // null: no hashing
  std::uint32_t* tile_changed;
  EncodeState* state;
};

// kDelta: the frame is a delta frame; otherwise all exponents are sent, and hashes are made when
// there is a place for them.
template <class Format, bool kDelta>
class SplitBlock {
 public:
  struct Shared {
    Histogram histogram;
    unsigned long long sums[2 * kMaxTileBlocks];  // of the two hashes of each block of the tile
    bool changed[kMaxTileBlocks];
    std::uint64_t scan[kWarps];
    std::uint32_t counts[kWarps];
  };

  __device__ SplitBlock(const SplitArgs& args, Shared& shared) : args_(args), shared_(shared) {}

  __device__ void run() {
    shared_.histogram.clear();
    __syncthreads();  // before any thread counts
    for (std::uint64_t tile = blockIdx.x; tile < args_.tiles; tile += gridDim.x) {
      one_tile(tile);
    }
    const std::uint64_t sum = block_sum(checksum_, shared_.scan);
    if (threadIdx.x == 0) {
      atomicAdd(&args_.state->split_sum, static_cast<unsigned long long>(sum));
    }
    shared_.histogram.flush(args_.state->counts);  // block_sum's barrier: all have counted
  }

  // Of the block that comes last.
  __device__ void finish() {
    EncodeState& state = *args_.state;
    std::uint64_t changed = block_count(args_.numel, args_.block_size);
    std::uint64_t symbols = args_.numel;
    if constexpr (kDelta) {
      changed = block_exclusive_scan(args_.tile_changed, args_.tiles, shared_.scan);
      symbols = changed_symbols(args_.frame + args_.bitmap, changed, args_.numel, args_.block_size);
    }
    if (threadIdx.x == 0) {
      state.changed_blocks = changed;
      state.symbols = symbols;
    }
    build_encode_table(state, symbols);
  }

 private:
  using Word = typename Format::Word;

  __device__ void one_tile(std::uint64_t tile) {
    first_block_ = tile * args_.tile_blocks;
    first_ = first_block_ * args_.block_size;
    const std::uint64_t rest = args_.numel - first_;
    const std::uint64_t whole = static_cast<std::uint64_t>(args_.tile_blocks) * args_.block_size;
    values_ = static_cast<std::uint32_t>(rest < whole ? rest : whole);
    blocks_ = static_cast<std::uint32_t>(block_count(values_, args_.block_size));
    if (args_.wide && rest >= whole && args_.block_size % 512 == 0) {
      pass<Extent::kWhole>();
    } else {
      pass<Extent::kAny>();
    }
    if constexpr (kDelta) {
      write_bitmap(tile);
    }
  }

  static constexpr std::uint32_t kUsualBlock = 512;

  // kWhole: a whole tile of whole groups at aligned addresses, as nearly all are.
  enum class Extent { kWhole, kAny };

  template <Extent kExtent>
  __device__ void pass() {
    if (args_.new_hashes == nullptr) {
#pragma unroll 2
      for (std::uint32_t at = 8 * threadIdx.x; at < values_; at += 8 * kThreads) {
        const std::uint64_t exponents = split_group<kExtent>(at, load<kExtent>(at));
        shared_.histogram.add(exponents, count_at<kExtent>(at));
      }
    } else if (kExtent == Extent::kWhole && args_.block_size == kUsualBlock) {
      args_.tile_blocks % (4 * kWarps) == 0 ? usual_blocks<4>() : usual_blocks<2>();
    } else if (kExtent == Extent::kWhole || args_.block_size % 256 == 0) {
      warp_blocks<kExtent>();
    } else {
      any_blocks();
    }
  }

  template <Extent kExtent>
  __device__ std::uint32_t count_at(std::uint32_t at) const {
    return kExtent == Extent::kWhole || values_ - at >= 8 ? 8 : values_ - at;
  }
  template <Extent kExtent>
  __device__ Words8<Format> load(std::uint32_t at) const {
    const auto* src = reinterpret_cast<const Word*>(args_.src);
    return load_words<Format>(src, first_ + at, count_at<kExtent>(at),
                              kExtent == Extent::kWhole || args_.wide);
  }

  // Writes sign and mantissa of the group at `at` of the tile; returns its exponents.
  template <Extent kExtent>
  __device__ std::uint64_t split_group(std::uint32_t at, const Words8<Format>& words) {
    const std::uint64_t offset = args_.sign_mantissa;
    SignMantissa<Format>::store(words, reinterpret_cast<std::uint8_t*>(args_.frame + offset),
                                first_ + at, count_at<kExtent>(at), args_.numel,
                                [this, offset](std::uint64_t word, std::uint64_t in_section) {
                                  checksum_ +=
                                      base::keyed(word, (offset + in_section) / 8, base::kGamma0);
                                });
    return exponents_of<Format>(words);
  }

  // Hash of block b of the tile from its sums. Whether it changed, and so whether its exponents are
  // sent.
  __device__ bool finish_hash(std::uint32_t b, std::uint64_t low, std::uint64_t high) {
    const std::uint64_t block = first_block_ + b;
    const std::uint64_t values = block_values(block, args_.numel, args_.block_size);
    const BlockHash hash{base::mix(values + low), base::mix(values + high)};
    args_.new_hashes[block] = hash;
    if constexpr (kDelta) {
      const BlockHash old = args_.old_hashes[block];
      const bool changed = hash.low != old.low || hash.high != old.high;
      shared_.changed[b] = changed;
      return changed;
    }
    return true;
  }

  // Whole blocks of 512 values, the default: a warp owns kTogether of them at a time, with their
  // exponents in registers, so that sums are made and hashes finished for several blocks at once.
  template <std::uint32_t kTogether>
  __device__ void usual_blocks() {
    constexpr std::uint32_t kRounds = kUsualBlock / 256;
    for (std::uint32_t b = kTogether * warp_id(); b < blocks_; b += kTogether * kWarps) {
      std::uint64_t exponents[kTogether][kRounds];
      std::uint64_t sums[2 * kTogether] = {};
#pragma unroll
      for (std::uint32_t k = 0; k < kTogether; ++k) {
        const std::uint32_t begin = (b + k) * kUsualBlock + 8 * lane_id();
        Words8<Format> words[kRounds];
#pragma unroll
        for (std::uint32_t round = 0; round < kRounds; ++round) {
          words[round] = load<Extent::kWhole>(begin + 256 * round);
        }
#pragma unroll
        for (std::uint32_t round = 0; round < kRounds; ++round) {
          const std::uint64_t packed =
              split_group<Extent::kWhole>(begin + 256 * round, words[round]);
          exponents[k][round] = packed;
          sums[2 * k] += base::keyed(packed, 32 * round + lane_id(), base::kGamma0);
          sums[2 * k + 1] += base::keyed(packed, 32 * round + lane_id(), base::kGamma1);
        }
      }
      const unsigned changed = finish_together<kTogether>(b, sums);
#pragma unroll
      for (std::uint32_t k = 0; k < kTogether; ++k) {
        if ((changed >> k & 1) != 0) {
#pragma unroll
          for (std::uint32_t round = 0; round < kRounds; ++round) {
            shared_.histogram.add(exponents[k][round], 8);
          }
        }
      }
    }
  }

  // Hashes of kTogether blocks from every lane's sums: lane 2k adds up the first sum of block k,
  // lane 2k + 1 the second. Which blocks changed, a bit each, in every lane.
  template <std::uint32_t kTogether>
  __device__ unsigned finish_together(std::uint32_t b, std::uint64_t (&sums)[2 * kTogether]) {
    // Halves the sums a lane holds while it halves the lanes that a sum is spread over.
#pragma unroll
    for (std::uint32_t held = kTogether; held > 0; held /= 2) {
      const bool upper = (lane_id() & held) != 0;
#pragma unroll
      for (std::uint32_t i = 0; i < held; ++i) {
        const std::uint64_t kept = upper ? sums[held + i] : sums[i];
        const std::uint64_t given = upper ? sums[i] : sums[held + i];
        sums[i] = kept + __shfl_xor_sync(kFullWarp, given, static_cast<int>(held));
      }
    }
    // Lanes that agree in their lowest bits hold shares of the same sum.
#pragma unroll
    for (std::uint32_t step = 2 * kTogether; step < 32; step *= 2) {
      sums[0] += __shfl_xor_sync(kFullWarp, sums[0], static_cast<int>(step));
    }
    const std::uint64_t other = __shfl_xor_sync(kFullWarp, sums[0], 1);
    const std::uint32_t k = lane_id() / 2;
    const bool judges = lane_id() % 2 == 0 && k < kTogether;
    const bool changed = judges && finish_hash(b + k, sums[0], other);
    const unsigned bits = __ballot_sync(kFullWarp, changed);
    unsigned packed = 0;
#pragma unroll
    for (std::uint32_t i = 0; i < kTogether; ++i) {
      packed |= (bits >> (2 * i) & 1) << i;
    }
    return packed;
  }

  // Blocks of a multiple of 256 values: a warp owns a block, so that sums stay in registers.
  template <Extent kExtent>
  __device__ void warp_blocks() {
    constexpr std::uint32_t kUnroll = 2;
    for (std::uint32_t b = warp_id(); b < blocks_; b += kWarps) {
      std::uint64_t low = 0;
      std::uint64_t high = 0;
      const std::uint32_t begin = b * args_.block_size;
      const std::uint32_t end =
          begin + args_.block_size < values_ ? begin + args_.block_size : values_;
      for (std::uint32_t base = begin + 8 * lane_id(); base < end; base += 256 * kUnroll) {
        Words8<Format> words[kUnroll];
#pragma unroll
        for (std::uint32_t u = 0; u < kUnroll; ++u) {
          if (kExtent == Extent::kWhole || base + 256 * u < end) {
            words[u] = load<kExtent>(base + 256 * u);
          }
        }
#pragma unroll
        for (std::uint32_t u = 0; u < kUnroll; ++u) {
          if (kExtent == Extent::kWhole || base + 256 * u < end) {
            const std::uint64_t exponents = split_group<kExtent>(base + 256 * u, words[u]);
            const std::uint64_t index = (base + 256 * u - begin) / 8;
            low += base::keyed(exponents, index, base::kGamma0);
            high += base::keyed(exponents, index, base::kGamma1);
          }
        }
      }
      low = warp_sum(low);
      high = warp_sum(high);
      const bool changed = lane_id() == 0 && finish_hash(b, low, high);
      if (__shfl_sync(kFullWarp, changed ? 1 : 0, 0) != 0) {
        count_exponents<kExtent>(begin + 8 * lane_id(), end, 256);
      }
    }
  }

  // Blocks of any size: a thread owns a group, the sums of a block meet in shared memory.
  __device__ void any_blocks() {
    for (std::uint32_t i = threadIdx.x; i < 2 * blocks_; i += kThreads) {
      shared_.sums[i] = 0;
    }
    __syncthreads();  // before any thread adds
    for (std::uint32_t at = 8 * threadIdx.x; at < values_; at += 8 * kThreads) {
      const std::uint64_t exponents = split_group<Extent::kAny>(at, load<Extent::kAny>(at));
      const std::uint32_t block = at / args_.block_size;
      const std::uint64_t index = (at - block * args_.block_size) / 8;
      atomicAdd(&shared_.sums[2 * block],
                static_cast<unsigned long long>(base::keyed(exponents, index, base::kGamma0)));
      atomicAdd(&shared_.sums[2 * block + 1],
                static_cast<unsigned long long>(base::keyed(exponents, index, base::kGamma1)));
    }
    __syncthreads();  // all sums are in
    for (std::uint32_t b = threadIdx.x; b < blocks_; b += kThreads) {
      shared_.changed[b] = finish_hash(b, shared_.sums[2 * b], shared_.sums[2 * b + 1]);
    }
    __syncthreads();  // every thread may ask which blocks changed
    for (std::uint32_t b = warp_id(); b < blocks_; b += kWarps) {
      if (shared_.changed[b]) {
        const std::uint32_t begin = b * args_.block_size;
        const std::uint32_t end =
            begin + args_.block_size < values_ ? begin + args_.block_size : values_;
        count_exponents<Extent::kAny>(begin + 8 * lane_id(), end, 256);
      }
    }
    __syncthreads();  // before the next tile replaces the sums
  }

  // Counts groups of a block that this warp or another has just read: they are in a cache.
  template <Extent kExtent>
  __device__ void count_exponents(std::uint32_t from, std::uint32_t end, std::uint32_t stride) {
    for (std::uint32_t at = from; at < end; at += stride) {
      shared_.histogram.add(exponents_of<Format>(load<kExtent>(at)), count_at<kExtent>(at));
    }
  }

  // Bits of the tile's blocks, a byte a thread, and how many are set.
  __device__ void write_bitmap(std::uint64_t tile) {
    __syncthreads();  // all blocks of the tile are judged
    std::uint32_t count = 0;
    for (std::uint32_t b = 8 * threadIdx.x; b < blocks_; b += 8 * kThreads) {
      std::uint32_t bits = 0;
      for (std::uint32_t i = 0; i < 8 && b + i < blocks_; ++i) {
        bits |= (shared_.changed[b + i] ? 1U : 0U) << i;
      }
      args_.frame[args_.bitmap + (first_block_ + b) / 8] = static_cast<std::byte>(bits);
      count += __popc(bits);
    }
    count = block_sum(count, shared_.counts);
    if (threadIdx.x == 0) {
      args_.tile_changed[tile] = count;
    }
    __syncthreads();  // before the next tile replaces flags and counts
  }

  const SplitArgs& args_;
  Shared& shared_;
  std::uint64_t checksum_ = 0;
  std::uint64_t first_block_ = 0;  // of the tile under way
  std::uint64_t first_ = 0;
  std::uint32_t values_ = 0;
  std::uint32_t blocks_ = 0;
};

template <class Format, bool kDelta>
__global__ void __launch_bounds__(kThreads, sizeof(typename Format::Word) == 2 ? 4 : 2)
    split_kernel(const __grid_constant__ SplitArgs args) {
  __shared__ typename SplitBlock<Format, kDelta>::Shared shared;
  SplitBlock<Format, kDelta> block(args, shared);
  block.run();
  if (last_block(&args.state->ticket)) {
    block.finish();
  }
}

}  // namespace ciera::codec::cuda
