// The rans coder and the assembly of a frame (docs/wire-format.md, sections 2, 4 and 6). A warp
// codes a segment, its lanes are the coder's lanes.
#pragma once

#include "codec/cuda/block_ops.cuh"
#include "codec/cuda/changed_list.cuh"
#include "codec/cuda/checksum.cuh"
#include "codec/cuda/choose_frame.cuh"
#include "codec/cuda/encode_state.hpp"
#include "codec/cuda/rans_writer.cuh"
#include "codec/cuda/stream_assembly.cuh"
#include "codec/cuda/table_kernels.cuh"

namespace ciera::codec::cuda {

inline constexpr std::uint32_t kEncodeWarps = 4;  // few, so that small shards reach many SMs

// The exponents of a shard from the end to the beginning, 32 lanes abreast. Stands 32 symbols
// beyond symbol j at first; raw() is the word of the symbol it stands at.
template <class Format>
class WordSource {
 public:
  using Raw = typename Format::Word;
  __device__ WordSource(const std::byte* src, std::uint64_t j)
      : at_(reinterpret_cast<const Raw*>(src) + j + 32) {}
  __device__ void back() { at_ -= 32; }
  __device__ Raw raw() const { return *at_; }

 private:
  const Raw* at_;
};

// The same for the exponents of changed blocks.
template <class Format>
class ListedSource {
 public:
  using Raw = typename Format::Word;
  __device__ ListedSource(const std::byte* src, const std::uint32_t* list, std::uint32_t block_size,
                          std::uint64_t j)
      : src_(reinterpret_cast<const Raw*>(src)), walk_(list, block_size, j + 32) {}
  __device__ void back() { walk_.back(); }
  __device__ Raw raw() const { return src_[walk_.value()]; }

 private:
  const Raw* src_;
  ListWalk walk_;
};

// Codes `count` symbols, of which `source` stands at the end, and writes the words so that they end
// at region[capacity]; returns how many. `x` becomes this lane's final state. Steps go backwards,
// as the format wants.
template <class Format, class Source>
__device__ std::uint32_t encode_segment(const uint4* table, Source source, std::uint32_t count,
                                        std::uint16_t* region, std::uint32_t capacity,
                                        std::uint32_t& x) {
  constexpr int kAhead = 8;             // symbols read before they are needed
  WarpWriter writer(region, capacity);  // a word a symbol at most: there is room
  const auto step = [&](typename Source::Raw raw, bool active) {
    writer.put(table[exponent_of<Format>(raw)], active);
  };
  const auto finish = [&] {
    x = writer.state();
    return writer.words();
  };
  std::uint32_t steps = (count + 31) / 32;
  for (; steps % kAhead != 0 || steps * 32 > count; --steps) {
    const bool active = (steps - 1) * 32 + lane_id() < count;
    source.back();
    step(active ? source.raw() : typename Source::Raw{0}, active);
    if (steps == 1) {
      return finish();
    }
  }
  typename Source::Raw next[kAhead];
  const auto fetch = [&] {
#pragma unroll
    for (int k = kAhead - 1; k >= 0; --k) {
      source.back();
      next[k] = source.raw();
    }
  };
  fetch();
  for (; steps > 0; steps -= kAhead) {
    typename Source::Raw now[kAhead];
#pragma unroll
    for (int k = 0; k < kAhead; ++k) {
      now[k] = next[k];
    }
    if (steps > kAhead) {
      fetch();
    }
#pragma unroll
    for (int k = kAhead - 1; k >= 0; --k) {
      step(now[k], true);
    }
  }
  return finish();
}

struct RansEncodeArgs {
  FrameParams params;
  const std::byte* src;
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

template <class Format, bool kDelta>
__global__ void __launch_bounds__(32 * kEncodeWarps)
    rans_encode_kernel(const __grid_constant__ RansEncodeArgs args) {
  __shared__ uint4 table[256];
  __shared__ std::uint64_t sums[kEncodeWarps];
  const EncodeState& state = *args.state;
  const std::uint32_t log2 = args.params.segment_log2;
  const std::uint64_t segments =
      args.params.coder == Coder::kRans ? rans_segments(state.symbols, log2) : 0;
  for (std::uint32_t s = threadIdx.x; s < 256; s += 32 * kEncodeWarps) {
    table[s] = state.table[s];
  }
  __syncthreads();  // the table is whole
  const std::uint64_t segment = static_cast<std::uint64_t>(blockIdx.x) * kEncodeWarps + warp_id();
  if (segment < segments) {
    const std::uint64_t from = segment << log2;
    const std::uint64_t rest = state.symbols - from;
    const std::uint64_t length = std::uint64_t{1} << log2;
    std::uint32_t x = 0;
    const auto count = static_cast<std::uint32_t>(rest < length ? rest : length);
    // The symbol of this lane's last step.
    const std::uint64_t last = from + (count - 1) / 32 * 32 + lane_id();
    std::uint16_t* region = args.scratch.words + segment * length;
    const auto capacity = static_cast<std::uint32_t>(length);
    std::uint32_t words = 0;
    if constexpr (kDelta) {
      const ListedSource<Format> source(args.src, args.scratch.list, args.params.block_size, last);
      words = encode_segment<Format>(table, source, count, region, capacity, x);
    } else {
      const WordSource<Format> source(args.src, last);
      words = encode_segment<Format>(table, source, count, region, capacity, x);
    }
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

// Table, ends, states and words of a coded section.
__device__ inline void assemble_rans(const AssembleArgs& args, std::byte* section,
                                     std::uint64_t* shared) {
  const EncodeState& state = *args.state;
  const std::uint32_t log2 = args.params.segment_log2;
  if (blockIdx.x == gridDim.x - 1) {  // the last block has least to do
    write_table_in_block(state, log2, section);
  }
  assemble_streams({args.scratch.words, std::uint64_t{1} << log2, args.scratch.segment_words,
                    args.scratch.segment_states},
                   rans_segments(state.symbols, log2), section + state.table_bytes, shared);
}

// Hands every group of eight exponents that are sent to body(exponents, first symbol, count).
template <class Format, class Body>
__device__ void for_sent_groups(const AssembleArgs& args, const Body& body) {
  using Word = typename Format::Word;
  const auto* src = reinterpret_cast<const Word*>(args.src);
  const std::uint64_t symbols = args.state->symbols;
  const std::uint32_t block_size = args.params.block_size;
  const bool delta = is_delta(args.params);
  const std::uint64_t stride = static_cast<std::uint64_t>(gridDim.x) * kThreads;
  for (std::uint64_t g = static_cast<std::uint64_t>(blockIdx.x) * kThreads + threadIdx.x;
       8 * g < symbols; g += stride) {
    const std::uint64_t j = 8 * g;  // a group lies in one block: blocks are a multiple of 8
    const std::uint64_t value =
        delta ? static_cast<std::uint64_t>(args.scratch.list[j / block_size]) * block_size +
                    j % block_size
              : j;
    const auto count = static_cast<std::uint32_t>(symbols - j < 8 ? symbols - j : 8);
    body(exponents_of<Format>(load_words<Format>(src, value, count, args.wide)), j, count);
  }
}

template <class Format>
__device__ void assemble_stored(const AssembleArgs& args, std::uint8_t* section) {
  for_sent_groups<Format>(args,
                          [section](std::uint64_t exponents, std::uint64_t j, std::uint32_t count) {
                            store_exponents8<Format>(exponents, section, j, count);
                          });
}

// The exponents that are sent in one piece, for coders that want them so.
template <class Format>
__global__ void __launch_bounds__(kThreads)
    gather_kernel(const __grid_constant__ AssembleArgs args) {
  std::uint8_t* to = args.scratch.exponents;
  for_sent_groups<Format>(args, [to](std::uint64_t exponents, std::uint64_t j, std::uint32_t) {
    store_bytes(exponents, to + j, 8);  // padded to a multiple of 16
  });
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
__global__ void __launch_bounds__(kThreads)
    assemble_kernel(const __grid_constant__ AssembleArgs args) {
  __shared__ std::uint64_t shared[kWarps];
  const wire::FrameHeader& header = args.state->header;
  if (blockIdx.x == 0 && threadIdx.x == 0) {
    write_header_and_padding(header, args.frame);
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

// Adds what the pass over the shard has not added yet, writes the checksum and the result.
template <class Format>
__global__ void __launch_bounds__(kThreads)
    seal_kernel(EncodeState* state, std::byte* frame, std::uint64_t blocks, EncodeResult* result) {
  __shared__ std::uint64_t shared[kWarps];
  const wire::FrameHeader& header = state->header;
  const std::uint64_t bytes = header.frame_bytes;
  const bool raw = header.kind == wire::Kind::kRaw;
  // Whole groups of the sign_mantissa section.
  const std::uint64_t from = raw ? 0 : header.sections[header.section_count - 2].offset;
  const std::uint64_t to =
      raw ? 0 : from + header.numel / 8 * 8 * SignMantissa<Format>::kSummedBytes;
  const std::uint64_t share = checksum_share(frame, 0, from, blockIdx.x, gridDim.x) +
                              checksum_share(frame, to, bytes, blockIdx.x, gridDim.x);
  const std::uint64_t sum = block_sum(share, shared);
  if (threadIdx.x == 0) {
    atomicAdd(&state->checksum_sum, static_cast<unsigned long long>(sum));
  }
  if (last_block(&state->ticket) && threadIdx.x == 0) {
    const std::uint64_t split_sum = atomicExch(&state->split_sum, 0ULL);
    const std::uint64_t rest = atomicExch(&state->checksum_sum, 0ULL);
    const std::uint64_t checksum = finish_checksum(rest + (raw ? 0 : split_sum), bytes);
    base::store_le(frame + wire::kChecksumOffset, checksum);
    result->frame_bytes = bytes;
    result->checksum = checksum;
    result->kind = static_cast<FrameKind>(header.kind);
    result->blocks = blocks;
    result->changed_blocks = state->changed_blocks;
  }
}

}  // namespace ciera::codec::cuda
