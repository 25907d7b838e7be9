// The streams of a segment as a warp reads them: 32 lanes and the words they share.
#pragma once

#include "codec/cuda/block_ops.cuh"
#include "codec/rans_section.hpp"

namespace ciera::codec::cuda {

// The 16-bit words of a segment, read ahead into shared memory: a ring of four chunks of 128 words.
// Four steps need at most 128 words, so from two chunks; the third is there already and the fourth
// on its way in registers.
struct WordWindow {
  static constexpr std::uint32_t kChunkWords = 128;
  static constexpr std::uint32_t kRingWords = 4 * kChunkWords;

  // Bytes [0, limit) from `from`, which is aligned to 8, may be read.
  __device__ WordWindow(std::uint64_t* ring, const std::byte* from, std::uint64_t limit)
      : ring_(ring), from_(from + 8 * lane_id()), left_(static_cast<std::int64_t>(limit)) {
    left_ -= 8 * lane_id();
#pragma unroll
    for (std::uint32_t chunk = 0; chunk < 3; ++chunk) {
      ring_[32 * chunk + lane_id()] = fetch();
    }
    ahead_ = fetch();
    __syncwarp();  // all lanes may read them
  }

  __device__ std::uint32_t word(std::uint32_t at) const {
    return reinterpret_cast<const std::uint16_t*>(ring_)[at % kRingWords];
  }

  // After at most four steps. `next`: the first word still needed, the same in all lanes.
  __device__ void advance(std::uint32_t next) {
    if (next / kChunkWords != chunk_) {
      // Into the chunk before the current one, which no lane reads any more.
      ring_[32 * ((chunk_ + 3) % 4) + lane_id()] = ahead_;
      ++chunk_;
      ahead_ = fetch();
      __syncwarp();  // all lanes may read it
    }
  }

 private:
  // This lane's 8 bytes of the next chunk, zero beyond the limit.
  __device__ std::uint64_t fetch() {
    std::uint64_t words = 0;
    if (left_ >= 8) {
      words = *reinterpret_cast<const std::uint64_t*>(from_);
    } else {
#pragma unroll 1  // once a segment at most
      for (int i = 0; i < left_; ++i) {
        words |= static_cast<std::uint64_t>(from_[i]) << (8 * i);
      }
    }
    from_ += 2 * kChunkWords;
    left_ -= 2 * kChunkWords;
    return words;
  }

  std::uint64_t* ring_;
  const std::byte* from_;
  std::int64_t left_;
  std::uint64_t ahead_ = 0;
  std::uint32_t chunk_ = 0;
};

// The words of one segment, from a multiple of 8 bytes on (with words of the segment before, or
// states), and this lane's state.
struct SegmentWords {
  const std::byte* start;
  std::uint64_t limit;  // bytes from `start` that may be read
  std::uint32_t first;  // of the segment, from `start`
  std::uint32_t count;
  std::uint32_t state;
};
__device__ inline SegmentWords segment_words(const std::byte* section, const RansLayout& layout,
                                             std::uint64_t segment) {
  const auto* ends = reinterpret_cast<const std::uint32_t*>(section + layout.ends);
  const auto* states = reinterpret_cast<const std::uint32_t*>(section + layout.states);
  const std::uint32_t begin = segment == 0 ? 0 : ends[segment - 1];
  const std::byte* words = section + layout.words + 2 * static_cast<std::uint64_t>(begin);
  const auto skipped = static_cast<std::uint32_t>(reinterpret_cast<std::uintptr_t>(words) % 8);
  return {words - skipped, 2 * (layout.word_count - begin) + skipped, skipped / 2,
          ends[segment] - begin, states[kRansLanes * segment + lane_id()]};
}

// A slot of the decoding table: frequency - 1 in bits 20 to 31, slot - cum in bits 8 to 19, symbol.
__device__ inline std::uint32_t arrange_slot(std::uint32_t slot) {
  return (slot >> 8 & 0xFFF) << 20 | (slot >> 20) << 8 | (slot & 0xFF);
}

// One lane of a segment's streams. All lanes of the warp call everything together.
class LaneStream {
 public:
  __device__ LaneStream(std::uint32_t state, const WordWindow& words, std::uint32_t first_word)
      : x_(state),
        next_(first_word),
        started_(state >= kRansLow && state < kRansLow << 16),
        words_(words) {}

  // Decodes a symbol by the table whose arranged slots begin at slots[base]; returns its slot.
  // Lanes that are not active stay as they are.
  __device__ std::uint32_t take(const std::uint32_t* slots, std::uint32_t base,
                                std::uint32_t prob_bits, bool active) {
    const std::uint32_t slot = slots[base + (x_ & ((1U << prob_bits) - 1))];
    const std::uint32_t quotient = x_ >> prob_bits;
    const std::uint32_t y = (slot >> 20) * quotient + quotient + (slot >> 8 & 0xFFF);
    x_ = active ? y : x_;
    refill(active);
    return slot;
  }

  // The next `width` raw bits; lanes with a width of 0 stay as they are.
  __device__ std::uint32_t take_raw(std::uint32_t width) {
    const std::uint32_t bits = x_ & ((1U << width) - 1);
    x_ >>= width;
    refill(width != 0);
    return bits;
  }

  // After at most four steps.
  __device__ void advance() { words_.advance(next_); }

  // Whether all lanes began and ended as a valid segment's do and its words are used up.
  __device__ bool finished(std::uint32_t end_word) const {
    return __all_sync(kFullWarp, started_ && next_ == end_word && x_ == kRansLow) != 0;
  }

 private:
  __device__ void refill(bool active) {
    const bool hungry = active && x_ < kRansLow;
    const unsigned hungry_mask = __ballot_sync(kFullWarp, hungry);
    if (hungry) {
      x_ = x_ << 16 | words_.word(next_ + __popc(hungry_mask & ((1U << lane_id()) - 1)));
    }
    next_ += __popc(hungry_mask);
  }

  std::uint32_t x_;
  std::uint32_t next_;
  bool started_;
  WordWindow words_;
};

}  // namespace ciera::codec::cuda
