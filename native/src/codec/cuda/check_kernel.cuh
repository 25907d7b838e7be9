// The check of a frame before anything of it is used: header, checksum, identity, bitmap, table and
// sizes of the coded section, in the order of docs/wire-format.md, section 8.
#pragma once

#include "codec/cuda/block_ops.cuh"
#include "codec/cuda/checksum.cuh"
#include "codec/cuda/decode_state.hpp"
#include "codec/cuda/nvcomp_check.cuh"

namespace ciera::codec::cuda {

struct CheckBlock {
  struct Shared {
    std::uint64_t scan[kWarps];
    Verdict verdict;
    RansTable table;
    std::uint32_t cum[257];
    std::byte section[kRansMaxTableBytes];
  };

  // Bits of changed blocks, tile by tile: spare bits are zero; sums for the merge.
  __device__ static void read_bitmap(const DecodeCall& call, Shared& shared) {
    const FrameParams& expected = call.expected;
    DecodeState& state = *call.state;
    const std::byte* bitmap = call.frame + state.header.sections[0].offset;
    const std::uint64_t blocks = block_count(expected.numel, expected.block_size);
    if (blocks == 0) {
      return;  // an empty bitmap of an empty shard
    }
    const std::uint64_t bytes = bitmap_bytes(blocks);
    const std::uint32_t tile_bytes = tile_blocks(expected.block_size) / 8;
    const std::uint64_t tiles = tile_count(expected.numel, expected.block_size);
    for (std::uint64_t tile = threadIdx.x; tile < tiles; tile += kThreads) {
      std::uint32_t changed = 0;
      for (std::uint64_t b = tile * tile_bytes; b < (tile + 1) * tile_bytes && b < bytes; ++b) {
        changed += __popc(static_cast<unsigned>(bitmap[b]));
      }
      call.tile_changed[tile] = changed;
    }
    __syncthreads();  // the scan reads what other threads counted
    const std::uint64_t changed = block_exclusive_scan(call.tile_changed, tiles, shared.scan);
    if (threadIdx.x == 0) {
      const std::uint64_t last = blocks - 1;
      const auto last_byte = static_cast<std::uint32_t>(bitmap[bytes - 1]);
      const bool last_changed = (last_byte >> (last % 8) & 1) != 0;
      const std::uint64_t missing =
          expected.block_size - block_values(last, expected.numel, expected.block_size);
      if (last_byte >> (last % 8) >> 1 != 0) {
        shared.verdict = Verdict::kBadBitmap;
      }
      call.verdict->info.changed_blocks = changed;
      state.symbols = changed * expected.block_size - (last_changed ? missing : 0);
    }
    __syncthreads();
  }

  // The coded section's table and sizes; the slots of the decoding table.
  __device__ static void read_rans(const DecodeCall& call, Shared& shared) {
    DecodeState& state = *call.state;
    const wire::Section& section = state.header.last();
    const std::byte* bytes = call.frame + section.offset;
    const std::uint64_t head =
        section.bytes < kRansMaxTableBytes ? section.bytes : kRansMaxTableBytes;
    for (std::uint64_t i = threadIdx.x; i < head; i += kThreads) {
      shared.section[i] = bytes[i];
    }
    shared.table.frequencies[threadIdx.x] = 0;
    __syncthreads();
    if (threadIdx.x == 0) {
      shared.verdict = read_rans_table(shared.section, head, &shared.table);
      if (shared.verdict == Verdict::kOk) {
        shared.verdict = lay_out_rans(shared.table, section.bytes, state.symbols, &state.layout);
      }
    }
    __syncthreads();
    if (shared.verdict != Verdict::kOk) {
      return;
    }
    const auto* ends = reinterpret_cast<const std::uint32_t*>(bytes + state.layout.ends);
    const std::uint64_t segments = state.layout.segments;
    bool good = true;
    for (std::uint64_t s = threadIdx.x; s < segments; s += kThreads) {
      good = good && (s == 0 || ends[s] >= ends[s - 1]);
      good = good && (s + 1 != segments || ends[s] == state.layout.word_count);
    }
    if (__syncthreads_and(good ? 1 : 0) == 0) {
      if (threadIdx.x == 0) {
        shared.verdict = Verdict::kBadStream;
      }
      return;
    }
    fill_slots(state, shared);
  }

  // Thread s owns the slots of symbol s.
  __device__ static void fill_slots(DecodeState& state, Shared& shared) {
    if (threadIdx.x == 0) {
      state.prob_bits = shared.table.prob_bits;
      state.segment_log2 = shared.table.segment_log2;
    }
    const std::uint32_t frequency = shared.table.frequencies[threadIdx.x];
    std::uint32_t end = frequency;
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
      const std::uint32_t left = __shfl_up_sync(kFullWarp, end, step);
      end += lane_id() >= step ? left : 0;
    }
    if (lane_id() == 31) {
      shared.cum[warp_id()] = end;
    }
    __syncthreads();
    for (std::uint32_t w = 0; w < warp_id(); ++w) {
      end += shared.cum[w];
    }
    const std::uint32_t begin = end - frequency;
    __syncthreads();  // cum is about to hold something else
    shared.cum[threadIdx.x] = begin;
    __syncthreads();
    // By slot, so that one very frequent symbol does not keep one thread busy.
    const std::uint32_t size = 1U << shared.table.prob_bits;
    for (std::uint32_t slot = threadIdx.x; slot < size; slot += kThreads) {
      std::uint32_t symbol = 0;  // the last one that begins at or before the slot
#pragma unroll
      for (std::uint32_t bit = 128; bit > 0; bit /= 2) {
        symbol += shared.cum[symbol + bit] <= slot ? bit : 0;
      }
      state.slots[slot] =
          make_decode_slot(symbol, shared.table.frequencies[symbol], slot - shared.cum[symbol]);
    }
  }

  // All threads of the block that comes last.
  __device__ static void finish(const DecodeCall& call, Shared& shared) {
    DecodeState& state = *call.state;
    if (threadIdx.x == 0) {
      shared.verdict = check_header(call.expected, call.frame, call.frame_bytes, &state.header);
      if (shared.verdict == Verdict::kOk) {
        const std::uint64_t kField = wire::kChecksumOffset / 8;
        // The field counts as zero.
        const std::uint64_t sum = atomicAdd(&state.checksum_sum, 0ULL) -
                                  base::keyed(state.header.checksum, kField, base::kGamma0) +
                                  base::keyed(0, kField, base::kGamma0);
        shared.verdict = finish_checksum(sum, call.frame_bytes) == state.header.checksum
                             ? check_identity(call.expected, state.header)
                             : Verdict::kBadChecksum;
      }
      state.symbols = call.expected.numel;
      call.verdict->info.kind = static_cast<FrameKind>(state.header.kind);
      call.verdict->info.frame_bytes = state.header.frame_bytes;
      call.verdict->info.checksum = state.header.checksum;
      call.verdict->info.changed_blocks =
          block_count(call.expected.numel, call.expected.block_size);
    }
    __syncthreads();
    const bool delta = shared.verdict == Verdict::kOk && state.header.kind == wire::Kind::kDelta;
    __syncthreads();  // every thread knows it before it may change
    if (delta) {
      read_bitmap(call, shared);
    }
    const bool valid = shared.verdict == Verdict::kOk;
    __syncthreads();  // every thread knows it before it may change
    if (valid && state.header.kind != wire::Kind::kRaw) {
      if (state.header.last().coder == Coder::kRans) {
        read_rans(call, shared);
      } else if (state.header.last().coder == Coder::kNvcompAns) {
        const Verdict verdict = check_nvcomp_section(call);
        if (threadIdx.x == 0) {
          shared.verdict = verdict;
        }
      } else if (threadIdx.x == 0 &&
                 state.header.last().bytes !=
                     stored_exponent_bytes(call.expected.dtype, state.symbols)) {
        shared.verdict = Verdict::kBadSizes;
      }
    }
    __syncthreads();
    if (threadIdx.x == 0) {
      call.verdict->verdict = shared.verdict;
      if (shared.verdict != Verdict::kOk) {
        atomicExch(call.refused, 1U);
      }
    }
  }
};

__global__ void __launch_bounds__(kThreads) check_kernel(DecodeCall call) {
  __shared__ CheckBlock::Shared shared;
  const std::uint64_t sum = block_sum(checksum_share(call.frame, call.frame_bytes), shared.scan);
  if (threadIdx.x == 0) {
    atomicAdd(&call.state->checksum_sum, static_cast<unsigned long long>(sum));
  }
  if (last_block(&call.state->ticket)) {
    CheckBlock::finish(call, shared);
  }
}

}  // namespace ciera::codec::cuda
