// One segment of a changes section, decoded by a warp (docs/wire-format.md, section 11): quads, the
// bytes behind marks and the values of escapes, or in form 1 values only.
#pragma once

#include <type_traits>

#include "codec/cuda/delta_decode_tables.cuh"
#include "codec/cuda/delta_kinds.cuh"
#include "codec/cuda/delta_places.cuh"
#include "codec/cuda/flagged_items.cuh"

namespace ciera::codec::cuda {

// Quads in 32 bytes, the unit of GPU memory: what is written in parts is read before.
template <class Kind>
inline constexpr std::uint32_t kGroupQuads =
    sizeof(Quad<Kind>) >= 32 ? 1 : 32 / static_cast<std::uint32_t>(sizeof(Quad<Kind>));

// What a quad's symbol says, for values in ascending order of levels: by what they move (steps_of),
// and which are escapes, in bit 0 of a byte each. A mark moves nothing yet.
struct alignas(8) QuadEntry {
  static constexpr std::uint32_t kMarks = 0x10101010;
  std::uint32_t steps;
  std::uint32_t escapes;

  __device__ static QuadEntry of(std::uint32_t symbol) {
    const std::uint32_t moves = spread_symbol(symbol);
    return symbol == kMark ? QuadEntry{0, kMarks}
                           : QuadEntry{steps_of(moves), moves & moves >> 1 & 0x01010101U};
  }
};

// What a warp has in shared memory besides tables.
struct DeltaWarpShared {
  std::uint64_t ring[WordWindow::kRingWords / 4];
  std::uint32_t items[FlaggedItems::kListed];
};

// kWide: cache and dst are aligned to quads, and the shard has fewer than 2^32 values. The slots
// that a phase is called with hold the tables of its contexts one after another.
//
// In form 0 a first pass stores all quads, with escapes and marked quads as they were, and notes
// which these are. They are few: further passes put them on top, for marks and then for escapes.
template <class Kind, bool kWide>
class DeltaSegment {
 public:
  using Word = typename Kind::Word;
  using Wide = std::conditional_t<sizeof(Word) == 8, std::uint64_t, std::uint32_t>;
  using Place = std::conditional_t<kWide, std::uint32_t, std::uint64_t>;

  __device__ DeltaSegment(const DecodeCall& call, const SegmentWords& words, std::uint64_t segment,
                          DeltaWarpShared& shared)
      : prob_bits_(call.state->delta.prob_bits),
        table_size_(1U << prob_bits_),
        quad_(call.state->delta.quad),
        value_(call.state->delta.value),
        stream_(words.state, WordWindow(shared.ring, words.start, words.limit), words.first),
        end_word_(words.first + words.count),
        items_(shared.items),
        places_(call.list, call.expected.block_size, first_value(call, segment)),
        cache_(reinterpret_cast<Word*>(call.exponents)),
        dst_(own_dst(call)),
        flags_(call.quad_flags + (segment << call.state->delta.segment_log2)) {
    const std::uint64_t rest = call.state->symbols - first_value(call, segment);
    const std::uint64_t most = first_value(call, 1);
    values_ = static_cast<std::uint32_t>(rest < most ? rest : most);
    quads_ = (values_ + 3) / 4;
  }

  // Form 0. `entries`: of every symbol, in shared memory.
  __device__ __forceinline__ void decode_quads(const std::uint32_t* slots,
                                               const std::uint32_t* value_slots,
                                               const QuadEntry* entries) {
    using Run = RunWalk<Place, 4, kQuadsAhead>;
    whole_ = values_ / (128 * kQuadsAhead) * kQuadsAhead * 32;
    if (Run::fits(places_)) {
      take_quads(Run(places_), slots, entries);
    } else {
      take_quads(AnyWalk<Place, 4, kQuadsAhead>(places_), slots, entries);
    }
    take_last(slots);
    __syncwarp();  // quads and flags of all lanes are there
    if (__any_sync(kFullWarp, (noted_ & kMarkFlag) != 0) != 0) {
      take_marked();
      __syncwarp();  // and those behind marks
    }
    take_escapes(value_slots);
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
  // What is noted of a quad: escapes in bits 0 to 3, or these for a mark.
  static constexpr std::uint32_t kMarkFlags = 0xF0;
  static constexpr std::uint32_t kMarkFlag = 0x10;  // one of them
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
                                             const QuadEntry* entries) {
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
      if (quad - lane_id() + 32 * kQuadsAhead < whole_) {
        run = walk.next();
      }
#pragma unroll
      for (std::uint32_t k = 0; k < kQuadsAhead; ++k) {
        const QuadOrder order = order_quad<Kind>(levels_of(old[k]));
        const std::uint32_t symbol = stream_.take(slots, quad_base(order), prob_bits_, true) & 0xFF;
        const QuadEntry entry = entries[symbol];
        const std::uint32_t flags = gather_bytes(pick_bytes(entry.escapes, 0, order.places));
        flags_[quad + 32 * k] = static_cast<std::uint8_t>(flags);
        noted_ |= flags;
        put_group(old[k], pick_bytes(entry.steps, 0, order.places), now.at(k));
        // Without a condition, the last ones in vain, and into registers that are free: a copy of
        // what is loaded would wait for it.
        old[k] = load(run.at(k));
      }
      stream_.advance();
    }
  }

  // Stores whole groups: in the cache, those with a value that moves.
  __device__ __forceinline__ void put_group(const Quad<Kind>& old, std::uint32_t steps, Place at) {
    const unsigned moves = __ballot_sync(kFullWarp, steps != 0);
    const Quad<Kind> moved = shift_quad<Kind>(old, steps);
    if ((moves & group_of<kGroupQuads<Kind>>()) != 0) {
      store(moved, cache_ + at, 4);
    }
    if (dst_ != nullptr) {
      store(moved, dst_ + at, 4);
    }
  }

  // The quads behind those runs, of any length. Flags are noted by whole steps: what is not there
  // has none.
  __device__ __forceinline__ void take_last(const std::uint32_t* slots) {
    for (std::uint32_t quad = whole_ + lane_id(); quad - lane_id() < quads_; quad += 32) {
      const OldQuad own = fetch_quad(quad, quad < quads_);
      const QuadOrder order = order_quad<Kind>(levels_of(own.words, own.count));
      const std::uint32_t symbol =
          stream_.take(slots, quad_base(order), prob_bits_, own.count != 0) & 0xFF;
      stream_.advance();
      std::uint32_t flags = 0;
      if (own.count != 0) {
        const bool mark = symbol == kMark;
        const std::uint32_t escapes = put_quad(own, mark ? 0 : quad_moves(symbol, order.places));
        flags = mark ? kMarkFlags : escapes;
      }
      flags_[quad] = static_cast<std::uint8_t>(flags);
      noted_ |= flags;
    }
  }

  // A quad as it was; count is 0 in lanes without one.
  struct OldQuad {
    Quad<Kind> words;
    Place at;
    std::uint32_t count;
  };

  __device__ __forceinline__ OldQuad fetch_quad(std::uint32_t quad, bool active) const {
    OldQuad own{};
    if (active) {
      own.count = min(values_ - 4 * quad, 4U);
      own.at = places_(4 * quad);
      own.words = own.count == 4 ? load(own.at) : load_quad<Kind>(cache_ + own.at, own.count);
    }
    return own;
  }

  // Stores a quad after its moves, escapes as they were; bit i of the result: value i is one.
  __device__ __forceinline__ std::uint32_t put_quad(const OldQuad& own, std::uint32_t moves) {
    if (own.count < 4) {  // what fills the quad must not move, and is nowhere
      bad_ = bad_ || moves >> (8 * own.count) != 0;
      moves &= (1U << (8 * own.count)) - 1;
    }
    const Quad<Kind> moved = move_quad<Kind>(own.words, moves);
    if (moves != 0) {
      store(moved, cache_ + own.at, own.count);
    }
    if (dst_ != nullptr) {
      store(moved, dst_ + own.at, own.count);
    }
    return quad_escapes(moves);
  }

  // The quads behind marks, with the bytes that follow all quads. Here and for escapes, what comes
  // next is on its way from memory while the stream is at work.
  __device__ __forceinline__ void take_marked() {
    FlaggedItems list(items_, (quads_ + 1023) / 1024);
    const auto marks_of = [this](std::uint32_t chunk) { return load_marks(chunk); };
    std::uint32_t quad = 0;
    std::uint32_t count = list.next(marks_of, quad);
    OldQuad own = fetch_quad(quad, lane_id() < count);
    while (count != 0) {
      std::uint32_t next_quad = 0;
      const std::uint32_t next_count = list.next(marks_of, next_quad);
      const OldQuad next = fetch_quad(next_quad, lane_id() < next_count);
      const std::uint32_t byte = stream_.take_raw(own.count != 0 ? 8 : 0);
      stream_.advance();
      if (own.count != 0) {
        const QuadOrder order = order_quad<Kind>(levels_of(own.words, own.count));
        flags_[quad] = static_cast<std::uint8_t>(put_quad(own, quad_moves(byte, order.places)));
      }
      own = next;
      quad = next_quad;
      count = next_count;
    }
  }

  // A value of an escape, or in the other lanes the first value.
  struct Escape {
    Wide old;
    Place at;
    std::uint32_t count;  // of lanes that have one
  };

  // The values of escapes, where their old words still are.
  __device__ __forceinline__ void take_escapes(const std::uint32_t* slots) {
    FlaggedItems list(items_, (quads_ + 255) / 256);
    uint2 ahead = load_flags(0);
    const auto escapes_of = [this, &ahead](std::uint32_t chunk) {
      const uint2 flags = ahead;
      ahead = load_flags(chunk + 1);
      return pick_bytes(flags.x | flags.x >> 4, flags.y | flags.y >> 4, 0x6420);
    };
    const auto fetch = [&] {
      std::uint32_t value = 0;
      const std::uint32_t count = list.next(escapes_of, value);
      const Place at = places_(value);
      return Escape{cache_[at], at, count};
    };
    // Two by turns: to hand one on would be a copy that waits for it.
    Escape even = fetch();
    while (even.count != 0) {
      const Escape odd = fetch();
      put_escape(slots, even);
      if (odd.count == 0) {
        return;
      }
      even = fetch();
      put_escape(slots, odd);
    }
  }

  __device__ __forceinline__ void put_escape(const std::uint32_t* slots, const Escape& escape) {
    const auto old = static_cast<Word>(escape.old);
    const bool active = lane_id() < escape.count;
    const Word now = take_value(slots, old, active, true);
    if (active && now != old) {
      put_value(now, true, escape.at);
    }
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

  // Flags of the eight quads that this lane has in a chunk of 256; zero beyond the segment.
  __device__ uint2 load_flags(std::uint32_t chunk) const {
    const std::uint32_t first = 256 * chunk + 8 * lane_id();
    return first < quads_ ? *reinterpret_cast<const uint2*>(flags_ + first) : uint2{0, 0};
  }

  // Bit i: of the 32 quads that this lane has in a chunk of 1024, the i-th is a mark.
  __device__ std::uint32_t load_marks(std::uint32_t chunk) const {
    const std::uint32_t first = 1024 * chunk + 32 * lane_id();
    if (first >= quads_) {
      return 0;
    }
    std::uint32_t marks = 0;
#pragma unroll
    for (std::uint32_t i = 0; i < 2; ++i) {
      const uint4 flags = *reinterpret_cast<const uint4*>(flags_ + first + 16 * i);
      marks |= (gather_bits(flags.x >> 4) | gather_bits(flags.y >> 4) << 4 |
                gather_bits(flags.z >> 4) << 8 | gather_bits(flags.w >> 4) << 12)
               << (16 * i);
    }
    return marks;
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
  std::uint32_t* items_;
  BlockPlaces<Place> places_;
  Word* cache_;
  Word* dst_;            // null when nothing else than the cache is written
  std::uint8_t* flags_;  // of the segment's quads
  std::uint32_t values_;
  std::uint32_t quads_;
  std::uint32_t whole_ = 0;  // items in runs
  std::uint32_t noted_ = 0;  // flags that this lane has seen
  bool bad_ = false;
};

}  // namespace ciera::codec::cuda
