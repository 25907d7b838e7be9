// Decoding of a checked frame. A warp decodes a segment of a coded section; a key frame's words are
// merged as they come out, a delta frame's exponents go to scratch and are merged with the cache in
// a pass of their own.
#pragma once

#include "codec/cuda/block_ops.cuh"
#include "codec/cuda/decode_state.hpp"

namespace ciera::codec::cuda {

inline constexpr std::uint32_t kDecodeWarps = 4;  // few, so that small shards reach many SMs

// The 16-bit words of a segment, read ahead into shared memory: two halves of 64 words, of which
// the next step may need both, and one more on its way in a register.
struct WordWindow {
  static constexpr std::uint32_t kHalfWords = 64;

  // Bytes [0, limit) from `from`, which is aligned to 4, may be read.
  __device__ WordWindow(std::uint32_t* ring, const std::uint32_t* from, std::uint64_t limit)
      : ring_(ring), from_(from), limit_(limit) {
    ring_[lane_id()] = fetch(0);
    ring_[32 + lane_id()] = fetch(1);
    ahead_ = fetch(2);
    __syncwarp();
  }

  __device__ std::uint32_t word(std::uint32_t at) const {
    return reinterpret_cast<const std::uint16_t*>(ring_)[at % (2 * kHalfWords)];
  }

  // `next`: the first word still needed; grows by at most 32 from call to call. The same in all
  // lanes.
  __device__ void advance(std::uint32_t next) {
    if (next / kHalfWords != half_) {
      __syncwarp();  // every lane has read what is about to be replaced
      ring_[32 * (half_ % 2) + lane_id()] = ahead_;
      ++half_;
      ahead_ = fetch(half_ + 2);
      __syncwarp();  // the new half can be read
    }
  }

 private:
  __device__ std::uint32_t fetch(std::uint32_t half) const {
    const std::uint64_t at = 32ULL * half + lane_id();
    return 4 * at + 4 <= limit_ ? from_[at] : 4 * at + 2 <= limit_ ? first_half(at) : 0;
  }
  __device__ std::uint32_t first_half(std::uint64_t at) const {
    return *reinterpret_cast<const std::uint16_t*>(from_ + at);
  }

  std::uint32_t* ring_;
  const std::uint32_t* from_;
  std::uint64_t limit_;
  std::uint32_t ahead_ = 0;
  std::uint32_t half_ = 0;
};

// Decodes `count` symbols; sink(i, symbol, extra) takes lane's symbol i of the segment, where
// `extra` is what sink.prefetch(i) returned some steps earlier. False when words are missing or
// left over or a state is wrong.
template <class Sink>
__device__ bool decode_segment(const std::uint32_t* slots, std::uint32_t prob_bits, std::uint32_t x,
                               WordWindow words, std::uint32_t first_word, std::uint32_t word_count,
                               std::uint32_t count, const Sink& sink) {
  constexpr std::uint32_t kAhead = 8;
  const std::uint32_t lane = lane_id();
  const unsigned below = (1U << lane) - 1;
  const std::uint32_t mask = (1U << prob_bits) - 1;
  const bool started = x >= kRansLow && x < kRansLow << 16;
  std::uint32_t next = first_word;
  const auto step = [&](std::uint32_t i, bool active, typename Sink::Extra extra) {
    const std::uint32_t slot = slots[x & mask];
    const std::uint32_t y = ((slot >> 8 & 0xFFF) + 1) * (x >> prob_bits) + (slot >> 20);
    x = active ? y : x;
    const bool hungry = active && x < kRansLow;
    const unsigned hungry_mask = __ballot_sync(kFullWarp, hungry);
    if (hungry) {
      x = x << 16 | words.word(next + __popc(hungry_mask & below));
    }
    next += __popc(hungry_mask);
    words.advance(next);
    if (active) {
      sink(i, static_cast<std::uint8_t>(slot), extra);
    }
  };
  std::uint32_t i = lane;
  for (; i - lane + 32 * kAhead <= count; i += 32 * kAhead) {
    typename Sink::Extra extras[kAhead];
#pragma unroll
    for (std::uint32_t k = 0; k < kAhead; ++k) {
      extras[k] = sink.prefetch(i + 32 * k);
    }
#pragma unroll
    for (std::uint32_t k = 0; k < kAhead; ++k) {
      step(i + 32 * k, true, extras[k]);
    }
  }
  for (; i - lane < count; i += 32) {
    typename Sink::Extra extra{};
    if (i < count) {
      extra = sink.prefetch(i);
    }
    step(i, i < count, extra);
  }
  return __all_sync(kFullWarp, started && next == first_word + word_count && x == kRansLow) != 0;
}

// Exponents as bytes.
struct ByteSink {
  using Extra = std::uint8_t;
  std::uint8_t* to;

  __device__ Extra prefetch(std::uint32_t) const { return 0; }
  __device__ void operator()(std::uint32_t i, std::uint8_t symbol, Extra) const { to[i] = symbol; }
};

// Exponents merged with the sign_mantissa section into words, and kept.
template <class Format>
struct WordSink {
  using Word = typename Format::Word;
  using Extra = Word;
  const std::uint8_t* sign_mantissa;  // of the whole shard
  std::uint64_t numel;
  std::uint64_t first;  // the segment's first value
  Word* dst;
  std::uint8_t* cache;  // null without state

  __device__ Extra prefetch(std::uint32_t i) const {
    const std::uint64_t at = first + i;
    if constexpr (kSignMantissaBits<Format> == 8) {
      return sign_mantissa[at];
    } else if constexpr (sizeof(Word) == 2) {
      const std::uint8_t* planes = sign_mantissa + numel + 3 * (at / 8);
      const auto bit = static_cast<std::uint32_t>(at % 8);
      const std::uint32_t high =
          (planes[0] >> bit & 1) | (planes[1] >> bit & 1) << 1 | (planes[2] >> bit & 1) << 2;
      return static_cast<Word>(sign_mantissa[at] | high << 8);
    } else {
      const std::uint8_t* bytes = sign_mantissa + 3 * at;
      return bytes[0] | static_cast<Word>(bytes[1]) << 8 | static_cast<Word>(bytes[2]) << 16;
    }
  }
  __device__ void operator()(std::uint32_t i, std::uint8_t symbol, Extra rest) const {
    dst[first + i] = merge_word<Format>(symbol, rest);
    if (cache != nullptr) {
      cache[first + i] = symbol;
    }
  }
};

template <class Format>
__global__ void __launch_bounds__(32 * kDecodeWarps) rans_decode_kernel(DecodeCall call) {
  __shared__ std::uint32_t slots[1U << kRansMaxProbBits];
  __shared__ std::uint32_t rings[kDecodeWarps][WordWindow::kHalfWords];
  const DecodeState& state = *call.state;
  const wire::FrameHeader& header = state.header;
  if (*call.refused != 0 || header.kind == wire::Kind::kRaw ||
      header.last().coder != Coder::kRans) {
    return;
  }
  const RansLayout layout = state.layout;
  const std::uint32_t log2 = state.segment_log2;
  const std::uint32_t prob_bits = state.prob_bits;
  for (std::uint32_t i = threadIdx.x; i < 1U << prob_bits; i += 32 * kDecodeWarps) {
    slots[i] = state.slots[i];
  }
  __syncthreads();  // the table is whole
  const std::byte* section = call.frame + header.last().offset;
  const auto* ends = reinterpret_cast<const std::uint32_t*>(section + layout.ends);
  const auto* states = reinterpret_cast<const std::uint32_t*>(section + layout.states);
  const auto* words = reinterpret_cast<const std::uint16_t*>(section + layout.words);
  const std::uint64_t length = std::uint64_t{1} << log2;
  bool good = true;
  for (std::uint64_t segment = static_cast<std::uint64_t>(blockIdx.x) * kDecodeWarps + warp_id();
       segment < layout.segments; segment += static_cast<std::uint64_t>(gridDim.x) * kDecodeWarps) {
    const std::uint32_t begin = segment == 0 ? 0 : ends[segment - 1];
    const std::uint32_t word_count = ends[segment] - begin;
    const std::uint64_t first = segment << log2;
    const std::uint64_t rest = state.symbols - first;
    const auto count = static_cast<std::uint32_t>(rest < length ? rest : length);
    // The section is aligned to 4, so `words` is: pairs start at even words.
    const std::uint32_t odd = begin % 2;
    WordWindow window(rings[warp_id()], reinterpret_cast<const std::uint32_t*>(words + begin - odd),
                      2 * (layout.word_count - begin + odd));
    const std::uint32_t x = states[kRansLanes * segment + lane_id()];
    if (header.kind == wire::Kind::kKey) {
      const WordSink<Format> sink{
          reinterpret_cast<const std::uint8_t*>(call.frame + header.sections[0].offset),
          call.expected.numel, first, reinterpret_cast<typename Format::Word*>(call.dst),
          call.exponents};
      good &= decode_segment(slots, prob_bits, x, window, odd, word_count, count, sink);
    } else {
      good &= decode_segment(slots, prob_bits, x, window, odd, word_count, count,
                             ByteSink{call.symbols + first});
    }
    __syncwarp();  // the ring is about to be filled anew
  }
  if (!good && lane_id() == 0) {
    call.verdict->verdict = Verdict::kBadStream;  // every writer writes the same
  }
}

struct MergeArgs {
  DecodeCall call;
  std::uint32_t tile_blocks;
  std::uint64_t tiles;
  bool wide;  // dst is aligned to 16 bytes
};

// One group of eight values: exponents from the frame or from the cache, merged with sign and
// mantissa.
template <class Format>
__device__ void merge_group(const MergeArgs& args, std::uint64_t at, std::uint64_t exponents,
                            bool keep) {
  const DecodeCall& call = args.call;
  const std::uint64_t numel = call.expected.numel;
  const auto count = static_cast<std::uint32_t>(numel - at < 8 ? numel - at : 8);
  const wire::FrameHeader& header = call.state->header;
  const auto* section = reinterpret_cast<const std::uint8_t*>(
      call.frame + header.sections[header.section_count - 2].offset);
  std::uint32_t rest[8];
  SignMantissa<Format>::load(section, at, count, numel, rest);
  store_words<Format>(merge_words<Format>(exponents, rest),
                      reinterpret_cast<typename Format::Word*>(call.dst), at, count, args.wide);
  if (keep) {
    store_bytes(exponents, call.exponents + at, count);
  }
}

// A delta frame: a block of threads owns a tile of blocks.
template <class Format>
struct MergeBlock {
  struct Shared {
    std::uint16_t rank[kMaxTileBlocks];  // changed blocks of the tile before this one
  };
  static constexpr std::uint16_t kUnchanged = 0xFFFF;

  __device__ static void rank_blocks(const std::byte* bitmap, std::uint64_t first_block,
                                     std::uint32_t blocks, Shared& shared) {
    if (warp_id() == 0) {
      std::uint32_t count = 0;
      for (std::uint32_t b = lane_id(); b < (blocks + 31) / 32 * 32; b += 32) {
        const std::uint64_t block = first_block + b;
        const bool set =
            b < blocks && (bitmap[block / 8] >> (block % 8) & std::byte{1}) != std::byte{0};
        const unsigned mask = __ballot_sync(kFullWarp, set);
        if (b < blocks) {
          shared.rank[b] =
              set ? static_cast<std::uint16_t>(count + __popc(mask & ((1U << lane_id()) - 1)))
                  : kUnchanged;
        }
        count += __popc(mask);
      }
    }
  }

  __device__ static void tile(const MergeArgs& args, std::uint64_t tile, Shared& shared) {
    const DecodeCall& call = args.call;
    const std::uint32_t block_size = call.expected.block_size;
    const std::uint64_t numel = call.expected.numel;
    const std::uint64_t first_block = tile * args.tile_blocks;
    const std::uint64_t first = first_block * block_size;
    const std::uint64_t whole = static_cast<std::uint64_t>(args.tile_blocks) * block_size;
    const auto values = static_cast<std::uint32_t>(numel - first < whole ? numel - first : whole);
    const wire::FrameHeader& header = call.state->header;
    __syncthreads();  // the ranks of the tile before have been read
    rank_blocks(call.frame + header.sections[0].offset, first_block,
                static_cast<std::uint32_t>(block_count(values, block_size)), shared);
    __syncthreads();  // the ranks are there
    const bool coded = header.last().coder != Coder::kRaw;
    const auto* stored = reinterpret_cast<const std::uint8_t*>(call.frame + header.last().offset);
    const std::uint64_t out = static_cast<std::uint64_t>(call.tile_changed[tile]) * block_size;
    for (std::uint32_t at = 8 * threadIdx.x; at < values; at += 8 * kThreads) {
      const std::uint32_t block = at / block_size;
      const std::uint16_t rank = shared.rank[block];
      const std::uint32_t count = values - at < 8 ? values - at : 8;
      const bool changed = rank != kUnchanged;
      std::uint64_t exponents = 0;
      if (!changed) {
        exponents = load_bytes(call.exponents + first + at, count);
      } else {
        const std::uint64_t from =
            out + static_cast<std::uint64_t>(rank) * block_size + (at - block * block_size);
        exponents = coded ? load_bytes(call.symbols + from, 8)
                          : load_exponents8<Format>(stored, from, count);
      }
      merge_group<Format>(args, first + at, exponents, changed);
    }
  }
};

// What the rans kernel leaves: delta frames, other exponents of key frames, raw frames.
template <class Format>
__global__ void __launch_bounds__(kThreads) merge_kernel(MergeArgs args) {
  __shared__ typename MergeBlock<Format>::Shared shared;
  const DecodeCall& call = args.call;
  const wire::FrameHeader& header = call.state->header;
  if (*call.refused != 0) {
    return;
  }
  if (header.kind == wire::Kind::kDelta) {
    for (std::uint64_t tile = blockIdx.x; tile < args.tiles; tile += gridDim.x) {
      MergeBlock<Format>::tile(args, tile, shared);
    }
    return;
  }
  if (header.kind == wire::Kind::kKey && header.last().coder == Coder::kRans) {
    return;
  }
  using Word = typename Format::Word;
  const std::uint64_t numel = call.expected.numel;
  const auto* stored = reinterpret_cast<const std::uint8_t*>(call.frame + header.last().offset);
  const std::uint64_t stride = static_cast<std::uint64_t>(gridDim.x) * kThreads;
  for (std::uint64_t g = static_cast<std::uint64_t>(blockIdx.x) * kThreads + threadIdx.x;
       8 * g < numel; g += stride) {
    const std::uint64_t at = 8 * g;
    const auto count = static_cast<std::uint32_t>(numel - at < 8 ? numel - at : 8);
    if (header.kind == wire::Kind::kKey) {
      const std::uint64_t exponents = header.last().coder == Coder::kRaw
                                          ? load_exponents8<Format>(stored, at, count)
                                          : load_bytes(call.symbols + at, count);
      merge_group<Format>(args, at, exponents, call.exponents != nullptr);
      continue;
    }
    const auto words = load_words<Format>(reinterpret_cast<const Word*>(stored), at, count, true);
    store_words<Format>(words, reinterpret_cast<Word*>(call.dst), at, count, args.wide);
    if (call.exponents != nullptr) {
      store_bytes(exponents_of<Format>(words), call.exponents + at, count);
    }
  }
}

}  // namespace ciera::codec::cuda
