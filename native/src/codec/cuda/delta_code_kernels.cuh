// The rans coder of a changes section: a warp codes a segment from its end to its beginning,
// values, marked bytes, quads (docs/wire-format.md, section 11).
#pragma once

#include <type_traits>

#include "codec/cuda/delta_count_kernels.cuh"
#include "codec/cuda/rans_writer.cuh"

namespace ciera::codec::cuda {

// In a block of threads: few where there are few segments, so that these reach many SMs, else as
// many as let all tables of an SM's blocks stay in its shared memory.
inline constexpr std::uint32_t kFewCodeWarps = 4;
inline constexpr std::uint32_t kMostCodeWarps = 8;
inline std::uint32_t code_warps(std::uint64_t segments) {
  return segments < 1024 ? kFewCodeWarps : kMostCodeWarps;
}

// Where items lie when all blocks changed: as ListWalk, one after the other.
class PlainWalk {
 public:
  __device__ PlainWalk(const std::uint32_t*, std::uint32_t, std::uint64_t j) : at_(j) {}
  __device__ std::uint64_t value() const { return at_; }
  __device__ void forward() { at_ += 32; }
  __device__ void back() { at_ -= 32; }

 private:
  std::uint64_t at_;
};

// Which lanes have an item in a step.
enum class Lanes { kAll, kSome };

// Codes `count` items, 32 abreast, from the last: calls step(fetch(k), k, lanes) for k from the
// last step to 0; fetch is called in that order too, and kAhead steps early. room() is called
// before steps that are at most kAhead.
template <std::uint32_t kAhead, class Fetch, class Step, class Room>
__device__ void steps_back(std::uint32_t count, const Fetch& fetch, const Step& step,
                           const Room& room) {
  using Item = decltype(fetch(0U));
  using All = std::integral_constant<Lanes, Lanes::kAll>;
  using Some = std::integral_constant<Lanes, Lanes::kSome>;
  std::uint32_t steps = (count + 31) / 32;
  room();
  for (std::uint32_t rest = steps % kAhead; rest > 0 || steps * 32 > count; --steps) {
    step(fetch(steps - 1), steps - 1, Some{});
    if (rest == 0) {  // the last step was one of a whole batch
      rest = kAhead;
      room();
    }
    --rest;
  }
  Item next[kAhead];
  const auto fetch_batch = [&](std::uint32_t end) {
#pragma unroll
    for (std::uint32_t k = 0; k < kAhead; ++k) {
      next[k] = fetch(end - 1 - k);
    }
  };
  if (steps != 0) {
    fetch_batch(steps);
  }
  for (; steps != 0; steps -= kAhead) {
    Item now[kAhead];
#pragma unroll
    for (std::uint32_t k = 0; k < kAhead; ++k) {
      now[k] = next[k];
    }
    if (steps > kAhead) {
      fetch_batch(steps - kAhead);
    }
    room();
#pragma unroll
    for (std::uint32_t k = 0; k < kAhead; ++k) {
      step(now[k], steps - 1 - k, All{});
    }
  }
}

template <class Kind, Effort kEffort>
class SegmentCoder {
 public:
  using Word = typename Kind::Word;

  __device__ SegmentCoder(const DeltaCodeArgs& args, const uint4* quad_table,
                          const std::uint32_t* rare, std::uint64_t segment)
      : args_(args),
        quad_table_(quad_table),
        rare_(rare),
        segment_(segment),
        range_(segment_range(args.params.effort, args.params.segment_log2, args.state->values,
                             segment)),
        quad_(args.state->quad),
        value_(args.state->value),
        writer_(args.scratch.words + segment * args.words_room,
                static_cast<std::uint32_t>(args.words_room)) {}

  __device__ void run() {
    all_blocks_changed(args_) ? code<PlainWalk>() : code<ListWalk>();
    args_.scratch.segment_states[kRansLanes * segment_ + lane_id()] = writer_.state();
    if (lane_id() == 0) {
      args_.scratch.segment_words[segment_] = writer_.words();
    }
  }
  __device__ bool spilled() const { return writer_.spilled(); }

 private:
  template <class Walk>
  __device__ void code() {
    if constexpr (kEffort == Effort::kHigh) {
      code_values<Walk>();
    } else {
      code_escapes();
      code_marked<Walk>();
      code_quads<Walk>();
    }
  }

  static constexpr std::uint32_t kRawSteps = raw_steps(kWordBits<Kind>);

  // What the value coder takes: symbol in bits 0 to 7, context above; u. Nothing when not active.
  struct Value {
    Word u;
    std::uint32_t kind;
  };

  __device__ void put_value(const Value& value, bool active) {
    const std::uint32_t symbol = value.kind & 0xFF;
    const std::uint32_t extra = active ? extra_bits_of(symbol) : 0;
    if (__any_sync(kFullWarp, extra != 0)) {
#pragma unroll
      for (std::uint32_t r = kRawSteps; r-- > 0;) {
        const std::uint32_t width = raw_step_bits(extra, r);
        const auto bits = static_cast<std::uint32_t>(value.u >> (kRawBits * r));
        writer_.put_raw(bits & ((1U << width) - 1), width);
      }
    }
    // Contexts stand in `kind` as they do in the table.
    writer_.put(__ldg(&args_.state->value_table[value.kind]), active);
  }

  static constexpr std::uint32_t kValuesAhead = 4;

  __device__ void code_escapes() {
    const std::uint32_t count = args_.scratch.segment_escapes[segment_];
    const std::uint64_t first = args_.scratch.segment_first[segment_] + lane_id();
    const auto* values = reinterpret_cast<const Word*>(args_.scratch.escapes) + first;
    const std::uint16_t* kinds = args_.scratch.escape_kinds + first;
    steps_back<kValuesAhead>(
        count,
        [&](std::uint32_t k) {
          return 32 * k + lane_id() < count ? Value{values[32 * k], kinds[32 * k]} : Value{};
        },
        [&](const Value& value, std::uint32_t k, auto lanes) {
          put_value(value, lanes == Lanes::kAll || 32 * k + lane_id() < count);
        },
        [&] { writer_.make_room(kValuesAhead * 32 * (1 + kRawSteps)); });
  }

  template <class Walk>
  __device__ void code_values() {
    struct Pair {
      Word old;
      Word now;
    };
    const auto* old = reinterpret_cast<const Word*>(args_.old);
    const auto* now = reinterpret_cast<const Word*>(args_.now);
    const auto count = static_cast<std::uint32_t>(range_.count());
    const std::uint32_t steps = (count + 31) / 32;
    Walk walk(args_.scratch.list, args_.params.block_size, range_.from + 32 * steps + lane_id());
    steps_back<kValuesAhead>(
        count,
        [&](std::uint32_t k) {
          walk.back();
          return 32 * k + lane_id() < count ? Pair{old[walk.value()], now[walk.value()]} : Pair{};
        },
        [&](const Pair& pair, std::uint32_t k, auto lanes) {
          const Word u = difference<Kind>(pair.old, pair.now);
          const std::uint32_t c = context_of(Kind::level(pair.old), value_.top, value_.contexts);
          put_value({u, value_symbol(u).symbol | c << 8},
                    lanes == Lanes::kAll || 32 * k + lane_id() < count);
        },
        [&] { writer_.make_room(kValuesAhead * 32 * (1 + kRawSteps)); });
  }

  __device__ bool is_rare(std::uint32_t symbol) const {
    const std::uint32_t c = context_of(symbol >> 8, quad_.top, quad_.contexts);
    return (rare_[8 * c + (symbol >> 5 & 7)] >> (symbol & 31) & 1) != 0;
  }

  // Codes the bytes that go behind marks.
  template <class Walk>
  __device__ void code_marked() {
    std::uint8_t* marked = args_.scratch.marked + range_.first_quad();
    std::uint32_t marks = 0;
    if constexpr (std::is_same_v<Walk, PlainWalk>) {
      marks = list_plain(marked);
    } else {
      marks = list_walking(marked);
    }
    __syncwarp();  // all bytes are there
    for (std::uint32_t step = (marks + 31) / 32; step-- > 0;) {
      const std::uint32_t i = 32 * step + lane_id();
      writer_.make_room(32);
      writer_.put_raw(i < marks ? marked[i] : 0, i < marks ? 8 : 0);
    }
  }

  // Lists those bytes in ascending order; returns how many.
  __device__ std::uint32_t list_walking(std::uint8_t* marked) {
    const auto quads = static_cast<std::uint32_t>(range_.quads());
    ListWalk walk(args_.scratch.list, args_.params.block_size / 4, range_.first_quad() + lane_id());
    std::uint32_t marks = 0;
    for (std::uint32_t base = 0; base < quads; base += 32) {
      const bool active = base + lane_id() < quads;
      const std::uint32_t symbol = active ? args_.scratch.quads[walk.value()] : 0;
      walk.forward();
      const bool rare = active && is_rare(symbol);
      const unsigned mask = __ballot_sync(kFullWarp, rare);
      if (rare) {
        marked[marks + __popc(mask & ((1U << lane_id()) - 1))] = static_cast<std::uint8_t>(symbol);
      }
      marks += __popc(mask);
    }
    return marks;
  }

  // The same where quads lie one after the other: eight to a lane at a time.
  __device__ std::uint32_t list_plain(std::uint8_t* marked) {
    const auto quads = static_cast<std::uint32_t>(range_.quads());
    const std::uint16_t* from = args_.scratch.quads + range_.first_quad();
    std::uint32_t marks = 0;
    for (std::uint32_t base = 8 * lane_id(); base - 8 * lane_id() < quads; base += 256) {
      // The scratch is there up to a multiple of eight; what lies behind the last quad is left out.
      const uint4 eight = base < quads ? *reinterpret_cast<const uint4*>(from + base) : uint4{};
      const std::uint32_t pairs[4] = {eight.x, eight.y, eight.z, eight.w};
      const std::uint32_t left = base < quads ? quads - base : 0;
      std::uint32_t rare = 0;
#pragma unroll
      for (std::uint32_t i = 0; i < 8; ++i) {
        const std::uint32_t symbol = pairs[i / 2] >> (16 * (i % 2)) & 0xFFFF;
        rare |= (is_rare(symbol) ? 1U : 0U) << i;
      }
      rare &= left < 8 ? (1U << left) - 1 : 0xFF;
      if (__any_sync(kFullWarp, rare != 0)) {
        const std::uint32_t own = __popc(rare);
        const std::uint32_t end = warp_inclusive_scan(own);
        std::uint8_t* to = marked + marks + end - own;
        for (; rare != 0; rare &= rare - 1) {
          *to++ = static_cast<std::uint8_t>(from[base + __ffs(rare) - 1]);
        }
        marks += __shfl_sync(kFullWarp, end, 31);
      }
    }
    return marks;
  }

  template <class Walk>
  __device__ void code_quads() {
    constexpr std::uint32_t kAhead = 8;
    const auto quads = static_cast<std::uint32_t>(range_.quads());
    const std::uint32_t steps = (quads + 31) / 32;
    Walk walk(args_.scratch.list, args_.params.block_size / 4,
              range_.first_quad() + 32 * steps + lane_id());
    steps_back<kAhead>(
        quads,
        [&](std::uint32_t k) {
          walk.back();
          return 32 * k + lane_id() < quads
                     ? static_cast<std::uint32_t>(args_.scratch.quads[walk.value()])
                     : 0U;
        },
        [&](std::uint32_t symbol, std::uint32_t k, auto lanes) {
          const std::uint32_t c = context_of(symbol >> 8, quad_.top, quad_.contexts);
          writer_.put(quad_table_[256 * c + (symbol & 0xFF)],
                      lanes == Lanes::kAll || 32 * k + lane_id() < quads);
        },
        [&] { writer_.make_room(32 * kAhead); });
  }

  const DeltaCodeArgs& args_;
  const uint4* quad_table_;    // in shared memory
  const std::uint32_t* rare_;  // the same
  const std::uint64_t segment_;
  const SegmentRange range_;
  const ContextChoice quad_;
  const ContextChoice value_;
  WarpWriter writer_;
};

// Decides what the frame is, once all segments are coded. One thread.
__device__ inline void decide_delta(const DeltaCodeArgs& args, std::uint64_t words, bool spilled) {
  DeltaEncodeState& state = *args.state;
  const FrameParams& params = args.params;
  const std::uint64_t stored = stored_change_bytes(params, state.values);
  const std::uint64_t coded =
      state.table_bytes + (4 + kRansStateBytes) * coded_segments(args) + 2 * words;
  const bool shrinks =
      params.coder == Coder::kRans && state.values != 0 && coded < stored && words <= 0xFFFFFFFF;
  const bool lacks_room =
      params.coder == Coder::kRans && (state.lacks_room != 0 || (shrinks && spilled));
  state.lacks_room = 0;
  const bool same = is_word_delta(params) && state.changed_blocks == 0;
  wire::FrameHeader header = make_header(params, same ? wire::Kind::kSame : wire::Kind::kDelta);
  if (!same) {
    header.last().bytes = shrinks ? coded : stored;
    header.last().coder = shrinks ? Coder::kRans : Coder::kRaw;
    wire::lay_out(header);
  }
  const bool shorter_than_raw =
      header.frame_bytes < make_header(params, wire::Kind::kRaw).frame_bytes;
  const bool is_shortest = same || args.policy == DeltaPolicy::kForce ||
                           (shorter_than_raw && (!has_exponent(params.dtype) ||
                                                 header.frame_bytes <= delta_quick_bytes(params)));
  args.outcome->lacks_room = lacks_room ? 1 : 0;
  args.outcome->may_be_key = !is_shortest ? 1 : 0;
  args.outcome->delta_bytes = header.frame_bytes;
  // Another attempt follows: nothing needs to be put together.
  state.header = lacks_room || !is_shortest ? make_header(params, wire::Kind::kSame) : header;
}

template <class Kind, Effort kEffort>
__global__ void __launch_bounds__(32 * kMostCodeWarps, 4)
    delta_code_kernel(const __grid_constant__ DeltaCodeArgs args) {
  constexpr std::uint32_t kQuadEntries = kEffort == Effort::kHigh ? 1 : kMaxQuadContexts * 256;
  __shared__ uint4 quad_table[kQuadEntries];
  __shared__ std::uint32_t rare[kMaxQuadContexts * 8];
  __shared__ std::uint64_t sums[kMostCodeWarps];
  __shared__ unsigned spilled;
  const DeltaEncodeState& state = *args.state;
  const std::uint64_t segments = coded_segments(args);
  const std::uint32_t warps = blockDim.x / 32;
  const std::uint64_t first = static_cast<std::uint64_t>(blockIdx.x) * warps;
  const std::uint64_t segment = first + warp_id();
  if (first < segments) {
    if constexpr (kEffort == Effort::kDefault) {
      for (std::uint32_t i = threadIdx.x; i < 256 * state.quad.contexts; i += blockDim.x) {
        quad_table[i] = state.quad_table[i];
      }
      if (threadIdx.x < kMaxQuadContexts * 8) {
        rare[threadIdx.x] = state.rare[threadIdx.x / 8][threadIdx.x % 8];
      }
    }
    __syncthreads();  // the tables are whole
    if (segment < segments) {
      SegmentCoder<Kind, kEffort> coder(args, quad_table, rare, segment);
      coder.run();
      if (coder.spilled() && lane_id() == 0) {
        // Told apart from escapes that lack room by its bit.
        args.scratch.segment_words[segment] |= kSpilledBit;
      }
    }
  }
  if (!last_block(&args.state->ticket)) {
    return;
  }
  if (threadIdx.x == 0) {
    spilled = 0;
  }
  __syncthreads();  // before any thread sets it
  std::uint64_t words = 0;
  for (std::uint64_t s = threadIdx.x; s < segments; s += blockDim.x) {
    const std::uint32_t count = __ldcg(&args.scratch.segment_words[s]);
    words += count & ~kSpilledBit;
    if ((count & kSpilledBit) != 0) {
      spilled = 1;  // every writer writes the same
    }
  }
  words = warp_sum(words);
  if (lane_id() == 0) {
    sums[warp_id()] = words;
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    for (std::uint32_t w = 1; w < warps; ++w) {
      words += sums[w];
    }
    decide_delta(args, words, spilled != 0);
  }
}

}  // namespace ciera::codec::cuda
