// The rans coder and the assembly of a frame (docs/wire-format.md, sections 2, 4 and 6). A warp
// codes a segment, its lanes are the coder's lanes.
#pragma once

#include "codec/cuda/block_ops.cuh"
#include "codec/cuda/checksum.cuh"
#include "codec/cuda/choose_frame.cuh"
#include "codec/cuda/encode_state.hpp"

namespace ciera::codec::cuda {

inline constexpr std::uint32_t kEncodeWarps = 4;  // few, so that small shards reach many SMs

// Codes symbols [0, count) and writes the words so that they end at `end`; returns how many. `x`
// becomes this lane's final state. Steps go backwards, as the format wants.
__device__ inline std::uint32_t encode_segment(const uint2* table, const std::uint8_t* symbols,
                                               std::uint32_t count, std::uint16_t* end,
                                               std::uint32_t& x) {
  constexpr std::uint32_t kAhead = 8;  // symbols read before they are needed
  const std::uint32_t lane = lane_id();
  const unsigned below = (1U << lane) - 1;
  std::uint32_t written = 0;
  x = kRansLow;
  const auto step = [&](std::uint32_t symbol, bool active) {
    const uint2 entry = table[symbol];
    const std::uint32_t rest = entry.x >> 12 & 0x1FFF;  // 2^n - frequency
    const std::uint32_t frequency = (1U << kRansProbBits) - rest;
    const bool emits = active && x >= frequency << (31 - kRansProbBits);
    const unsigned mask = __ballot_sync(kFullWarp, emits);
    written += __popc(mask);
    if (emits) {
      end[static_cast<std::int64_t>(__popc(mask & below)) - written] =
          static_cast<std::uint16_t>(x);
      x >>= 16;
    }
    const std::uint32_t quotient = __umulhi(x << 1, entry.y) >> (entry.x >> 25);  // x < 2^31
    x = active ? x + (entry.x & 0xFFF) + quotient * rest : x;
  };
  std::uint32_t steps = (count + 31) / 32;
  for (; steps % kAhead != 0 || steps * 32 > count; --steps) {
    const std::uint32_t i = (steps - 1) * 32 + lane;
    step(i < count ? symbols[i] : symbols[0], i < count);
    if (steps == 1) {
      return written;
    }
  }
  std::uint8_t next[kAhead];
  const auto fetch = [&](std::uint32_t from) {
#pragma unroll
    for (std::uint32_t k = 0; k < kAhead; ++k) {
      next[k] = symbols[(from + k) * 32 + lane];
    }
  };
  fetch(steps - kAhead);
  for (; steps > 0; steps -= kAhead) {
    std::uint8_t now[kAhead];
#pragma unroll
    for (std::uint32_t k = 0; k < kAhead; ++k) {
      now[k] = next[k];
    }
    if (steps > kAhead) {
      fetch(steps - 2 * kAhead);
    }
#pragma unroll
    for (std::uint32_t k = kAhead; k-- > 0;) {
      step(now[k], true);
    }
  }
  return written;
}

struct RansEncodeArgs {
  FrameParams params;
  EncodeScratch scratch;
  EncodeState* state;
};

// Decides the frame once all segments are coded: section coded or stored, frame raw or not.
__device__ inline void decide_frame(const RansEncodeArgs& args, std::uint64_t words) {
  const EncodeState& state = *args.state;
  const FrameParams& params = args.params;
  const std::uint64_t segments = rans_segments(state.symbols, params.segment_log2);
  const std::uint64_t coded = state.table_bytes + (4 + kRansStateBytes) * segments + 2 * words;
  choose_frame(params, *args.state, coded, params.coder == Coder::kRans && words <= 0xFFFFFFFF);
}

__global__ void __launch_bounds__(32 * kEncodeWarps) rans_encode_kernel(RansEncodeArgs args) {
  __shared__ uint2 table[256];
  __shared__ std::uint64_t sums[kEncodeWarps];
  const EncodeState& state = *args.state;
  const std::uint32_t log2 = args.params.segment_log2;
  const std::uint64_t segments =
      args.params.coder == Coder::kRans ? rans_segments(state.symbols, log2) : 0;
  for (std::uint32_t s = threadIdx.x; s < 256; s += 32 * kEncodeWarps) {
    table[s] = {state.table[s].packed, state.table[s].reciprocal};
  }
  __syncthreads();  // the table is whole
  const std::uint64_t segment = static_cast<std::uint64_t>(blockIdx.x) * kEncodeWarps + warp_id();
  if (segment < segments) {
    const std::uint64_t from = segment << log2;
    const std::uint64_t rest = state.symbols - from;
    const std::uint64_t length = std::uint64_t{1} << log2;
    std::uint32_t x = 0;
    const std::uint32_t words =
        encode_segment(table, args.scratch.exponents + from,
                       static_cast<std::uint32_t>(rest < length ? rest : length),
                       args.scratch.words + (segment + 1) * length, x);
    args.scratch.segment_states[kRansLanes * segment + lane_id()] = x;
    if (lane_id() == 0) {
      args.scratch.segment_words[segment] = words;
    }
  }
  if (!last_block(&args.state->ticket)) {
    return;
  }
  // Warp by warp sums are enough here: the ends are scanned by the next kernel's first block.
  std::uint64_t words = 0;
  for (std::uint64_t s = threadIdx.x; s < segments; s += 32 * kEncodeWarps) {
    words += __ldcg(&args.scratch.segment_words[s]);
  }
  words = warp_sum(words);
  if (lane_id() == 0) {
    sums[warp_id()] = words;
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    for (std::uint32_t w = 1; w < kEncodeWarps; ++w) {
      words += sums[w];
    }
    decide_frame(args, words);
  }
}

struct AssembleArgs {
  FrameParams params;
  EncodeScratch scratch;
  EncodeState* state;
  const std::byte* src;
  bool wide;
  std::byte* frame;
};

// Words of the segments before `segment`, in every thread of the block.
__device__ inline std::uint64_t words_before(const std::uint32_t* segment_words,
                                             std::uint64_t segment, std::uint64_t* shared) {
  std::uint64_t sum = 0;
  for (std::uint64_t s = threadIdx.x; s < segment; s += kThreads) {
    sum += segment_words[s];
  }
  __syncthreads();  // `shared` may still be read from an earlier use
  return block_sum(sum, shared);
}

// Table, ends, states and words of a coded section. Each block owns a run of segments, so that it
// adds up the words before its run once.
__device__ inline void assemble_rans(const AssembleArgs& args, std::byte* section,
                                     std::uint64_t* shared) {
  const EncodeState& state = *args.state;
  const std::uint32_t log2 = args.params.segment_log2;
  const std::uint64_t segments = rans_segments(state.symbols, log2);
  const std::uint64_t run = ceil_div(segments, gridDim.x);
  const std::uint64_t from = blockIdx.x * run;
  const std::uint64_t to = from + run < segments ? from + run : segments;
  if (blockIdx.x == 0 && threadIdx.x == 0) {
    write_rans_table(state.symbols, log2, state.frequencies, section);
  }
  auto* ends = reinterpret_cast<std::uint32_t*>(section + state.table_bytes);
  auto* states = ends + segments;
  auto* words = reinterpret_cast<std::uint16_t*>(states + kRansLanes * segments);
  if (from >= to) {
    return;
  }
  std::uint64_t end = words_before(args.scratch.segment_words, from, shared);
  for (std::uint64_t s = from; s < to; ++s) {
    const std::uint32_t count = args.scratch.segment_words[s];
    const std::uint16_t* source = args.scratch.words + ((s + 1) << log2) - count;
    for (std::uint32_t i = threadIdx.x; i < count; i += kThreads) {
      words[end + i] = source[i];
    }
    if (threadIdx.x < kRansLanes) {
      states[kRansLanes * s + threadIdx.x] =
          args.scratch.segment_states[kRansLanes * s + threadIdx.x];
    }
    end += count;
    if (threadIdx.x == 0) {
      ends[s] = static_cast<std::uint32_t>(end);
    }
  }
}

template <class Format>
__device__ void assemble_stored(const AssembleArgs& args, std::uint8_t* section) {
  const std::uint64_t symbols = args.state->symbols;
  const std::uint64_t stride = static_cast<std::uint64_t>(gridDim.x) * kThreads;
  for (std::uint64_t g = static_cast<std::uint64_t>(blockIdx.x) * kThreads + threadIdx.x;
       8 * g < symbols; g += stride) {
    const std::uint64_t left = symbols - 8 * g;
    const std::uint64_t exponents =
        *reinterpret_cast<const std::uint64_t*>(args.scratch.exponents + 8 * g);
    store_exponents8<Format>(exponents, section, 8 * g,
                             static_cast<std::uint32_t>(left < 8 ? left : 8));
  }
}

template <class Format>
__device__ void assemble_raw(const AssembleArgs& args, std::byte* section) {
  using Word = typename Format::Word;
  const auto* src = reinterpret_cast<const Word*>(args.src);
  const std::uint64_t numel = args.params.numel;
  const std::uint64_t stride = static_cast<std::uint64_t>(gridDim.x) * kThreads;
  for (std::uint64_t g = static_cast<std::uint64_t>(blockIdx.x) * kThreads + threadIdx.x;
       8 * g < numel; g += stride) {
    const std::uint64_t left = numel - 8 * g;
    const auto count = static_cast<std::uint32_t>(left < 8 ? left : 8);
    store_words<Format>(load_words<Format>(src, 8 * g, count, args.wide),
                        reinterpret_cast<Word*>(section), 8 * g, count, true);
  }
}

// Puts everything that is not in the frame yet into it, but for nvCOMP's section; the checksum
// field stays zero.
template <class Format>
__global__ void __launch_bounds__(kThreads) assemble_kernel(AssembleArgs args) {
  __shared__ std::uint64_t shared[kWarps];
  const wire::FrameHeader& header = args.state->header;
  if (blockIdx.x == 0 && threadIdx.x == 0) {
    wire::write_header(header, args.frame);
    std::uint64_t end = wire::header_bytes(header.section_count);
    for (std::uint32_t i = 0; i < header.section_count; ++i) {
      for (; end < header.sections[i].offset; ++end) {
        args.frame[end] = std::byte{0};
      }
      end += header.sections[i].bytes;
    }
  }
  std::byte* section = args.frame + header.last().offset;
  if (header.kind == wire::Kind::kRaw) {
    assemble_raw<Format>(args, section);
  } else if (header.last().coder == Coder::kRans) {
    assemble_rans(args, section, shared);
  } else if (header.last().coder == Coder::kRaw) {
    assemble_stored<Format>(args, reinterpret_cast<std::uint8_t*>(section));
  }
}

__global__ void __launch_bounds__(kThreads)
    seal_kernel(EncodeState* state, std::byte* frame, std::uint64_t blocks, EncodeResult* result) {
  __shared__ std::uint64_t shared[kWarps];
  const std::uint64_t bytes = state->header.frame_bytes;
  const std::uint64_t sum = block_sum(checksum_share(frame, bytes), shared);
  if (threadIdx.x == 0) {
    atomicAdd(&state->checksum_sum, static_cast<unsigned long long>(sum));
  }
  if (last_block(&state->ticket) && threadIdx.x == 0) {
    const std::uint64_t checksum = finish_checksum(atomicExch(&state->checksum_sum, 0ULL), bytes);
    base::store_le(frame + wire::kChecksumOffset, checksum);
    result->frame_bytes = bytes;
    result->checksum = checksum;
    result->kind = static_cast<FrameKind>(state->header.kind);
    result->blocks = blocks;
    result->changed_blocks = state->changed_blocks;
  }
}

}  // namespace ciera::codec::cuda
