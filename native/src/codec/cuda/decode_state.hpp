// What the kernels of one decode hand to each other, in GPU memory, and their launches.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "codec/cuda/encode_state.hpp"
#include "codec/delta_section.hpp"
#include "codec/frame.hpp"
#include "codec/rans_section.hpp"

namespace ciera::codec::cuda {

// What the host reads back of one frame.
struct DecodeVerdict {
  Verdict verdict;
  FrameInfo info;
};

// One frame between its check and its decoding. Cleared before the check.
struct DecodeState {
  unsigned ticket;
  unsigned long long checksum_sum;
  Verdict header_verdict;  // in the order in which they count, the checksum's after the first
  Verdict identity_verdict;
  Verdict content_verdict;
  wire::FrameHeader header;
  std::uint64_t symbols;  // exponents in the frame; values of changed blocks in delta frames
  unsigned without_list;  // set when the frame is refused or no delta frame
  RansLayout layout;
  std::uint32_t prob_bits;
  std::uint32_t segment_log2;
  DeltaHead delta;  // of a coded changes section
  std::uint32_t slots[1U << kRansMaxProbBits];
};

struct DecodeCall {
  FrameParams expected;
  const std::byte* frame;
  std::uint64_t frame_bytes;
  std::uint8_t* exponents;  // ExpCache, in word-delta the WordCache; null without state
  std::byte* dst;
  std::uint8_t* symbols;        // scratch: exponents of an nvcomp-ans frame
  std::uint32_t* tile_changed;  // scratch: changed blocks before each tile
  std::uint32_t* list;          // scratch: numbers of changed blocks, with kListPadding
  std::uint32_t* delta_slots =
      nullptr;                         // scratch of the delta modes: slots of all contexts' tables
  std::uint8_t* quad_flags = nullptr;  // and a byte for each quad
  DecodeState* state;
  DecodeVerdict* verdict;              // GPU memory, cleared before the check
  unsigned* refused;                   // GPU memory, one for all frames of a call, cleared before
  const NvcompCall* nvcomp = nullptr;  // for the launch, when coder nvcomp-ans is expected
};

// Sizes of `list`, `delta_slots` and `quad_flags`, which calls on one stream may share, and of
// `tile_changed`, which each has for itself; multiples of 256.
std::size_t decode_list_bytes(const FrameParams& params);
std::size_t delta_slot_bytes(const FrameParams& params);
std::size_t quad_flag_bytes(const FrameParams& params);
std::size_t decode_tile_bytes(const FrameParams& params);

// Enqueues the check of one frame: everything but what only decoding can find. On a verdict other
// than ok it sets *refused.
void launch_check(const DecodeCall& call, int multiprocessors, cudaStream_t stream);
// The parts of the decoding that only the delta modes have: coded changes, and in word-delta
// whatever keeps WordCache and dst alike besides.
void launch_changes(const DecodeCall& call, int multiprocessors, cudaStream_t stream);
void launch_words(const DecodeCall& call, int multiprocessors, cudaStream_t stream);
// Enqueues the decoding; does nothing on the GPU when *refused is set.
void launch_decode(const DecodeCall& call, int multiprocessors, cudaStream_t stream);
// The merge of a delta frame alone, for benches.
void launch_merge(const DecodeCall& call, int multiprocessors, cudaStream_t stream);

}  // namespace ciera::codec::cuda
