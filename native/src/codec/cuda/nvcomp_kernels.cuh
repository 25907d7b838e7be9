// What surrounds nvCOMP's calls: lists of chunks before, the decision and the copies after.
#pragma once

#include "codec/cuda/block_ops.cuh"
#include "codec/cuda/choose_frame.cuh"
#include "codec/cuda/nvcomp_state.hpp"
#include "codec/nvcomp_section.hpp"

namespace ciera::codec::cuda {

// What a status is before nvCOMP writes it: a chunk that it passes over has failed.
inline constexpr nvcomp::Status kUnset = nvcomp::kInternal;

struct NvcompEncodeArgs {
  FrameParams params;
  NvcompArrays arrays;
  const std::uint8_t* exponents;
  EncodeState* state;
  std::byte* frame;
  int* failure;
};

// A thread owns a chunk's entries; `chunks` of them, surplus ones included.
__global__ void __launch_bounds__(kThreads)
    nvcomp_list_exponents_kernel(NvcompEncodeArgs args, std::uint64_t chunks) {
  const std::uint64_t c = static_cast<std::uint64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (c >= chunks) {
    return;
  }
  const NvcompArrays& arrays = args.arrays;
  arrays.from[c] = args.exponents + c * kNvcompChunkBytes;
  arrays.from_bytes[c] = nvcomp_chunk_symbols(c, args.state->symbols);
  arrays.to[c] = arrays.chunks + c * arrays.chunk_stride;
  arrays.to_bytes[c] = 0;
  arrays.statuses[c] = kUnset;
}

// One block: places of the chunks, their sum, and the frame that follows from it.
__global__ void __launch_bounds__(kThreads) nvcomp_decide_kernel(NvcompEncodeArgs args) {
  __shared__ std::uint64_t sums[kWarps];
  const NvcompArrays& arrays = args.arrays;
  const std::uint64_t chunks = nvcomp_chunks(args.state->symbols);
  bool failed = false;
  for (std::uint64_t c = threadIdx.x; c < chunks; c += kThreads) {
    const std::size_t bytes = arrays.to_bytes[c];
    nvcomp::Status status = arrays.statuses[c];
    if (status == nvcomp::kSuccess && (bytes == 0 || bytes > arrays.chunk_stride)) {
      status = nvcomp::kInternal;
    }
    if (status != nvcomp::kSuccess) {
      *args.failure = status;  // any of them will do
      failed = true;
    }
    arrays.places[c] = status == nvcomp::kSuccess ? wire::align16(bytes) : 0;
  }
  const bool any_failed = __syncthreads_or(failed ? 1 : 0) != 0;  // and the sizes are there
  const std::uint64_t padded = block_exclusive_scan(arrays.places, chunks, sums);
  if (threadIdx.x == 0) {
    std::uint64_t coded = nvcomp_table_bytes(chunks) + padded;
    if (chunks > 0 && !any_failed) {
      const std::uint64_t last = arrays.to_bytes[chunks - 1];
      coded -= wire::align16(last) - last;  // the section ends with its last chunk
    }
    choose_frame(args.params, *args.state, coded, !any_failed);
  }
}

// A block copies a chunk at a time; chunks lie on multiples of 16 on both sides, and the gap behind
// a chunk is its block's.
__global__ void __launch_bounds__(kThreads) nvcomp_assemble_kernel(NvcompEncodeArgs args) {
  const EncodeState& state = *args.state;
  if (state.header.last().coder != Coder::kNvcompAns) {
    return;
  }
  const NvcompArrays& arrays = args.arrays;
  const std::uint64_t chunks = nvcomp_chunks(state.symbols);
  std::byte* section = args.frame + state.header.last().offset;
  if (blockIdx.x == 0 && threadIdx.x == 0) {
    write_nvcomp_head(state.symbols, args.params.nvcomp_major, section);
  }
  for (std::uint64_t c = blockIdx.x; c < chunks; c += gridDim.x) {
    const std::uint64_t bytes = arrays.to_bytes[c];
    const std::uint64_t place = nvcomp_table_bytes(chunks) + arrays.places[c];
    if (threadIdx.x == 0) {
      write_nvcomp_chunk(c, {place, bytes}, section);
    }
    const std::byte* from = arrays.chunks + c * arrays.chunk_stride;
    const auto* from16 = reinterpret_cast<const uint4*>(from);
    auto* to16 = reinterpret_cast<uint4*>(section + place);
    for (std::uint64_t i = threadIdx.x; i < bytes / 16; i += kThreads) {
      to16[i] = from16[i];
    }
    const std::uint64_t end = c + 1 == chunks ? bytes : wire::align16(bytes);
    for (std::uint64_t i = bytes / 16 * 16 + threadIdx.x; i < end; i += kThreads) {
      section[place + i] = i < bytes ? from[i] : std::byte{0};
    }
  }
}

// Chunks that nvCOMP shall decompress of this frame: none when it is refused or coded otherwise.
__device__ inline std::uint64_t nvcomp_chunks_of(const DecodeCall& call) {
  const DecodeState& state = *call.state;
  const bool coded = *call.refused == 0 && state.header.section_count != 0 &&
                     state.header.last().coder == Coder::kNvcompAns;
  return coded ? nvcomp_chunks(state.symbols) : 0;
}

// A thread owns a chunk's entries; `chunks` of them, surplus ones included. Entries of the section
// have been checked.
__global__ void __launch_bounds__(kThreads)
    nvcomp_list_chunks_kernel(DecodeCall call, NvcompArrays arrays, std::uint64_t chunks) {
  const std::uint64_t c = static_cast<std::uint64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (c >= chunks) {
    return;
  }
  const DecodeState& state = *call.state;
  const bool used = c < nvcomp_chunks_of(call);
  NvcompChunk place;
  const std::byte* section = arrays.chunks;
  if (used) {
    section = call.frame + state.header.last().offset;
    place = read_nvcomp_chunk(c, section);
  }
  arrays.from[c] = section + place.offset;
  arrays.from_bytes[c] = place.bytes;
  arrays.to[c] = call.symbols + c * kNvcompChunkBytes;
  arrays.to_bytes[c] = used ? nvcomp_chunk_symbols(c, state.symbols) : 0;
  arrays.out_bytes[c] = 0;
  arrays.statuses[c] = kUnset;
}

__global__ void __launch_bounds__(kThreads)
    nvcomp_verify_kernel(DecodeCall call, NvcompArrays arrays) {
  const std::uint64_t c = static_cast<std::uint64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (c < nvcomp_chunks_of(call) &&
      (arrays.statuses[c] != nvcomp::kSuccess || arrays.out_bytes[c] != arrays.to_bytes[c])) {
    call.verdict->verdict = Verdict::kBadStream;  // every writer writes the same
  }
}

}  // namespace ciera::codec::cuda
