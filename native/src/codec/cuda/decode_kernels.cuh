// Decoding of a checked frame. A warp decodes a segment of a coded section; a key frame's words are
// merged as they come out, a delta frame's exponents go to the cache, which a pass of its own
// merges with signs and mantissas.
#pragma once

#include "codec/cuda/block_ops.cuh"
#include "codec/cuda/changed_list.cuh"
#include "codec/cuda/decode_state.hpp"
#include "codec/cuda/lane_stream.cuh"

namespace ciera::codec::cuda {

inline constexpr std::uint32_t kDecodeWarps = 4;  // few, so that small shards reach many SMs

// Decodes `count` symbols. The sink stands at this lane's first symbol: prefetch(k) reads what
// belongs to the symbol k steps on, put(k, slot, extra) takes that symbol in the lowest byte of
// `slot`, move(k) goes on by k steps. False when words are missing or left over or a state is
// wrong.
template <class Sink>
__device__ bool decode_segment(const std::uint32_t* slots, std::uint32_t prob_bits, std::uint32_t x,
                               const WordWindow& words, std::uint32_t first_word,
                               std::uint32_t word_count, std::uint32_t count, Sink sink) {
  constexpr int kAhead = 8;
  LaneStream lanes(x, words, first_word);
  std::uint32_t left = count;
  typename Sink::Extra ahead[kAhead] = {};
  const auto fetch = [&](int steps_on) {
#pragma unroll
    for (int k = 0; k < kAhead; ++k) {
      ahead[k] = sink.prefetch(steps_on + k);
    }
  };
  if (left >= 32 * kAhead) {
    fetch(0);
  }
  for (; left >= 32 * kAhead; left -= 32 * kAhead) {
    typename Sink::Extra extras[kAhead];
#pragma unroll
    for (int k = 0; k < kAhead; ++k) {
      extras[k] = ahead[k];
    }
    if (left >= 2 * 32 * kAhead) {
      fetch(kAhead);
    }
#pragma unroll
    for (int k = 0; k < kAhead; ++k) {
      sink.put(k, lanes.take(slots, 0, prob_bits, true), extras[k]);
      if (k % 4 == 3) {
        lanes.advance();
      }
    }
    sink.move(kAhead);
  }
  for (std::uint32_t i = lane_id(); i - lane_id() < left; i += 32) {
    const std::uint32_t slot = lanes.take(slots, 0, prob_bits, i < left);
    lanes.advance();
    if (i < left) {
      sink.put(0, slot, sink.prefetch(0));
    }
    sink.move(1);
  }
  return lanes.finished(first_word + word_count);
}

// Exponents of changed blocks into the cache.
struct CacheSink {
  using Extra = std::uint8_t;
  std::uint8_t* cache;
  ListWalk walk;

  __device__ Extra prefetch(int) const { return 0; }
  __device__ void put(int, std::uint32_t slot, Extra) {
    cache[walk.value()] = static_cast<std::uint8_t>(slot);
    walk.forward();  // symbols come in order
  }
  __device__ void move(int) {}
};

// Exponents merged with the sign_mantissa section into words, and kept when there is a cache.
template <class Format, bool kKeep>
struct WordSink {
  using Word = typename Format::Word;
  using Extra = Word;
  const std::uint8_t* section;  // sign_mantissa of the whole shard
  std::uint64_t numel;
  std::uint64_t at;
  const std::uint8_t* low;  // at `at`
  Word* dst;
  std::uint8_t* cache;

  // At value `first` of the shard.
  __device__ WordSink(const std::uint8_t* sign_mantissa, std::uint64_t shard_numel,
                      std::uint64_t first, Word* words, std::uint8_t* exponents)
      : section(sign_mantissa),
        numel(shard_numel),
        at(first),
        low(sign_mantissa + (sizeof(Word) == 4 ? 3 * first : first)),
        dst(words + first),
        cache(kKeep ? exponents + first : nullptr) {}

  __device__ Extra prefetch(int k) const {
    if constexpr (kSignMantissaBits<Format> == 8) {
      return low[32 * k];
    } else if constexpr (sizeof(Word) == 2) {
      const std::uint64_t value = at + 32 * k;
      const std::uint8_t* planes = section + numel + 3 * (value / 8);
      const auto bit = static_cast<std::uint32_t>(value % 8);
      const std::uint32_t high =
          (planes[0] >> bit & 1) | (planes[1] >> bit & 1) << 1 | (planes[2] >> bit & 1) << 2;
      return static_cast<Word>(low[32 * k] | high << 8);
    } else {
      const std::uint8_t* bytes = low + 96 * k;
      return bytes[0] | static_cast<Word>(bytes[1]) << 8 | static_cast<Word>(bytes[2]) << 16;
    }
  }
  __device__ void put(int k, std::uint32_t slot, Extra rest) const {
    if constexpr (kSignMantissaBits<Format> == 8) {
      // The sign to bit 15, the mantissa stays, the symbol between; what is above falls off.
      constexpr std::uint32_t kRestBits = 0x807F;
      dst[32 * k] = static_cast<Word>((rest * 0x101U & kRestBits) | (slot << 7 & ~kRestBits));
    } else {
      dst[32 * k] = merge_word<Format>(static_cast<std::uint8_t>(slot), rest);
    }
    if constexpr (kKeep) {
      cache[32 * k] = static_cast<std::uint8_t>(slot);
    }
  }
  __device__ void move(int k) {
    at += 32 * k;
    low += (sizeof(Word) == 4 ? 96 : 32) * k;
    dst += 32 * k;
    if constexpr (kKeep) {
      cache += 32 * k;
    }
  }
};

// Exponents of changed blocks that are stored, or that nvCOMP has decoded, into the cache.
template <class Format>
__device__ void scatter(const DecodeCall& call) {
  const DecodeState& state = *call.state;
  const std::uint32_t block_size = call.expected.block_size;
  const auto* stored =
      reinterpret_cast<const std::uint8_t*>(call.frame + state.header.last().offset);
  const std::uint64_t stride = static_cast<std::uint64_t>(gridDim.x) * blockDim.x;
  for (std::uint64_t g = static_cast<std::uint64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
       8 * g < state.symbols; g += stride) {
    const std::uint64_t j = 8 * g;  // a group lies in one block: blocks are a multiple of 8
    const std::uint64_t value =
        static_cast<std::uint64_t>(call.list[j / block_size]) * block_size + j % block_size;
    const auto count = static_cast<std::uint32_t>(state.symbols - j < 8 ? state.symbols - j : 8);
    const std::uint64_t exponents = state.header.last().coder == Coder::kRaw
                                        ? load_exponents8<Format>(stored, j, count)
                                        : load_bytes(call.symbols + j, count);
    store_bytes(exponents, call.exponents + value, count);
  }
}

// Whether the frame's last section holds exponents: of all values, or of changed blocks as they
// are.
__device__ inline bool holds_exponents(const wire::FrameHeader& header) {
  return header.kind == wire::Kind::kKey ||
         (header.kind == wire::Kind::kDelta && header.mode != ReuseMode::kWordDelta &&
          (header.mode == ReuseMode::kExponentBlock || header.last().coder == Coder::kRaw));
}

template <class Format>
__global__ void __launch_bounds__(32 * kDecodeWarps)
    rans_decode_kernel(const __grid_constant__ DecodeCall call) {
  __shared__ std::uint32_t slots[1U << kRansMaxProbBits];
  __shared__ std::uint64_t rings[kDecodeWarps][WordWindow::kRingWords / 4];
  const DecodeState& state = *call.state;
  const wire::FrameHeader& header = state.header;
  if (*call.refused != 0 || !holds_exponents(header)) {
    return;
  }
  if (header.last().coder != Coder::kRans) {
    if (header.kind == wire::Kind::kDelta) {
      scatter<Format>(call);
    }
    return;
  }
  const RansLayout layout = state.layout;
  const std::uint32_t log2 = state.segment_log2;
  const std::uint32_t prob_bits = state.prob_bits;
  for (std::uint32_t i = threadIdx.x; i < 1U << prob_bits; i += 32 * kDecodeWarps) {
    slots[i] = arrange_slot(state.slots[i]);
  }
  __syncthreads();  // the table is whole
  const std::byte* section = call.frame + header.last().offset;
  const std::uint64_t length = std::uint64_t{1} << log2;
  bool good = true;
  for (std::uint64_t segment = static_cast<std::uint64_t>(blockIdx.x) * kDecodeWarps + warp_id();
       segment < layout.segments; segment += static_cast<std::uint64_t>(gridDim.x) * kDecodeWarps) {
    const SegmentWords part = segment_words(section, layout, segment);
    const std::uint64_t first = segment << log2;
    const std::uint64_t rest = state.symbols - first;
    const auto count = static_cast<std::uint32_t>(rest < length ? rest : length);
    const WordWindow window(rings[warp_id()], part.start, part.limit);
    const auto decode = [&](auto sink) {
      return decode_segment(slots, prob_bits, part.state, window, part.first, part.count, count,
                            sink);
    };
    const std::uint64_t lane_first = first + lane_id();
    if (header.kind == wire::Kind::kDelta) {
      good &= decode(
          CacheSink{call.exponents, ListWalk(call.list, call.expected.block_size, lane_first)});
    } else {
      const auto* rest =
          reinterpret_cast<const std::uint8_t*>(call.frame + header.sections[0].offset);
      auto* dst = reinterpret_cast<typename Format::Word*>(call.dst);
      const std::uint64_t numel = call.expected.numel;
      good &= call.exponents != nullptr
                  ? decode(WordSink<Format, true>(rest, numel, lane_first, dst, call.exponents))
                  : decode(WordSink<Format, false>(rest, numel, lane_first, dst, nullptr));
    }
    __syncwarp();  // the ring is about to be filled anew
  }
  if (!good && lane_id() == 0) {
    call.verdict->verdict = Verdict::kBadStream;  // every writer writes the same
  }
}

// What the kernels before leave: the words of delta frames, whose exponents are all in the cache by
// now; key frames with stored exponents; raw frames. Of word-delta the key frames only. `wide`: dst
// is aligned to 16 bytes.
template <class Format>
__global__ void __launch_bounds__(kThreads)
    merge_kernel(const __grid_constant__ DecodeCall call, bool wide) {
  using Word = typename Format::Word;
  const wire::FrameHeader& header = call.state->header;
  const bool key = header.kind == wire::Kind::kKey;
  if (*call.refused != 0 || header.kind == wire::Kind::kSame ||
      (key && header.last().coder == Coder::kRans) || (!key && is_word_delta(call.expected))) {
    return;
  }
  const std::uint64_t numel = call.expected.numel;
  const bool raw = header.kind == wire::Kind::kRaw;
  const bool keep = call.exponents != nullptr && (raw || key);
  const auto* last = reinterpret_cast<const std::uint8_t*>(call.frame + header.last().offset);
  const auto* rest = reinterpret_cast<const std::uint8_t*>(
      call.frame + (raw ? 0 : header.sections[header.section_count - 2].offset));
  const std::uint64_t stride = static_cast<std::uint64_t>(gridDim.x) * kThreads;
#pragma unroll 2
  for (std::uint64_t g = static_cast<std::uint64_t>(blockIdx.x) * kThreads + threadIdx.x;
       8 * g < numel; g += stride) {
    const std::uint64_t at = 8 * g;
    const auto count = static_cast<std::uint32_t>(numel - at < 8 ? numel - at : 8);
    Words8<Format> words;
    std::uint64_t exponents = 0;
    if (raw) {
      words = load_words<Format>(reinterpret_cast<const Word*>(last), at, count, true);
      exponents = exponents_of<Format>(words);
    } else {
      exponents = !key                                 ? load_bytes(call.exponents + at, count)
                  : header.last().coder == Coder::kRaw ? load_exponents8<Format>(last, at, count)
                                                       : load_bytes(call.symbols + at, count);
      SignMantissa<Format>::load(rest, at, count, numel, words);
      merge_exponents<Format>(exponents, words);
    }
    store_words<Format>(words, reinterpret_cast<Word*>(call.dst), at, count, wide);
    if (keep) {
      store_bytes(exponents, call.exponents + at, count);
    }
  }
}

}  // namespace ciera::codec::cuda
