// One segment of a changes section, decoded by a warp (docs/wire-format.md, section 11): quads, the
// bytes behind marks and the values of escapes, or in form 1 values only.
#pragma once

#include <type_traits>

#include "codec/cuda/delta_decode_tables.cuh"
#include "codec/cuda/delta_kinds.cuh"

namespace ciera::codec::cuda {

// What a warp has in shared memory besides tables.
struct DeltaWarpShared {
  std::uint64_t ring[WordWindow::kRingWords / 4];
  std::uint32_t positions[32];
};

// Where the values of a segment lie among the shard's, by their place in the segment. Place holds
// any of those.
template <class Place>
class BlockPlaces {
 public:
  // `first`: the segment's first value among the coded ones.
  __device__ BlockPlaces(const std::uint32_t* list, std::uint32_t block_size, std::uint64_t first)
      : list_(list),
        block_size_(block_size),
        block_(static_cast<std::uint32_t>(first / block_size)),
        offset_(static_cast<std::uint32_t>(first % block_size)) {}

  __device__ Place operator()(std::uint32_t value) const {
    const std::uint32_t at = offset_ + value;  // a segment holds at most 2^22 values
    const std::uint32_t block = at / block_size_;
    return static_cast<Place>(list_[block_ + block]) * block_size_ + (at - block * block_size_);
  }

 private:
  template <class>
  friend class PlaceWalk;
  const std::uint32_t* list_;
  std::uint32_t block_size_;
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

// Calls body(item, active) for the flagged items of a warp, 32 at a time in ascending order; the
// last lanes of the last call are not active. A chunk is kPerLane items in each lane, whose flags
// are the bits of flags_of(chunk). `positions` holds 32.
template <std::uint32_t kPerLane, class FlagsOf, class Body>
__device__ __forceinline__ void for_flagged(std::uint32_t* positions, std::uint32_t chunks,
                                            const FlagsOf& flags_of, const Body& body) {
  std::uint32_t waiting = 0;
  for (std::uint32_t chunk = 0; chunk < chunks; ++chunk) {
    std::uint32_t flags = flags_of(chunk);
    if (__any_sync(kFullWarp, flags != 0) == 0) {
      continue;
    }
    const auto own = static_cast<std::uint32_t>(__popc(flags));
    std::uint32_t end = own;
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
      const std::uint32_t left = __shfl_up_sync(kFullWarp, end, step);
      end += lane_id() >= step ? left : 0;
    }
    const std::uint32_t total = __shfl_sync(kFullWarp, end, 31);
    std::uint32_t rank = end - own;  // of this lane's next item among those of the chunk
    for (std::uint32_t done = 0; done < total;) {
      const std::uint32_t taken = min(total - done, 32U - waiting);
      while (flags != 0 && rank < done + taken) {
        positions[waiting + rank - done] =
            (32 * chunk + lane_id()) * kPerLane + static_cast<std::uint32_t>(__ffs(flags)) - 1;
        flags &= flags - 1;
        ++rank;
      }
      done += taken;
      waiting += taken;
      if (waiting == 32) {
        __syncwarp();  // all positions are there
        const std::uint32_t item = positions[lane_id()];
        __syncwarp();  // and have been read
        body(item, true);
        waiting = 0;
      }
    }
  }
  if (waiting != 0) {
    __syncwarp();  // all positions are there
    const bool active = lane_id() < waiting;
    const std::uint32_t item = active ? positions[lane_id()] : 0;
    __syncwarp();  // and have been read
    body(item, active);
  }
}

// kWide: cache and dst are aligned to quads, and the shard has fewer than 2^32 values. The slots
// that a phase is called with hold the tables of its contexts one after another.
template <class Kind, bool kWide>
class DeltaSegment {
 public:
  using Word = typename Kind::Word;
  using Place = std::conditional_t<kWide, std::uint32_t, std::uint64_t>;

  __device__ DeltaSegment(const DecodeCall& call, const SegmentWords& words, std::uint64_t segment,
                          DeltaWarpShared& shared)
      : prob_bits_(call.state->delta.prob_bits),
        table_size_(1U << prob_bits_),
        quad_(call.state->delta.quad),
        value_(call.state->delta.value),
        stream_(words.state, WordWindow(shared.ring, words.start, words.limit), words.first),
        end_word_(words.first + words.count),
        positions_(shared.positions),
        places_(call.list, call.expected.block_size, first_value(call, segment)),
        cache_(reinterpret_cast<Word*>(call.exponents)),
        dst_(own_dst(call)),
        flags_(call.quad_flags + (segment << call.state->delta.segment_log2)) {
    const std::uint64_t rest = call.state->symbols - first_value(call, segment);
    const std::uint64_t most = first_value(call, 1);
    values_ = static_cast<std::uint32_t>(rest < most ? rest : most);
    quads_ = (values_ + 3) / 4;
  }

  // Form 0.
  __device__ __forceinline__ void decode_quads(const std::uint32_t* slots,
                                               const std::uint32_t* value_slots) {
    run_quads(slots);
    __syncwarp();  // quads and flags of all lanes are there
    if (__any_sync(kFullWarp, marked_) != 0) {
      const auto flags_of = [this](std::uint32_t chunk) {
        const uint2 flags = load_flags(chunk);
        return gather_bits(flags.x >> 7) | gather_bits(flags.y >> 7) << 4;
      };
      for_flagged<8>(positions_, (quads_ + 255) / 256, flags_of,
                     [this](std::uint32_t quad, bool active) { take_marked(quad, active); });
      __syncwarp();  // and those behind marks
    }
    const auto flags_of = [this](std::uint32_t chunk) {
      const uint2 flags = load_flags(chunk);
      return pick_bytes(flags.x | flags.x >> 4, flags.y | flags.y >> 4, 0x6420);
    };
    for_flagged<32>(positions_, (quads_ + 255) / 256, flags_of,
                    [this, value_slots](std::uint32_t value, bool active) {
                      const Place at = places_(value);
                      const Word old = cache_[at];
                      put_value(old, take_value(value_slots, old, active), at, active);
                    });
  }

  // Form 1.
  __device__ __forceinline__ void decode_values(const std::uint32_t* slots) {
    constexpr std::uint32_t kAhead = 4;
    const std::uint32_t steps = values_ / (32 * kAhead) * kAhead;
    PlaceWalk<Place> walk(places_, lane_id(), 32);
    Word old[kAhead];
    Place at[kAhead];
    const auto fetch = [&](std::uint32_t k) {
      at[k] = walk.value();
      old[k] = cache_[at[k]];
    };
#pragma unroll
    for (std::uint32_t k = 0; k < kAhead; ++k) {
      if (steps != 0) {
        fetch(k);
      }
      walk.forward();
    }
    for (std::uint32_t step = 0; step < steps; step += kAhead) {
#pragma unroll
      for (std::uint32_t k = 0; k < kAhead; ++k) {
        put_value(old[k], take_value(slots, old[k], true), at[k], true);
        if (step + kAhead < steps) {
          fetch(k);
        }
        walk.forward();
      }
    }
    for (std::uint32_t value = 32 * steps + lane_id(); value - lane_id() < values_; value += 32) {
      const bool active = value < values_;
      const Place place = places_(active ? value : 0);
      const Word word = cache_[place];
      put_value(word, take_value(slots, word, active), place, active);
    }
  }

  // After either form: whether the segment was a valid one.
  __device__ bool good() const {
    return __any_sync(kFullWarp, bad_) == 0 && stream_.finished(end_word_);
  }

 private:
  static constexpr std::uint32_t kMarkFlag = 0x80;  // else an escape in bits 0 to 3
  // Steps that old words are read ahead, in few registers; at most 4, see LaneStream::advance.
  static constexpr std::uint32_t kQuadsAhead = sizeof(Word) <= 2 ? 4 : sizeof(Word) == 4 ? 2 : 1;

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

  __device__ __forceinline__ void run_quads(const std::uint32_t* slots) {
    const std::uint32_t steps = values_ / (128 * kQuadsAhead) * kQuadsAhead;  // of whole quads
    PlaceWalk<Place> walk(places_, 4 * lane_id(), 128);
    Quad<Kind> old[kQuadsAhead];
    Place at[kQuadsAhead];
    const auto fetch = [&](std::uint32_t k) {
      at[k] = walk.value();
      old[k] = load(at[k]);
    };
#pragma unroll
    for (std::uint32_t k = 0; k < kQuadsAhead; ++k) {
      if (steps != 0) {
        fetch(k);
      }
      walk.forward();
    }
    std::uint8_t* flags = flags_ + lane_id();
    for (std::uint32_t step = 0; step < steps; step += kQuadsAhead) {
#pragma unroll
      for (std::uint32_t k = 0; k < kQuadsAhead; ++k) {
        const QuadOrder order = order_quad<Kind>(levels_of(old[k]));
        const std::uint32_t slot = stream_.take(slots, quad_base(order), prob_bits_, true);
        flags[32 * k] = take_symbol(old[k], order, slot & 0xFF, at[k], 4);
        if (step + kQuadsAhead < steps) {
          fetch(k);
        }
        walk.forward();
      }
      flags += 32 * kQuadsAhead;
      stream_.advance();
    }
    for (std::uint32_t quad = 32 * steps + lane_id(); quad - lane_id() < quads_; quad += 32) {
      take_last(slots, quad, quad < quads_);
    }
  }

  // As in the loop above, for quads of any length.
  __device__ __forceinline__ void take_last(const std::uint32_t* slots, std::uint32_t quad,
                                            bool active) {
    const std::uint32_t count = active ? min(values_ - 4 * quad, 4U) : 0;
    const Place at = places_(active ? 4 * quad : 0);
    const Quad<Kind> old = load_quad<Kind>(cache_ + at, count);
    const QuadOrder order = order_quad<Kind>(levels_of(old, count));
    const std::uint32_t slot = stream_.take(slots, quad_base(order), prob_bits_, active);
    stream_.advance();
    if (active) {
      flags_[quad] = take_symbol(old, order, slot & 0xFF, at, count);
    }
  }

  __device__ __forceinline__ void take_marked(std::uint32_t quad, bool active) {
    const std::uint32_t count = active ? min(values_ - 4 * quad, 4U) : 0;
    const Place at = places_(4 * quad);
    const Quad<Kind> old = load_quad<Kind>(cache_ + at, count);
    const QuadOrder order = order_quad<Kind>(levels_of(old, count));
    const std::uint32_t byte = stream_.take_raw(active ? 8 : 0);
    stream_.advance();
    if (active) {
      flags_[quad] =
          static_cast<std::uint8_t>(move(old, quad_moves(byte, order.places), at, count, true));
    }
  }

  // Moves a quad of `count` values as its symbol says, or not yet when that is the mark; its flags.
  __device__ __forceinline__ std::uint8_t take_symbol(const Quad<Kind>& old, const QuadOrder& order,
                                                      std::uint32_t symbol, Place at,
                                                      std::uint32_t count) {
    const bool mark = symbol == kMark;
    marked_ = marked_ || mark;
    const std::uint32_t escapes = move(old, quad_moves(symbol, order.places), at, count, !mark);
    return static_cast<std::uint8_t>(mark ? kMarkFlag : escapes);
  }

  // Bit i of the result: value i is an escape. Nothing is stored, and the result has no meaning,
  // when the moves are not `known`.
  __device__ __forceinline__ std::uint32_t move(const Quad<Kind>& old, std::uint32_t moves,
                                                Place at, std::uint32_t count, bool known) {
    if (count < 4) {  // what fills the quad must not move, and is nowhere
      bad_ = bad_ || (known && moves >> (8 * count) != 0);
      moves &= (1U << (8 * count)) - 1;
    }
    const Quad<Kind> moved = move_quad<Kind>(old, moves);
    if (known && moves != 0) {
      store(moved, cache_ + at, count);
    }
    if (known && dst_ != nullptr) {
      store(moved, dst_ + at, count);
    }
    return quad_escapes(moves);
  }

  // The new word of a value, through the value coder.
  __device__ __forceinline__ Word take_value(const std::uint32_t* slots, Word old, bool active) {
    using Wide = std::conditional_t<sizeof(Word) == 8, std::uint64_t, std::uint32_t>;
    const std::uint32_t context =
        context_of(Kind::level(old), value_.top, max(value_.contexts, 1U));
    const std::uint32_t slot = stream_.take(slots, context << prob_bits_, prob_bits_, active);
    bad_ = bad_ || (active && slot == kUnusedSlot);
    const std::uint32_t symbol = slot & 0xFF;
    const std::uint32_t extra_bits = active ? extra_bits_of(symbol) : 0;
    Wide extra = 0;
    if (__any_sync(kFullWarp, extra_bits != 0) != 0) {
#pragma unroll
      for (std::uint32_t step = 0; step < raw_steps(kWordBits<Kind>); ++step) {
        extra |= static_cast<Wide>(stream_.take_raw(raw_step_bits(extra_bits, step)))
                 << (kRawBits * step);
        if (step % 3 == 2) {
          stream_.advance();  // four steps with the symbol's
        }
      }
    }
    stream_.advance();
    return apply_difference<Kind>(old, static_cast<Word>(value_of(symbol, extra)));
  }

  __device__ __forceinline__ void put_value(Word old, Word now, Place at, bool active) {
    if (active && now != old) {
      cache_[at] = now;
    }
    if (active && dst_ != nullptr) {
      dst_[at] = now;
    }
  }

  __device__ std::uint32_t quad_base(const QuadOrder& order) const {
    return context_of(order.least, quad_.top, quad_.contexts) * table_size_;
  }

  // Flags of the eight quads that this lane has in a chunk of 256.
  __device__ uint2 load_flags(std::uint32_t chunk) const {
    const std::uint32_t first = 256 * chunk + 8 * lane_id();
    if (first >= quads_) {
      return {0, 0};
    }
    uint2 flags = *reinterpret_cast<const uint2*>(flags_ + first);
    const std::uint32_t left = quads_ - first;
    if (left < 8) {
      const std::uint64_t known = join(flags.x, flags.y) & ((std::uint64_t{1} << (8 * left)) - 1);
      flags = {static_cast<std::uint32_t>(known), static_cast<std::uint32_t>(known >> 32)};
    }
    return flags;
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
  std::uint32_t* positions_;
  BlockPlaces<Place> places_;
  Word* cache_;
  Word* dst_;            // null when nothing else than the cache is written
  std::uint8_t* flags_;  // of the segment's quads
  std::uint32_t values_;
  std::uint32_t quads_;
  bool marked_ = false;
  bool bad_ = false;
};

}  // namespace ciera::codec::cuda
