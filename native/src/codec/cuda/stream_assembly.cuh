// Puts a frame together: header, padding, and the streams that warps have coded.
#pragma once

#include "codec/cuda/block_ops.cuh"
#include "codec/frame.hpp"
#include "codec/rans_section.hpp"
#include "wire/frame_header.hpp"

namespace ciera::codec::cuda {

// One thread. The checksum field stays zero.
__device__ inline void write_header_and_padding(const wire::FrameHeader& header, std::byte* frame) {
  wire::write_header(header, frame);
  std::uint64_t end = wire::header_bytes(header.section_count);
  for (std::uint32_t i = 0; i < header.section_count; ++i) {
    for (; end < header.sections[i].offset; ++end) {
      frame[end] = std::byte{0};
    }
    end += header.sections[i].bytes;
  }
}

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

// By a warp; several loads are under way before the first store.
__device__ inline void copy_words(const std::uint16_t* from, std::uint16_t* to,
                                  std::uint32_t count) {
  constexpr std::uint32_t kAtOnce = 8;
  std::uint32_t i = lane_id();
  for (; i + 32 * (kAtOnce - 1) < count; i += 32 * kAtOnce) {
    std::uint16_t words[kAtOnce];
#pragma unroll
    for (std::uint32_t k = 0; k < kAtOnce; ++k) {
      words[k] = from[i + 32 * k];
    }
#pragma unroll
    for (std::uint32_t k = 0; k < kAtOnce; ++k) {
      to[i + 32 * k] = words[k];
    }
  }
  for (; i < count; i += 32) {
    to[i] = from[i];
  }
}

// Where the words of coded segments lie: at the end of `room` of them each.
struct CodedStreams {
  const std::uint16_t* words;
  std::uint64_t room;
  const std::uint32_t* segment_words;
  const std::uint32_t* segment_states;
};

// Ends, states and words behind the tables of a coded section. Each block owns a run of segments,
// so that it adds up the words before its run once.
__device__ inline void assemble_streams(const CodedStreams& coded, std::uint64_t segments,
                                        std::byte* to_section, std::uint64_t* shared) {
  const std::uint64_t run = ceil_div(ceil_div(segments, gridDim.x), kWarps) * kWarps;
  const std::uint64_t from = blockIdx.x * run;
  const std::uint64_t to = from + run < segments ? from + run : segments;
  auto* ends = reinterpret_cast<std::uint32_t*>(to_section);
  auto* states = ends + segments;
  auto* words = reinterpret_cast<std::uint16_t*>(states + kRansLanes * segments);
  if (from >= to) {
    return;
  }
  std::uint64_t before = words_before(coded.segment_words, from, shared);
  for (std::uint64_t base = from; base < to; base += kWarps) {  // a warp a segment
    const std::uint64_t s = base + warp_id();
    const std::uint32_t count = s < to ? coded.segment_words[s] : 0;
    __syncthreads();  // the counts of the round before have been read
    if (lane_id() == 0) {
      shared[warp_id()] = count;
    }
    __syncthreads();  // the counts of this round are there
    std::uint64_t start = before;
    for (std::uint32_t w = 0; w < kWarps; ++w) {
      start += w < warp_id() ? shared[w] : 0;
      before += shared[w];
    }
    if (s < to) {
      copy_words(coded.words + (s + 1) * coded.room - count, words + start, count);
      states[kRansLanes * s + lane_id()] = coded.segment_states[kRansLanes * s + lane_id()];
      if (lane_id() == 0) {
        ends[s] = static_cast<std::uint32_t>(start + count);
      }
    }
  }
}

}  // namespace ciera::codec::cuda
