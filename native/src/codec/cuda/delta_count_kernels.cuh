// How often each symbol occurs in its context; on the way the escapes of each segment are put
// together (docs/wire-format.md, section 11).
#pragma once

#include "codec/cuda/changed_list.cuh"
#include "codec/cuda/delta_encode_state.hpp"

namespace ciera::codec::cuda {

// What a list of changed blocks has beyond them: a walk over quads may stand 32 of them behind the
// last one, and a block has at least two.
inline constexpr std::uint32_t kQuadListPadding = 24;

struct DeltaCodeArgs {
  FrameParams params;
  const std::byte* now;
  const std::byte* old;
  std::uint32_t escape_room;  // of a block
  std::uint64_t words_room;   // of a segment
  DeltaPolicy policy;
  std::byte* frame;
  DeltaScratch scratch;
  DeltaEncodeState* state;
  DeltaOutcome* outcome;
};

__device__ inline std::uint64_t coded_segments(const DeltaCodeArgs& args) {
  return args.params.coder == Coder::kRans
             ? rans_segments(delta_items(args.params.effort, args.state->values),
                             args.params.segment_log2)
             : 0;
}

// Then values and quads lie as they are coded.
__device__ inline bool all_blocks_changed(const DeltaCodeArgs& args) {
  return args.state->changed_blocks == block_count(args.params.numel, args.params.block_size);
}

template <class Kind, Effort kEffort>
class CountBlock {
 public:
  using Word = typename Kind::Word;
  static constexpr std::uint32_t kSymbols = value_symbols(kWordBits<Kind>);

  struct Shared {
    std::uint32_t quads[kMaxQuadContexts * 256];
    std::uint32_t values[kMaxValueContexts * kSymbols];
  };

  __device__ CountBlock(const DeltaCodeArgs& args, Shared& shared)
      : args_(args), shared_(shared), quad_(args.state->quad), value_(args.state->value) {}

  __device__ void run() {
    for (std::uint32_t i = threadIdx.x; i < kMaxQuadContexts * 256; i += kThreads) {
      shared_.quads[i] = 0;
    }
    for (std::uint32_t i = threadIdx.x; i < kMaxValueContexts * kSymbols; i += kThreads) {
      shared_.values[i] = 0;
    }
    __syncthreads();  // before any thread counts
    if constexpr (kEffort == Effort::kDefault) {
      all_blocks_changed(args_) ? count_all_quads() : count_listed_quads();
    }
    const std::uint64_t segments = coded_segments(args_);
    // Neighbours in different blocks of threads, so that few segments reach many SMs.
    for (std::uint64_t s = blockIdx.x + static_cast<std::uint64_t>(warp_id()) * gridDim.x;
         s < segments; s += static_cast<std::uint64_t>(gridDim.x) * kWarps) {
      const SegmentRange range =
          segment_range(args_.params.effort, args_.params.segment_log2, args_.state->values, s);
      if constexpr (kEffort == Effort::kHigh) {
        count_values(range);
      } else {
        gather_escapes(s, range);
      }
    }
    __syncthreads();  // all have counted
    flush(shared_.quads, args_.state->quad_counts[0], kMaxQuadContexts * 256, 256);
    flush(shared_.values, args_.state->value_counts[0], kMaxValueContexts * kSymbols, kSymbols);
  }

 private:
  __device__ static void flush(const std::uint32_t* bins, unsigned long long* counts,
                               std::uint32_t size, std::uint32_t width) {
    for (std::uint32_t i = threadIdx.x; i < size; i += kThreads) {
      if (bins[i] != 0) {
        atomicAdd(&counts[i / width * 256 + i % width], static_cast<unsigned long long>(bins[i]));
      }
    }
  }

  // Byte 0 is most of them: how often it occurs follows from the levels.
  __device__ void count_quad(std::uint32_t quad) {
    const std::uint32_t byte = quad & 0xFF;
    if (byte != 0) {
      atomicAdd(&shared_.quads[256 * context_of(quad >> 8, quad_.top, quad_.contexts) + byte], 1U);
    }
  }

  // In any order, as they lie.
  __device__ void count_all_quads() {
    const std::uint64_t quads = ceil_div(args_.params.numel, 4);
    const auto* eights = reinterpret_cast<const uint4*>(args_.scratch.quads);
    const std::uint64_t stride = static_cast<std::uint64_t>(gridDim.x) * kThreads;
    const std::uint64_t first = static_cast<std::uint64_t>(blockIdx.x) * kThreads + threadIdx.x;
#pragma unroll 2
    for (std::uint64_t i = first; i < quads / 8; i += stride) {
      const uint4 eight = eights[i];
#pragma unroll
      for (const std::uint32_t pair : {eight.x, eight.y, eight.z, eight.w}) {
        count_quad(pair & 0xFFFF);
        count_quad(pair >> 16);
      }
    }
    for (std::uint64_t q = quads / 8 * 8 + first; q < quads; q += stride) {
      count_quad(args_.scratch.quads[q]);
    }
  }

  // A changed block a warp.
  __device__ void count_listed_quads() {
    const FrameParams& params = args_.params;
    const std::uint64_t changed = args_.state->changed_blocks;
    for (std::uint64_t p = static_cast<std::uint64_t>(blockIdx.x) * kWarps + warp_id(); p < changed;
         p += static_cast<std::uint64_t>(gridDim.x) * kWarps) {
      const std::uint64_t block = args_.scratch.list[p];
      const auto quads = static_cast<std::uint32_t>(
          ceil_div(block_values(block, params.numel, params.block_size), 4));
      const std::uint16_t* from = args_.scratch.quads + block * (params.block_size / 4);
      for (std::uint32_t q = lane_id(); q < quads; q += 32) {
        count_quad(from[q]);
      }
    }
    __syncwarp();  // lanes may have left at different times
  }

  __device__ void count_values(const SegmentRange& range) {
    constexpr std::uint32_t kAhead = sizeof(Word) <= 2 ? 8 : 4;
    const auto* old = reinterpret_cast<const Word*>(args_.old);
    const auto* now = reinterpret_cast<const Word*>(args_.now);
    const auto count = static_cast<std::uint32_t>(range.count());
    ListWalk walk(args_.scratch.list, args_.params.block_size, range.from + lane_id());
    for (std::uint32_t i = lane_id(); i < count; i += 32 * kAhead) {
      Word before[kAhead] = {};
      Word after[kAhead] = {};
#pragma unroll
      for (std::uint32_t k = 0; k < kAhead; ++k) {
        if (i + 32 * k < count) {
          before[k] = old[walk.value()];
          after[k] = now[walk.value()];
          walk.forward();
        }
      }
#pragma unroll
      for (std::uint32_t k = 0; k < kAhead; ++k) {
        if (before[k] != after[k]) {
          add_value(Kind::level(before[k]), difference<Kind>(before[k], after[k]));
        }
      }
    }
    __syncwarp();  // lanes may have left at different times
  }

  // Counts a value's symbol; returns it with its context above.
  __device__ std::uint16_t add_value(std::uint32_t level, Word u) {
    const std::uint32_t symbol = value_symbol(u).symbol;
    const std::uint32_t c = context_of(level, value_.top, value_.contexts);
    atomicAdd(&shared_.values[kSymbols * c + symbol], 1U);
    return static_cast<std::uint16_t>(symbol | c << 8);
  }

  // How many escapes the first `quads` quads of a block have. Whole warp.
  __device__ std::uint32_t escapes_before(std::uint64_t block, std::uint32_t quads) const {
    const std::uint16_t* symbols = args_.scratch.quads + block * (args_.params.block_size / 4);
    std::uint32_t found = 0;
    for (std::uint32_t q = lane_id(); q < quads; q += 32) {
      found += __popc(symbols[q] & symbols[q] >> 1 & 0x55);
    }
    return __reduce_add_sync(kFullWarp, found);
  }

  // Moves the escapes of a segment's blocks together, to where those of its first block begin, and
  // counts them. No warp writes where another reads: what a segment has of a block lies in one
  // piece, and pieces only move forward into their own segment's.
  __device__ void gather_escapes(std::uint64_t segment, const SegmentRange& range) {
    const std::uint32_t per_block = args_.params.block_size / 4;
    const std::uint64_t first_quad = range.first_quad();
    const std::uint64_t end_quad = first_quad + range.quads();
    const std::uint64_t first = first_quad / per_block;  // places in the list
    const std::uint64_t end = ceil_div(end_quad, per_block);
    const std::uint32_t* list = args_.scratch.list;
    const std::uint32_t room = args_.escape_room;
    // A segment may begin or end within a block.
    const auto skipped_quads = static_cast<std::uint32_t>(first_quad % per_block);
    const auto last_quads = static_cast<std::uint32_t>(end_quad - (end - 1) * per_block);
    std::uint32_t skipped = skipped_quads == 0 ? 0 : escapes_before(list[first], skipped_quads);
    skipped = skipped < room ? skipped : room;
    const std::uint32_t last =
        last_quads == per_block ? room : escapes_before(list[end - 1], last_quads);
    const std::uint64_t to = static_cast<std::uint64_t>(list[first]) * room + skipped;
    std::uint32_t done = 0;
    for (std::uint64_t base = first; base < end; base += 32) {
      const std::uint64_t place = base + lane_id();
      std::uint32_t count = 0;
      std::uint64_t from = 0;
      if (place < end) {
        const std::uint32_t found = args_.scratch.block_escapes[list[place]];
        const std::uint32_t before = place == first ? skipped : 0;
        const std::uint32_t upto = place == end - 1 && last < found ? last : found;
        count = upto > before ? upto - before : 0;
        from = static_cast<std::uint64_t>(list[place]) * room + before;
      }
      done += move_escapes(from, count, to + done);
    }
    if (lane_id() == 0) {
      args_.scratch.segment_first[segment] = to;
      args_.scratch.segment_escapes[segment] = done;
    }
  }

  // Moves `count` escapes at `from`, of each lane, to where they follow each other at `to`; returns
  // how many they are. Some steps at once, since what is read is far away.
  __device__ std::uint32_t move_escapes(std::uint64_t from, std::uint32_t count, std::uint64_t to) {
    constexpr std::uint32_t kAtOnce = 4;
    auto* escapes = reinterpret_cast<Word*>(args_.scratch.escapes);
    std::uint16_t* kinds = args_.scratch.escape_kinds;
    const std::uint32_t end = warp_inclusive_scan(count);
    const std::uint32_t total = __shfl_sync(kFullWarp, end, 31);
    const std::uint64_t origin = from - (end - count);  // of the escape with number 0, if it had it
    for (std::uint32_t base = 0; base < total; base += 32 * kAtOnce) {
      Word u[kAtOnce] = {};
      std::uint32_t levels[kAtOnce] = {};
#pragma unroll
      for (std::uint32_t k = 0; k < kAtOnce; ++k) {
        const std::uint32_t i = base + 32 * k + lane_id();
        const std::uint64_t source = source_of(end, origin, i);
        if (i < total) {
          u[k] = escapes[source];
          levels[k] = kinds[source];
        }
      }
      __syncwarp();  // all have read what may now be written over
#pragma unroll
      for (std::uint32_t k = 0; k < kAtOnce; ++k) {
        const std::uint32_t i = base + 32 * k + lane_id();
        if (i < total) {
          escapes[to + i] = u[k];
          kinds[to + i] = add_value(levels[k], u[k]);
        }
      }
    }
    return total;
  }

  // Where escape number i is, of those that lanes have before `end` each. Whole warp.
  __device__ static std::uint64_t source_of(std::uint32_t end, std::uint64_t origin,
                                            std::uint32_t i) {
    std::uint32_t owner = 0;  // how many lanes' escapes come before it
#pragma unroll
    for (std::uint32_t step = 16; step > 0; step /= 2) {
      const std::uint32_t probe = __shfl_sync(kFullWarp, end, owner + step - 1);
      owner += probe <= i ? step : 0;
    }
    return __shfl_sync(kFullWarp, origin, owner) + i;
  }

  const DeltaCodeArgs& args_;
  Shared& shared_;
  const ContextChoice quad_;
  const ContextChoice value_;
};

template <class Kind, Effort kEffort>
__global__ void __launch_bounds__(kThreads, 4)
    delta_count_kernel(const __grid_constant__ DeltaCodeArgs args) {
  __shared__ typename CountBlock<Kind, kEffort>::Shared shared;
  CountBlock<Kind, kEffort>(args, shared).run();
}

}  // namespace ciera::codec::cuda
