// The check of a frame before anything of it is used: header, checksum, identity, bitmap, table and
// sizes of the coded section, in the order of docs/wire-format.md, section 8.
#pragma once

#include "codec/cuda/block_ops.cuh"
#include "codec/cuda/changed_list.cuh"
#include "codec/cuda/checksum.cuh"
#include "codec/cuda/decode_state.hpp"
#include "codec/cuda/delta_check.cuh"
#include "codec/cuda/nvcomp_check.cuh"

namespace ciera::codec::cuda {

struct CheckBlock {
  struct Shared {
    std::uint64_t scan[kWarps];
    std::uint32_t sums[kWarps];
    std::uint32_t round_sums[2][kWarps];
    wire::FrameHeader header;
    std::uint64_t symbols;
    Verdict verdict;
    RansTable table;
    std::uint32_t cum[256];
    std::byte section[kRansMaxTableBytes];
    DeltaCheck::Shared delta;
  };

  // Sixteen bytes of a bitmap; zero beyond its end.
  __device__ static ulonglong2 bitmap_piece(const std::byte* bitmap, std::uint32_t bytes,
                                            std::uint32_t at) {
    if (at + 16 <= bytes) {
      return *reinterpret_cast<const ulonglong2*>(bitmap + at);
    }
    std::uint64_t halves[2] = {};
#pragma unroll
    for (std::uint32_t i = 0; i < 16; ++i) {
      if (at + i < bytes) {
        halves[i / 8] |= static_cast<std::uint64_t>(bitmap[at + i]) << (8 * (i % 8));
      }
    }
    return {halves[0], halves[1]};
  }
  // Bits that are set in its first `count` bytes, fewer than 16.
  __device__ static std::uint32_t bits_before(const ulonglong2& piece, std::uint32_t count) {
    const std::uint64_t mask = (std::uint64_t{1} << (8 * (count % 8))) - 1;
    return count < 8 ? __popcll(piece.x & mask) : __popcll(piece.x) + __popcll(piece.y & mask);
  }

  // The number of changed blocks before each tile, for the merge; of all, in every thread. In
  // rounds of sixteen bytes a thread; a shard has fewer than 2^32 blocks.
  __device__ static std::uint32_t count_changed(const DecodeCall& call, const std::byte* bitmap,
                                                Shared& shared) {
    const std::uint64_t numel = call.expected.numel;
    const auto bytes =
        static_cast<std::uint32_t>(bitmap_bytes(block_count(numel, call.expected.block_size)));
    const std::uint32_t tile_bytes = tile_blocks(numel, call.expected.block_size) / 8;
    std::uint32_t before = 0;
    std::uint32_t at = 16 * threadIdx.x;
    ulonglong2 ahead = bitmap_piece(bitmap, bytes, at);
    for (std::uint32_t round = 0; 16 * kThreads * round < bytes; ++round) {
      const ulonglong2 piece = ahead;
      ahead = bitmap_piece(bitmap, bytes, at + 16 * kThreads);
      const auto own = static_cast<std::uint32_t>(__popcll(piece.x) + __popcll(piece.y));
      const std::uint32_t end = warp_inclusive_scan(own);
      std::uint32_t* sums = shared.round_sums[round % 2];
      if (lane_id() == 31) {
        sums[warp_id()] = end;
      }
      __syncthreads();  // these sums are there, and those of the round before have been read
      std::uint32_t own_before = before + end - own;
      for (std::uint32_t w = 0; w < kWarps; ++w) {
        own_before += w < warp_id() ? sums[w] : 0;
        before += sums[w];
      }
      const std::uint32_t to = at + 16 < bytes ? at + 16 : bytes;
      for (std::uint32_t tile = (at + tile_bytes - 1) / tile_bytes; tile * tile_bytes < to;
           ++tile) {
        call.tile_changed[tile] = own_before + bits_before(piece, tile * tile_bytes - at);
      }
      at += 16 * kThreads;
    }
    return before;
  }

  // Bits of changed blocks: spare bits are zero; sums for the merge.
  __device__ static void read_bitmap(const DecodeCall& call, Shared& shared) {
    const FrameParams& expected = call.expected;
    const std::byte* bitmap = call.frame + shared.header.sections[0].offset;
    const std::uint64_t blocks = block_count(expected.numel, expected.block_size);
    if (blocks == 0) {
      return;  // an empty bitmap of an empty shard
    }
    const std::uint32_t changed = count_changed(call, bitmap, shared);
    if (threadIdx.x == 0) {
      const std::byte last = bitmap[bitmap_bytes(blocks) - 1];
      if (static_cast<std::uint32_t>(last) >> ((blocks - 1) % 8) >> 1 != 0) {
        shared.verdict = Verdict::kBadBitmap;
      }
      call.verdict->info.changed_blocks = changed;
      shared.symbols = changed_symbols(bitmap, changed, expected.numel, expected.block_size);
      call.state->symbols = shared.symbols;
    }
    __syncthreads();  // verdict and symbols are there
  }

  // The coded section's table and sizes; the slots of the decoding table.
  __device__ static void read_rans(const DecodeCall& call, Shared& shared) {
    DecodeState& state = *call.state;
    const wire::Section& section = shared.header.last();
    const std::byte* bytes = call.frame + section.offset;
    const std::uint64_t head =
        section.bytes < kRansMaxTableBytes ? section.bytes : kRansMaxTableBytes;
    for (std::uint64_t i = threadIdx.x; i < head; i += kThreads) {
      shared.section[i] = bytes[i];
    }
    __syncthreads();
    const Verdict verdict = read_table(shared.section, static_cast<std::uint32_t>(head), shared);
    if (threadIdx.x == 0) {
      shared.verdict = verdict == Verdict::kOk ? lay_out_rans(shared.table, section.bytes,
                                                              shared.symbols, &state.layout)
                                               : verdict;
    }
    __syncthreads();
    if (shared.verdict != Verdict::kOk) {
      return;
    }
    if (!check_segment_ends(bytes, state.layout)) {
      if (threadIdx.x == 0) {
        shared.verdict = Verdict::kBadStream;
      }
      return;
    }
    fill_slots(state, shared);
  }

  // As read_rans_table, thread s for the s-th symbol from the first; the same verdict in all.
  __device__ static Verdict read_table(const std::byte* section, std::uint32_t available,
                                       Shared& shared) {
    const auto byte_at = [section](std::uint32_t i) {
      return static_cast<std::uint32_t>(section[i]);
    };
    RansTable& table = shared.table;
    table.frequencies[threadIdx.x] = 0;
    const std::uint32_t first = available < 12 ? 1 : byte_at(10);
    const std::uint32_t last = available < 12 ? 0 : byte_at(11);
    const std::uint32_t presence = (last - first + 8) / 8;
    if (last < first || available < 12 + presence) {
      return Verdict::kBadTable;
    }
    if (threadIdx.x == 0) {
      table.symbols = base::load_le<std::uint64_t>(section);
      table.prob_bits = byte_at(8);
      table.segment_log2 = byte_at(9);
    }
    const std::uint32_t own = threadIdx.x;
    const bool occurs = own < 8 * presence && (byte_at(12 + own / 8) >> (own % 8) & 1) != 0;
    const bool must_occur = own == 0 || own == last - first;
    bool good = !(occurs && own > last - first) && (occurs || !must_occur);
    const unsigned mask = __ballot_sync(kFullWarp, occurs);
    if (lane_id() == 0) {
      shared.sums[warp_id()] = __popc(mask);
    }
    __syncthreads();  // the counts of all warps are there, and the table's head
    std::uint32_t before = __popc(mask & ((1U << lane_id()) - 1));
    std::uint32_t present = 0;
    for (std::uint32_t w = 0; w < kWarps; ++w) {
      before += w < warp_id() ? shared.sums[w] : 0;
      present += shared.sums[w];
    }
    const std::uint32_t bytes = rans_table_bytes(first, last, present);
    std::uint32_t frequency = 0;
    if (occurs && bytes <= available) {
      const std::uint32_t at = 12 + presence + 2 * before;
      frequency = (byte_at(at) | byte_at(at + 1) << 8) + 1;
      if (first + own < 256) {
        table.frequencies[first + own] = frequency;
      }
    }
    __syncthreads();  // the counts have been read
    const std::uint32_t sum = block_sum(frequency, shared.sums);
    good = good && bytes <= available && table.prob_bits >= kRansMinProbBits &&
           table.prob_bits <= kRansMaxProbBits && table.segment_log2 >= kRansMinSegmentLog2 &&
           table.segment_log2 <= kRansMaxSegmentLog2 && sum == 1U << table.prob_bits;
    if (__syncthreads_and(good ? 1 : 0) == 0) {
      return Verdict::kBadTable;
    }
    bool padded = true;
    for (std::uint32_t at = 12 + presence + 2 * present; at < bytes; ++at) {
      padded = padded && byte_at(at) == 0;
    }
    if (threadIdx.x == 0) {
      table.bytes = bytes;
    }
    return padded ? Verdict::kOk : Verdict::kBadPadding;
  }

  // Thread s owns the slots of symbol s.
  __device__ static void fill_slots(DecodeState& state, Shared& shared) {
    if (threadIdx.x == 0) {
      state.prob_bits = shared.table.prob_bits;
      state.segment_log2 = shared.table.segment_log2;
    }
    const std::uint32_t frequency = shared.table.frequencies[threadIdx.x];
    const std::uint32_t end = block_inclusive_scan(frequency, shared.sums);
    const std::uint32_t begin = end - frequency;
    shared.cum[threadIdx.x] = begin;
    __syncthreads();
    // By slot, so that one very frequent symbol does not keep one thread busy.
    const std::uint32_t size = 1U << shared.table.prob_bits;
    for (std::uint32_t slot = threadIdx.x; slot < size; slot += kThreads) {
      const std::uint32_t symbol = symbol_of_slot(shared.cum, slot);
      state.slots[slot] =
          make_decode_slot(symbol, shared.table.frequencies[symbol], slot - shared.cum[symbol]);
    }
  }

  // Everything but the checksum. All of it is safe on any bytes; what it finds counts only when the
  // checksum is right.
  __device__ static void read(const DecodeCall& call, Shared& shared) {
    DecodeState& state = *call.state;
    if (threadIdx.x == 0) {
      wire::FrameHeader& header = shared.header;
      header = {};
      state.header_verdict = check_header(call.expected, call.frame, call.frame_bytes, &header);
      state.identity_verdict = state.header_verdict == Verdict::kOk
                                   ? check_identity(call.expected, header)
                                   : Verdict::kOk;
      state.header = header;
      state.symbols = call.expected.numel;
      shared.symbols = call.expected.numel;
      call.verdict->info.kind = static_cast<FrameKind>(header.kind);
      call.verdict->info.frame_bytes = header.frame_bytes;
      call.verdict->info.checksum = header.checksum;
      call.verdict->info.changed_blocks =
          header.kind == wire::Kind::kSame
              ? 0
              : block_count(call.expected.numel, call.expected.block_size);
      shared.verdict =
          state.header_verdict != Verdict::kOk ? state.header_verdict : state.identity_verdict;
    }
    __syncthreads();
    const bool known = shared.verdict == Verdict::kOk;
    __syncthreads();  // every thread knows it before it may change
    if (known) {
      read_content(call, shared);
    }
    if (threadIdx.x == 0) {
      state.content_verdict = known ? shared.verdict : Verdict::kOk;
    }
  }

  __device__ static void read_content(const DecodeCall& call, Shared& shared) {
    const wire::FrameHeader& header = shared.header;
    const bool coded = header.kind == wire::Kind::kKey || header.kind == wire::Kind::kDelta;
    const bool changes = coded && header.last().kind == wire::SectionKind::kChanges;
    if (changes && header.last().coder == Coder::kRans) {
      DeltaCheck::load_head(call.frame, header.last(), shared.delta);  // on its way meanwhile
    }
    if (header.kind == wire::Kind::kDelta) {
      read_bitmap(call, shared);
    }
    const bool valid = shared.verdict == Verdict::kOk;
    __syncthreads();  // every thread knows it before it may change, and the head is there
    if (valid && coded) {
      if (changes) {
        const Verdict verdict =
            DeltaCheck::check(call, header.last(), shared.symbols, shared.delta);
        if (threadIdx.x == 0) {
          shared.verdict = verdict;
        }
      } else if (header.last().coder == Coder::kRans) {
        read_rans(call, shared);
      } else if (header.last().coder == Coder::kNvcompAns) {
        const Verdict verdict = check_nvcomp_section(call);
        if (threadIdx.x == 0) {
          shared.verdict = verdict;
        }
      } else if (threadIdx.x == 0 &&
                 header.last().bytes !=
                     stored_exponent_bytes(call.expected.dtype, shared.symbols)) {
        shared.verdict = Verdict::kBadSizes;
      }
    }
    __syncthreads();  // the verdict is final
  }

  // One thread of the block that comes last.
  __device__ static void judge(const DecodeCall& call) {
    DecodeState& state = *call.state;
    Verdict verdict = state.header_verdict;
    if (verdict == Verdict::kOk) {
      constexpr std::uint64_t kField = wire::kChecksumOffset / 8;
      // The field counts as zero.
      const std::uint64_t sum = atomicAdd(&state.checksum_sum, 0ULL) -
                                base::keyed(state.header.checksum, kField, base::kGamma0) +
                                base::keyed(0, kField, base::kGamma0);
      if (finish_checksum(sum, call.frame_bytes) != state.header.checksum) {
        verdict = Verdict::kBadChecksum;
      }
    }
    verdict = verdict != Verdict::kOk ? verdict : state.identity_verdict;
    verdict = verdict != Verdict::kOk ? verdict : state.content_verdict;
    const bool delta = verdict == Verdict::kOk && state.header.kind == wire::Kind::kDelta;
    state.without_list = delta ? 0 : 1;
    call.verdict->verdict = verdict;
    if (verdict != Verdict::kOk) {
      atomicExch(call.refused, 1U);
    }
  }
};

// The first block reads the frame while the others add up its checksum.
__global__ void __launch_bounds__(kThreads, 4)
    check_kernel(const __grid_constant__ DecodeCall call) {
  __shared__ CheckBlock::Shared shared;
  if (blockIdx.x == 0) {
    CheckBlock::read(call, shared);
  } else {
    const std::uint64_t share =
        checksum_share(call.frame, 0, call.frame_bytes, blockIdx.x - 1, gridDim.x - 1);
    const std::uint64_t sum = block_sum(share, shared.scan);
    if (threadIdx.x == 0) {
      atomicAdd(&call.state->checksum_sum, static_cast<unsigned long long>(sum));
    }
  }
  if (last_block(&call.state->ticket) && threadIdx.x == 0) {
    CheckBlock::judge(call);
  }
}

}  // namespace ciera::codec::cuda
