// One segment of a changes section, decoded by a warp (docs/wire-format.md, section 11): quads, the
// bytes behind marks and the values of escapes, or in form 1 values only.
#pragma once

#include <type_traits>

#include "codec/cuda/delta_decode_tables.cuh"
#include "codec/cuda/delta_kinds.cuh"
#include "codec/cuda/delta_places.cuh"

namespace ciera::codec::cuda {

// Quads in 32 bytes, the unit of GPU memory: what is written in parts is read before. All quads of
// such a group are stored together.
template <class Kind>
inline constexpr std::uint32_t kGroupQuads =
    sizeof(Quad<Kind>) >= 32 ? 1 : 32 / static_cast<std::uint32_t>(sizeof(Quad<Kind>));

// What a warp has in shared memory besides tables.
template <class Kind>
struct DeltaWarpShared {
  static constexpr std::uint32_t kChunkQuads = 256;
  static constexpr std::uint32_t kBatchGroups = 32 / kGroupQuads<Kind>;
  // What is left of a batch, and a chunk.
  static constexpr std::uint32_t kGroups = kBatchGroups - 1 + kChunkQuads / kGroupQuads<Kind>;
  // What is left of a step, and a batch of quads that are all escapes.
  static constexpr std::uint32_t kValues = 32 + 4 * 32;

  std::uint64_t ring[WordWindow::kRingWords / 4];
  typename Kind::Word words[kValues];  // old ones of escapes that wait for the value coder
  std::uint32_t places[kValues];       // where these are
  std::uint32_t groups[kGroups];       // open groups that wait for their batch
  std::uint8_t symbols[kGroups][kGroupQuads<Kind>];
};

// kWide: cache and dst are aligned to quads, and the shard has fewer than 2^32 values. The slots
// that a phase is called with hold the tables of its contexts one after another.
//
// In form 0 a first pass takes the quads and stores all groups of which everything is known. Groups
// with an escape or a mark stay open: memory would have lost sight of them when their escapes come,
// after all quads. A second pass reads them again, batch by batch, stores them, and puts the new
// words of their escapes on top while they are still at hand.
template <class Kind, bool kWide>
class DeltaSegment {
 public:
  using Word = typename Kind::Word;
  using Place = std::conditional_t<kWide, std::uint32_t, std::uint64_t>;

  __device__ DeltaSegment(const DecodeCall& call, const SegmentWords& words, std::uint64_t segment,
                          DeltaWarpShared<Kind>& shared)
      : prob_bits_(call.state->delta.prob_bits),
        table_size_(1U << prob_bits_),
        quad_(call.state->delta.quad),
        value_(call.state->delta.value),
        stream_(words.state, WordWindow(shared.ring, words.start, words.limit), words.first),
        end_word_(words.first + words.count),
        shared_(shared),
        places_(call.list, call.expected.block_size, first_value(call, segment)),
        cache_(reinterpret_cast<Word*>(call.exponents)),
        dst_(own_dst(call)),
        symbols_(call.quad_symbols + (segment << call.state->delta.segment_log2)),
        marked_(call.quad_marked + (segment << call.state->delta.segment_log2)) {
    const std::uint64_t rest = call.state->symbols - first_value(call, segment);
    const std::uint64_t most = first_value(call, 1);
    values_ = static_cast<std::uint32_t>(rest < most ? rest : most);
    quads_ = (values_ + 3) / 4;
  }

  // Form 0. `steps`: of every symbol (table_steps), in shared memory.
  __device__ __forceinline__ void decode_quads(const std::uint32_t* slots,
                                               const std::uint32_t* value_slots,
                                               const std::uint32_t* steps) {
    using Run = RunWalk<Place, 4, kQuadsAhead>;
    whole_ = values_ / (128 * kQuadsAhead) * kQuadsAhead * 32;
    if (Run::fits(places_)) {
      take_quads(Run(places_), slots, steps);
    } else {
      take_quads(AnyWalk<Place, 4, kQuadsAhead>(places_), slots, steps);
    }
    take_last(slots);
    take_marked();
    __syncwarp();  // symbols and marked bytes of all lanes are there
    finish_groups(value_slots);
  }

  // The steps_of a symbol's values in ascending order of levels, or kOpenSteps.
  __device__ static std::uint32_t table_steps(std::uint32_t symbol) {
    return open_symbols(symbol) % 0x100 != 0 ? kOpenSteps : steps_of(spread_symbol(symbol));
  }

  // Form 1.
  __device__ __forceinline__ void decode_values(const std::uint32_t* slots) {
    using Run = RunWalk<Place, 1, kValuesAhead>;
    whole_ = values_ / (32 * kValuesAhead) * (32 * kValuesAhead);
    if (Run::fits(places_)) {
      take_whole(Run(places_), slots);
    } else {
      take_whole(AnyWalk<Place, 1, kValuesAhead>(places_), slots);
    }
    for (std::uint32_t value = whole_ + lane_id(); value - lane_id() < values_; value += 32) {
      const bool active = value < values_;
      const Place at = places_(active ? value : 0);
      const Word old = cache_[at];
      const Word now = take_value(slots, old, active, true);
      if (active) {
        put_value(now, now != old, at);
      }
    }
  }

  // After either form: whether the segment was a valid one.
  __device__ bool good() const {
    return __any_sync(kFullWarp, bad_) == 0 && stream_.finished(end_word_);
  }

 private:
  using Shared = DeltaWarpShared<Kind>;
  static constexpr std::uint32_t kOpenSteps = 0x02020202;  // no quad's: the symbol leaves it open
  // Steps that old words are read ahead, in few registers; at most 4, see LaneStream::advance.
  static constexpr std::uint32_t kQuadsAhead = sizeof(Word) <= 2 ? 4 : sizeof(Word) == 4 ? 2 : 1;

  static constexpr std::uint32_t kValuesAhead = 4;

  __device__ static std::uint64_t first_value(const DecodeCall& call, std::uint64_t segment) {
    const DeltaHead& head = call.state->delta;
    return segment << (head.segment_log2 + (head.form == Effort::kHigh ? 0 : 2));
  }
  // Exponents become words in a pass of their own, and a dst that is the cache needs nothing.
  __device__ static Word* own_dst(const DecodeCall& call) {
    return !is_word_delta(call.expected) ||
                   call.dst == reinterpret_cast<const std::byte*>(call.exponents)
               ? nullptr
               : reinterpret_cast<Word*>(call.dst);
  }

  // The first pass, over runs of whole quads.
  template <class Walk>
  __device__ __forceinline__ void take_quads(Walk walk, const std::uint32_t* slots,
                                             const std::uint32_t* steps) {
    if (whole_ == 0) {
      return;
    }
    auto run = walk.next();
    Quad<Kind> old[kQuadsAhead];
#pragma unroll
    for (std::uint32_t k = 0; k < kQuadsAhead; ++k) {
      old[k] = load(run.at(k));
    }
    for (std::uint32_t quad = lane_id(); quad < whole_; quad += 32 * kQuadsAhead) {
      const auto now = run;
      const bool more = quad - lane_id() + 32 * kQuadsAhead < whole_;
      if (more) {
        run = walk.next();
      }
#pragma unroll
      for (std::uint32_t k = 0; k < kQuadsAhead; ++k) {
        const Quad<Kind> own = old[k];
        if (more) {
          old[k] = load(run.at(k));
        }
        const QuadOrder order = order_quad<Kind>(levels_of(own));
        const std::uint32_t symbol = stream_.take(slots, quad_base(order), prob_bits_, true) & 0xFF;
        symbols_[quad + 32 * k] = static_cast<std::uint8_t>(symbol);
        marks_ += symbol == kMark ? 1 : 0;
        put_closed(own, steps[symbol], order.places, now.at(k));
      }
      stream_.advance();
    }
  }

  // Stores the quad unless its group is open.
  __device__ __forceinline__ void put_closed(const Quad<Kind>& old, std::uint32_t steps,
                                             std::uint32_t places, Place at) {
    const unsigned group = group_of<kGroupQuads<Kind>>();
    const bool open = (__ballot_sync(kFullWarp, steps == kOpenSteps) & group) != 0;
    const bool moves = (__ballot_sync(kFullWarp, steps != 0) & group) != 0;
    if (!open) {
      const Quad<Kind> moved = shift_quad<Kind>(old, pick_bytes(steps, 0, places));
      if (moves) {
        store(moved, cache_ + at, 4);
      }
      if (dst_ != nullptr) {
        store(moved, dst_ + at, 4);
      }
    }
  }

  // The quads behind those runs, of any length: their symbols only, so that they stay open.
  __device__ __forceinline__ void take_last(const std::uint32_t* slots) {
    for (std::uint32_t quad = whole_ + lane_id(); quad - lane_id() < quads_; quad += 32) {
      const std::uint32_t count = quad < quads_ ? min(values_ - 4 * quad, 4U) : 0;
      const Quad<Kind> old = load_quad<Kind>(cache_ + places_(count != 0 ? 4 * quad : 0), count);
      const QuadOrder order = order_quad<Kind>(levels_of(old, count));
      const std::uint32_t symbol =
          stream_.take(slots, quad_base(order), prob_bits_, count != 0) & 0xFF;
      stream_.advance();
      if (count != 0) {
        symbols_[quad] = static_cast<std::uint8_t>(symbol);
        marks_ += symbol == kMark ? 1 : 0;
      }
    }
  }

  // The bytes behind marks, in their order.
  __device__ __forceinline__ void take_marked() {
    const std::uint32_t marks = __reduce_add_sync(kFullWarp, marks_);
    for (std::uint32_t i = lane_id(); i - lane_id() < marks; i += 32) {
      const std::uint32_t byte = stream_.take_raw(i < marks ? 8 : 0);
      stream_.advance();
      if (i < marks) {
        marked_[i] = static_cast<std::uint8_t>(byte);
      }
    }
  }

  // A quad of a batch, as it was; count is 0 in lanes without one.
  struct OpenQuad {
    Quad<Kind> old;
    Place at = 0;
    std::uint32_t first = 0;  // value in the segment
    std::uint32_t count = 0;
    std::uint32_t symbol = 0;
  };

  // The second pass.
  __device__ __forceinline__ void finish_groups(const std::uint32_t* value_slots) {
    constexpr std::uint32_t kBatch = Shared::kBatchGroups;
    const std::uint32_t chunks = (quads_ + Shared::kChunkQuads - 1) / Shared::kChunkQuads;
    std::uint32_t chunk = 0;
    std::uint32_t listed = 0;  // groups in shared memory, of which `taken` are done with
    std::uint32_t taken = 0;
    std::uint32_t marks = 0;  // before the batch
    std::uint32_t waiting = 0;
    uint2 ahead = load_symbols(0);
    OpenQuad held{};
    bool holds = false;
    for (;;) {
      if (listed - taken < kBatch && chunk < chunks) {
        listed = keep_groups(taken, listed);
        taken = 0;
        while (listed < kBatch && chunk < chunks) {
          const uint2 symbols = ahead;
          ahead = load_symbols(chunk + 1);
          listed = list_open(symbols, chunk++, listed);
        }
        __syncwarp();  // the groups are there
      }
      const std::uint32_t groups = min(listed - taken, kBatch);
      if (groups == 0 && !holds) {
        return;
      }
      const OpenQuad next = fetch_open(taken, groups, marks);
      taken += groups;
      if (holds) {
        put_open(held, waiting);
        waiting = take_values(value_slots, waiting, groups == 0);
      }
      held = next;
      holds = groups != 0;
    }
  }

  // Moves the groups that are left to the front.
  __device__ __forceinline__ std::uint32_t keep_groups(std::uint32_t taken, std::uint32_t listed) {
    const std::uint32_t left = listed - taken;  // fewer than a batch
    const bool own = lane_id() < left;
    const std::uint32_t group = own ? shared_.groups[taken + lane_id()] : 0;
    std::uint8_t symbols[kGroupQuads<Kind>] = {};
#pragma unroll
    for (std::uint32_t i = 0; own && i < kGroupQuads<Kind>; ++i) {
      symbols[i] = shared_.symbols[taken + lane_id()][i];
    }
    __syncwarp();  // every lane has read what it wants
    if (own) {
      shared_.groups[lane_id()] = group;
#pragma unroll
      for (std::uint32_t i = 0; i < kGroupQuads<Kind>; ++i) {
        shared_.symbols[lane_id()][i] = symbols[i];
      }
    }
    return left;
  }

  // Adds the open groups of a chunk, of which this lane has eight quads; how many there are then.
  __device__ __forceinline__ std::uint32_t list_open(uint2 symbols, std::uint32_t chunk,
                                                     std::uint32_t listed) {
    constexpr std::uint32_t kOwn = 8 / kGroupQuads<Kind>;
    constexpr std::uint64_t kMask = ~std::uint64_t{0} >> (64 - 8 * kGroupQuads<Kind>);
    const std::uint64_t all = join(symbols.x, symbols.y);
    const std::uint64_t open = join(open_symbols(symbols.x), open_symbols(symbols.y));
    const std::uint32_t first = Shared::kChunkQuads * chunk + 8 * lane_id();
    const std::uint32_t before = (1U << lane_id()) - 1;
    std::uint32_t rank = listed;
    bool is_open[kOwn];
#pragma unroll
    for (std::uint32_t g = 0; g < kOwn; ++g) {
      const std::uint32_t quad = first + kGroupQuads<Kind> * g;
      is_open[g] =
          (open >> (8 * kGroupQuads<Kind> * g) & kMask) != 0 || (quad >= whole_ && quad < quads_);
      const unsigned mask = __ballot_sync(kFullWarp, is_open[g]);
      rank += __popc(mask & before);
      listed += __popc(mask);
    }
#pragma unroll
    for (std::uint32_t g = 0; g < kOwn; ++g) {
      if (is_open[g]) {
        shared_.groups[rank] = first / kGroupQuads<Kind> + g;
#pragma unroll
        for (std::uint32_t i = 0; i < kGroupQuads<Kind>; ++i) {
          shared_.symbols[rank][i] =
              static_cast<std::uint8_t>(all >> (8 * (kGroupQuads<Kind> * g + i)));
        }
        ++rank;
      }
    }
    return listed;
  }

  // Reads the quads of up to a batch of groups. `marks`: those before it, then after it.
  __device__ __forceinline__ OpenQuad fetch_open(std::uint32_t taken, std::uint32_t groups,
                                                 std::uint32_t& marks) {
    OpenQuad own{};
    const std::uint32_t slot = lane_id() / kGroupQuads<Kind>;
    if (slot < groups) {
      const std::uint32_t within = lane_id() % kGroupQuads<Kind>;
      const std::uint32_t quad = kGroupQuads<Kind> * shared_.groups[taken + slot] + within;
      if (quad < quads_) {
        own.first = 4 * quad;
        own.count = min(values_ - 4 * quad, 4U);
        own.symbol = shared_.symbols[taken + slot][within];
        own.at = places_(own.first);
        own.old = own.count == 4 ? load(own.at) : load_quad<Kind>(cache_ + own.at, own.count);
      }
    }
    const bool mark = own.count != 0 && own.symbol == kMark;
    const unsigned mask = __ballot_sync(kFullWarp, mark);
    if (mark) {
      own.symbol = marked_[marks + __popc(mask & ((1U << lane_id()) - 1))];
    }
    marks += __popc(mask);
    return own;
  }

  // Stores the quads of a batch and adds their escapes to the `waiting` ones, as they are.
  __device__ __forceinline__ void put_open(const OpenQuad& own, std::uint32_t& waiting) {
    const QuadOrder order = order_quad<Kind>(levels_of(own.old, own.count));
    std::uint32_t moves = quad_moves(own.symbol, order.places);
    if (own.count < 4) {  // what fills the quad must not move, and is nowhere
      bad_ = bad_ || moves >> (8 * own.count) != 0;
      moves &= (1U << (8 * own.count)) - 1;
    }
    if (own.count != 0) {
      const Quad<Kind> moved = move_quad<Kind>(own.old, moves);
      store(moved, cache_ + own.at, own.count);
      if (dst_ != nullptr) {
        store(moved, dst_ + own.at, own.count);
      }
    }
    const std::uint32_t escapes = quad_escapes(moves);
    const auto count = static_cast<std::uint32_t>(__popc(escapes));
    const std::uint32_t before = (1U << lane_id()) - 1;
    std::uint32_t rank = waiting;
#pragma unroll
    for (std::uint32_t bit = 0; bit < 3; ++bit) {
      const unsigned mask = __ballot_sync(kFullWarp, (count >> bit & 1) != 0);
      rank += static_cast<std::uint32_t>(__popc(mask & before)) << bit;
      waiting += static_cast<std::uint32_t>(__popc(mask)) << bit;
    }
#pragma unroll
    for (std::uint32_t i = 0; i < 4; ++i) {
      if ((escapes >> i & 1) != 0) {
        shared_.words[rank] = own.old.get(i);
        shared_.places[rank] = kWide ? static_cast<std::uint32_t>(own.at) + i : own.first + i;
        ++rank;
      }
    }
  }

  // Takes full steps of the waiting values, or all of them; how many are left.
  __device__ __forceinline__ std::uint32_t take_values(const std::uint32_t* slots,
                                                       std::uint32_t waiting, bool all) {
    __syncwarp();  // the words are there, and quads are stored before their escapes
    std::uint32_t first = lane_id();
    while (waiting >= 32 || (all && waiting != 0)) {
      const bool active = lane_id() < waiting;
      const Word old = shared_.words[first];
      const Word now = take_value(slots, old, active, true);
      if (active && now != old) {
        put_value(now, true, kWide ? shared_.places[first] : places_(shared_.places[first]));
      }
      first += 32;
      waiting -= min(waiting, 32U);
    }
    if (first != lane_id()) {  // the same in all lanes
      const bool own = lane_id() < waiting;
      const Word word = own ? shared_.words[first] : Word{0};
      const std::uint32_t place = own ? shared_.places[first] : 0;
      __syncwarp();  // every lane has read what it wants
      if (own) {
        shared_.words[lane_id()] = word;
        shared_.places[lane_id()] = place;
      }
    }
    return waiting;
  }

  // Runs of whole steps of form 1.
  template <class Walk>
  __device__ __forceinline__ void take_whole(Walk walk, const std::uint32_t* slots) {
    if (whole_ == 0) {
      return;
    }
    auto run = walk.next();
    Word old[kValuesAhead];
#pragma unroll
    for (std::uint32_t k = 0; k < kValuesAhead; ++k) {
      old[k] = cache_[run.at(k)];
    }
    for (std::uint32_t value = 0; value < whole_; value += 32 * kValuesAhead) {
      const auto here = run;
      const bool more = value + 32 * kValuesAhead < whole_;
      if (more) {
        run = walk.next();
      }
#pragma unroll
      for (std::uint32_t k = 0; k < kValuesAhead; ++k) {
        const Word own = old[k];
        if (more) {
          old[k] = cache_[run.at(k)];
        }
        // Two values and their raw bits are four steps at most when there is one step of those.
        const Word now = take_value(slots, own, true, raw_steps(kWordBits<Kind>) > 1 || k % 2 == 1);
        const unsigned moved = __ballot_sync(kFullWarp, now != own);
        put_value(now, (moved & group_of<32 / sizeof(Word)>()) != 0, here.at(k));
      }
    }
  }

  // The new word of a value, through the value coder. `advance`: whether the ring may have to go on
  // after it.
  __device__ __forceinline__ Word take_value(const std::uint32_t* slots, Word old, bool active,
                                             bool advance) {
    using Wide = std::conditional_t<sizeof(Word) == 8, std::uint64_t, std::uint32_t>;
    const std::uint32_t context =
        context_of(Kind::level(old), value_.top, max(value_.contexts, 1U));
    const std::uint32_t slot = stream_.take(slots, context << prob_bits_, prob_bits_, active);
    bad_ = bad_ || (active && slot == kUnusedSlot);
    const std::uint32_t symbol = slot & 0xFF;
    Wide u = symbol;
    const bool extended = active && symbol >= 16;
    if (__any_sync(kFullWarp, extended) != 0) {
      const std::uint32_t extra_bits = extended ? extra_bits_of(symbol) : 0;
      Wide extra = 0;
#pragma unroll
      for (std::uint32_t step = 0; step < raw_steps(kWordBits<Kind>); ++step) {
        extra |= static_cast<Wide>(stream_.take_raw(raw_step_bits(extra_bits, step)))
                 << (kRawBits * step);
        if (step % 3 == 2) {
          stream_.advance();  // four steps with the symbol's
        }
      }
      u = value_of(symbol, extra);
    }
    if (advance) {
      stream_.advance();
    }
    return apply_difference<Kind>(old, static_cast<Word>(u));
  }

  __device__ __forceinline__ void put_value(Word now, bool moved, Place at) {
    if (moved) {
      cache_[at] = now;
    }
    if (dst_ != nullptr) {
      dst_[at] = now;
    }
  }

  // The lanes of this one's group of kLanes, as a mask.
  template <std::uint32_t kLanes>
  __device__ static unsigned group_of() {
    return kFullWarp >> (32 - kLanes) << (lane_id() / kLanes * kLanes);
  }

  __device__ std::uint32_t quad_base(const QuadOrder& order) const {
    return context_of(order.least, quad_.top, quad_.contexts) * table_size_;
  }

  // Symbols of the eight quads that this lane has in a chunk; zero beyond the segment.
  __device__ uint2 load_symbols(std::uint32_t chunk) const {
    const std::uint32_t first = Shared::kChunkQuads * chunk + 8 * lane_id();
    if (first >= quads_) {
      return {0, 0};
    }
    uint2 symbols = *reinterpret_cast<const uint2*>(symbols_ + first);
    const std::uint32_t left = quads_ - first;
    if (left < 8) {
      const std::uint64_t known =
          join(symbols.x, symbols.y) & ((std::uint64_t{1} << (8 * left)) - 1);
      symbols = {static_cast<std::uint32_t>(known), static_cast<std::uint32_t>(known >> 32)};
    }
    return symbols;
  }

  __device__ Quad<Kind> load(Place at) const {
    return kWide ? load_quad<Kind>(cache_ + at) : load_quad<Kind>(cache_ + at, 4);
  }
  __device__ static void store(const Quad<Kind>& quad, Word* to, std::uint32_t count) {
    if (kWide && count == 4) {
      store_quad<Kind>(quad, to);
    } else {
      store_quad<Kind>(quad, to, count);
    }
  }

  std::uint32_t prob_bits_;
  std::uint32_t table_size_;
  ContextChoice quad_;
  ContextChoice value_;
  LaneStream stream_;
  std::uint32_t end_word_;
  Shared& shared_;
  BlockPlaces<Place> places_;
  Word* cache_;
  Word* dst_;              // null when nothing else than the cache is written
  std::uint8_t* symbols_;  // of the segment's quads
  std::uint8_t* marked_;   // bytes behind marks
  std::uint32_t values_;
  std::uint32_t quads_;
  std::uint32_t whole_ = 0;  // items in runs; quads behind them stay open
  std::uint32_t marks_ = 0;  // that this lane has seen
  bool bad_ = false;
};

}  // namespace ciera::codec::cuda
