// The pass over the shard and its reference: which blocks changed, the quads and escapes of those,
// and how often each level occurs, from which the contexts are chosen (docs/wire-format.md, section
// 11).
#pragma once

#include "codec/cuda/changed_list.cuh"
#include "codec/cuda/delta_encode_state.hpp"
#include "codec/cuda/histogram.cuh"
#include "codec/cuda/value_groups.cuh"

namespace ciera::codec::cuda {

struct CompareArgs {
  FrameParams params;
  const std::byte* now;
  const std::byte* old;
  bool wide;  // both are aligned to 16 bytes
  std::byte* bitmap;
  std::uint32_t escape_room;  // of a block
  DeltaScratch scratch;
  DeltaEncodeState* state;
};

// A warp owns a block of values, kRounds times 256 of them at a time.
template <class Kind, Effort kEffort>
class CompareBlock {
 public:
  using Word = typename Kind::Word;
  static constexpr std::uint32_t kRounds = sizeof(Word) <= 2 ? 2 : 1;
  static constexpr std::uint32_t kAtOnce = 256 * kRounds;

  struct Shared {
    Histogram levels;  // of quads; with kHigh of values
    std::uint32_t escape_levels[256];
    bool changed[32];
    std::uint64_t scan[kWarps];
    std::uint64_t all;
    unsigned long long in_context[kMaxValueContexts];
  };

  __device__ CompareBlock(const CompareArgs& args, Shared& shared) : args_(args), shared_(shared) {}

  __device__ void run() {
    shared_.levels.clear();
    shared_.escape_levels[threadIdx.x] = 0;
    __syncthreads();  // before any thread counts
    const std::uint32_t tile_blocks =
        delta_tile_blocks(args_.params.numel, args_.params.block_size);
    const std::uint64_t tiles = delta_tiles(args_.params.numel, args_.params.block_size);
    for (std::uint64_t tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
      one_tile(tile, tile_blocks);
    }
    DeltaEncodeState& state = *args_.state;
    const std::uint64_t moved = block_sum(static_cast<std::uint64_t>(moved_quads_), shared_.scan);
    if (threadIdx.x == 0 && moved != 0) {
      atomicAdd(&state.moved_quads, static_cast<unsigned long long>(moved));
    }
    // block_sum's barrier: all have counted.
    shared_.levels.flush(kEffort == Effort::kHigh ? state.value_levels : state.quad_levels);
    if (shared_.escape_levels[threadIdx.x] != 0) {
      atomicAdd(&state.value_levels[threadIdx.x],
                static_cast<unsigned long long>(shared_.escape_levels[threadIdx.x]));
    }
  }

  // Of the block that comes last: sums, and the choice of contexts.
  __device__ void finish() {
    const FrameParams& params = args_.params;
    DeltaEncodeState& state = *args_.state;
    const std::uint64_t tiles = delta_tiles(params.numel, params.block_size);
    const std::uint64_t changed =
        block_exclusive_scan(args_.scratch.tile_changed, tiles, shared_.scan);
    if (threadIdx.x == 0) {
      state.changed_blocks = changed;
      state.values = changed_symbols(args_.bitmap, changed, params.numel, params.block_size);
    }
    const std::uint64_t moved_quads = __ldcg(&state.moved_quads);
    __syncthreads();  // every thread has read it before it is cleared
    if (threadIdx.x == 0) {
      state.moved_quads = 0;
    }
    const ContextChoice quad = choose(
        state.quad_levels, 64, [&](std::uint64_t) { return quad_contexts_for(moved_quads); },
        state.in_quad_context, kMaxQuadContexts);
    const ContextChoice value = choose(
        state.value_levels, kEffort == Effort::kHigh ? 64 : 16,
        [](std::uint64_t values) { return value_contexts_for(values, kEffort); },
        state.in_value_context, kMaxValueContexts);
    if (threadIdx.x == 0) {
      state.quad = quad;
      state.value = value;
    }
  }

 private:
  __device__ void one_tile(std::uint64_t tile, std::uint32_t tile_blocks) {
    const FrameParams& params = args_.params;
    const std::uint64_t first = tile * tile_blocks;
    const std::uint64_t blocks = block_count(params.numel, params.block_size);
    const std::uint32_t each = tile_blocks / kWarps;
    for (std::uint32_t b = warp_id() * each; b < (warp_id() + 1) * each; ++b) {
      const bool changed = first + b < blocks && one_block(first + b);
      if (lane_id() == 0) {
        shared_.changed[b] = changed;
      }
    }
    __syncthreads();  // all blocks of the tile are judged
    if (warp_id() == 0) {
      const unsigned bits =
          __ballot_sync(kFullWarp, lane_id() < tile_blocks && shared_.changed[lane_id()]);
      if (lane_id() < tile_blocks / 8 && first + 8 * lane_id() < blocks) {
        args_.bitmap[first / 8 + lane_id()] = static_cast<std::byte>(bits >> (8 * lane_id()));
      }
      if (lane_id() == 0) {
        args_.scratch.tile_changed[tile] = __popc(bits);
      }
    }
    __syncthreads();  // before the next tile replaces the flags
  }

  // Whether the block changed.
  __device__ bool one_block(std::uint64_t block) {
    const FrameParams& params = args_.params;
    first_ = block * params.block_size;
    values_ = static_cast<std::uint32_t>(block_values(block, params.numel, params.block_size));
    block_ = block;
    if constexpr (kEffort == Effort::kHigh) {
      return high_block();
    } else {
      return args_.wide && values_ == kAtOnce ? usual_block<Extent::kWhole>()
                                              : usual_block<Extent::kAny>();
    }
  }

  template <Extent kExtent>
  __device__ std::uint32_t count_at(std::uint32_t at) const {
    return kExtent == Extent::kWhole ? 8 : at >= values_ ? 0 : values_ - at < 8 ? values_ - at : 8;
  }
  template <Extent kExtent>
  __device__ Group<Word> load(const std::byte* from, std::uint32_t at) const {
    return load_group(reinterpret_cast<const Word*>(from), first_ + at, count_at<kExtent>(at),
                      kExtent == Extent::kWhole || args_.wide);
  }

  // kWhole: of kAtOnce values.
  template <Extent kExtent>
  __device__ bool usual_block() {
    std::uint32_t kept[kRounds];
    bool moved = false;
    found_ = 0;
    const std::uint32_t end = kExtent == Extent::kWhole ? kAtOnce : values_;
    for (std::uint32_t base = 8 * lane_id(); base - 8 * lane_id() < end; base += kAtOnce) {
      Group<Word> old[kRounds];
      Group<Word> now[kRounds];
#pragma unroll
      for (std::uint32_t r = 0; r < kRounds; ++r) {
        old[r] = load<kExtent>(args_.old, base + 256 * r);
        now[r] = load<kExtent>(args_.now, base + 256 * r);
      }
      if (end <= kAtOnce && !differ(old, now)) {
        return false;  // nobody asks for the quads of an unchanged block
      }
#pragma unroll
      for (std::uint32_t r = 0; r < kRounds; ++r) {
        kept[r] = two_quads<kExtent>(base + 256 * r, old[r], now[r]);
        moved = moved || (kept[r] & 0x00FF00FF) != 0;
      }
    }
    if (lane_id() == 0) {
      const bool fits = found_ <= args_.escape_room;
      args_.scratch.block_escapes[block_] = fits ? found_ : args_.escape_room;
      if (!fits) {
        atomicExch(&args_.state->lacks_room, 1U);
      }
    }
    const bool changed = end <= kAtOnce || __any_sync(kFullWarp, moved) != 0;
    if (end <= kAtOnce) {
#pragma unroll
      for (std::uint32_t r = 0; r < kRounds; ++r) {
        count_levels(kept[r], count_at<kExtent>(8 * lane_id() + 256 * r));
      }
    } else if (changed) {  // this thread's own stores
      for (std::uint32_t at = 8 * lane_id(); at < values_; at += 256) {
        count_levels(pair_at(at), count_at<kExtent>(at));
      }
    }
    return changed;
  }

  // Whether any lane's groups do. Whole warp.
  __device__ static bool differ(const Group<Word> (&old)[kRounds],
                                const Group<Word> (&now)[kRounds]) {
    std::uint32_t bits = 0;
#pragma unroll
    for (std::uint32_t r = 0; r < kRounds; ++r) {
#pragma unroll
      for (int i = 0; i < Group<Word>::kRegisters; ++i) {
        bits |= old[r].reg[i] ^ now[r].reg[i];
      }
    }
    return __any_sync(kFullWarp, bits != 0) != 0;
  }

  __device__ std::uint32_t& pair_at(std::uint32_t at) const {
    return reinterpret_cast<std::uint32_t*>(args_.scratch.quads)[(first_ + at) / 8];
  }
  // Levels of the two quads that `count` values fill.
  __device__ void count_levels(std::uint32_t pair, std::uint32_t count) {
    if (count > 0) {
      shared_.levels.add_one(pair >> 8 & 0xFF);
    }
    if (count > 4) {
      shared_.levels.add_one(pair >> 24);
    }
  }

  // The quads of the group at `at`, zero when it is beyond the block. Stores them and the escapes.
  template <Extent kExtent>
  __device__ std::uint32_t two_quads(std::uint32_t at, const Group<Word>& old,
                                     const Group<Word>& now) {
    const std::uint32_t count = count_at<kExtent>(at);
    const GroupDifference<Word> found = compare_group<Kind, kExtent>(old, now, count);
    if (__any_sync(kFullWarp, found.escapes != 0)) {
      store_escapes(found, old);
    }
    moved_quads_ += ((found.quads & 0xFF) != 0 ? 1 : 0) + ((found.quads & 0xFF0000) != 0 ? 1 : 0);
    if (count > 0) {
      pair_at(at) = found.quads;
    }
    return count > 0 ? found.quads : 0;
  }

  // Puts u and level of this warp's escapes behind those of the block that are there. Whole warp.
  __device__ void store_escapes(const GroupDifference<Word>& group, const Group<Word>& old) {
    const std::uint32_t own = __popc(group.escapes);
    const std::uint32_t end = warp_inclusive_scan(own);
    std::uint32_t at = found_ + end - own;
    const std::uint64_t region = block_ * args_.escape_room;
    auto* values = reinterpret_cast<Word*>(args_.scratch.escapes) + region;
    std::uint16_t* kinds = args_.scratch.escape_kinds + region;
    for (std::uint32_t rest = group.escapes; rest != 0; rest &= rest - 1) {
      const std::uint32_t i = __ffs(rest) - 1;
      const std::uint32_t level = Kind::level(pick(old, i));
      if (at < args_.escape_room) {
        values[at] = pick(group.u, i);
        kinds[at] = static_cast<std::uint16_t>(level);
      }
      atomicAdd(&shared_.escape_levels[level], 1U);
      ++at;
    }
    found_ += __shfl_sync(kFullWarp, end, 31);
  }

  // Value i of a group in registers, which cannot be indexed.
  __device__ static Word pick(const Group<Word>& group, std::uint32_t i) {
    if constexpr (sizeof(Word) == 2) {
      const std::uint32_t low = (i & 2) != 0 ? group.reg[1] : group.reg[0];
      const std::uint32_t high = (i & 2) != 0 ? group.reg[3] : group.reg[2];
      return static_cast<Word>(((i & 4) != 0 ? high : low) >> (16 * (i & 1)));
    } else {
      Word word = group.get(0);
#pragma unroll
      for (std::uint32_t k = 1; k < 8; ++k) {
        word = i == k ? group.get(k) : word;
      }
      return word;
    }
  }

  __device__ bool high_block() {
    std::uint64_t kept[kRounds];
    bool moved = false;
    for (std::uint32_t base = 8 * lane_id(); base - 8 * lane_id() < values_; base += kAtOnce) {
#pragma unroll
      for (std::uint32_t r = 0; r < kRounds; ++r) {
        const Group<Word> old = load<Extent::kAny>(args_.old, base + 256 * r);
        const Group<Word> now = load<Extent::kAny>(args_.now, base + 256 * r);
#pragma unroll
        for (int i = 0; i < Group<Word>::kRegisters; ++i) {
          moved = moved || old.reg[i] != now.reg[i];
        }
        kept[r] = levels_of(old);
      }
    }
    const bool changed = __any_sync(kFullWarp, moved) != 0;
    if (changed && values_ <= kAtOnce) {
#pragma unroll
      for (std::uint32_t r = 0; r < kRounds; ++r) {
        shared_.levels.add(kept[r], count_at<Extent::kAny>(8 * lane_id() + 256 * r));
      }
    } else if (changed) {
      for (std::uint32_t at = 8 * lane_id(); at < values_; at += 256) {
        shared_.levels.add(levels_of(load<Extent::kAny>(args_.old, at)),
                           count_at<Extent::kAny>(at));
      }
    }
    return changed;
  }

  __device__ static std::uint64_t levels_of(const Group<Word>& old) {
    std::uint64_t levels = 0;
#pragma unroll
    for (std::uint32_t i = 0; i < 8; ++i) {
      levels |= static_cast<std::uint64_t>(Kind::level(old.get(i))) << (8 * i);
    }
    return levels;
  }

  // choose_contexts, a level a thread: the number of contexts wanted follows from how many items
  // there are. Clears the counts, and writes how many items are in each context.
  template <class Wanted>
  __device__ ContextChoice choose(unsigned long long* levels, std::uint32_t share,
                                  const Wanted& wanted, unsigned long long* in_context,
                                  std::uint32_t most_contexts) {
    const std::uint32_t level = 255 - threadIdx.x;
    const std::uint64_t count = __ldcg(&levels[level]);
    levels[level] = 0;
    if (threadIdx.x < most_contexts) {
      shared_.in_context[threadIdx.x] = 0;
    }
    __syncthreads();  // the sums may still be read from an earlier use
    const std::uint64_t reached = block_inclusive_scan(count, shared_.scan);
    if (threadIdx.x == kThreads - 1) {
      shared_.all = reached;
    }
    __syncthreads();  // the number of all items is known
    const std::uint64_t all = shared_.all;
    const auto top =
        static_cast<std::uint32_t>(255 - __syncthreads_count(reached * share < all ? 1 : 0));
    const auto least = static_cast<std::uint32_t>(255 - __syncthreads_count(reached < all ? 1 : 0));
    ContextChoice choice;
    if (all != 0) {
      const std::uint32_t fitting = top - least + 1;
      choice = {wanted(all) < fitting ? wanted(all) : fitting, top};
      if (count != 0) {
        atomicAdd(&shared_.in_context[context_of(level, choice.top, choice.contexts)],
                  static_cast<unsigned long long>(count));
      }
    }
    __syncthreads();  // the items of all contexts are counted
    if (threadIdx.x < most_contexts) {
      in_context[threadIdx.x] = shared_.in_context[threadIdx.x];
    }
    return choice;
  }

  const CompareArgs& args_;
  Shared& shared_;
  std::uint32_t moved_quads_ = 0;
  std::uint64_t block_ = 0;  // the one under way
  std::uint64_t first_ = 0;
  std::uint32_t values_ = 0;
  std::uint32_t found_ = 0;
};

template <class Kind, Effort kEffort>
__global__ void __launch_bounds__(kThreads, sizeof(typename Kind::Word) <= 2 ? 4 : 2)
    delta_compare_kernel(const __grid_constant__ CompareArgs args) {
  __shared__ typename CompareBlock<Kind, kEffort>::Shared shared;
  CompareBlock<Kind, kEffort> block(args, shared);
  block.run();
  if (last_block(&args.state->ticket)) {
    block.finish();
  }
}

}  // namespace ciera::codec::cuda
