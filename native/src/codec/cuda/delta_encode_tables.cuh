// The encoding tables of a changes section, one block of threads a context, and how they go into
// the section (docs/wire-format.md, section 11).
#pragma once

#include "codec/cuda/delta_count_kernels.cuh"
#include "codec/cuda/delta_tables.cuh"

namespace ciera::codec::cuda {

class EncodeTableBlock {
 public:
  struct Shared {
    ContextTable table;
    std::uint64_t shares[256];
    std::uint64_t sums[17];  // see belongs_to
    uint4 mark;
  };

  __device__ EncodeTableBlock(const DeltaCodeArgs& args, Shared& shared)
      : state_(*args.state), shared_(shared) {}

  // Number `table`: of the quad contexts, then of the value contexts.
  __device__ void run(unsigned table) {
    if (table < state_.quad.contexts) {
      make_quad_table(table);
    } else if (table >= kMaxQuadContexts && table - kMaxQuadContexts < state_.value.contexts) {
      make_value_table(table - kMaxQuadContexts);
    }
  }

  // Of the block that comes last: as write_delta_tables.
  __device__ void finish(const FrameParams& params) {
    const auto put = [this](std::uint32_t at, std::uint32_t byte) {
      state_.table[at] = static_cast<std::byte>(byte);
    };
    const ContextChoice quad = state_.quad;
    const ContextChoice value = state_.value;
    if (threadIdx.x == 0) {
      base::store_le(state_.table, state_.values);
      put(8, kDeltaProbBits);
      put(9, params.segment_log2);
      put(10, static_cast<std::uint32_t>(params.effort));
      put(11, quad.contexts);
      put(12, quad.top);
      put(13, value.contexts);
      put(14, value.top);
      put(15, 0);
    }
    const std::uint32_t parameters = kQuadParameters * quad.contexts;
    if (threadIdx.x < parameters) {
      put(kDeltaFixedBytes + threadIdx.x,
          static_cast<std::uint8_t>(state_.models[threadIdx.x / kQuadParameters]
                                        .parameters[threadIdx.x % kQuadParameters]));
    }
    std::uint32_t at = kDeltaFixedBytes + parameters;
    for (std::uint32_t c = 0; c < value.contexts; ++c) {
      const std::uint32_t first = state_.code_first[c];
      const std::uint32_t count = state_.code_count[c];
      if (threadIdx.x == 0) {
        put(at, count == 0 ? 1 : first);
        put(at + 1, count == 0 ? 0 : first + count - 1);
      }
      const std::uint8_t* codes = state_.codes[c] + first;
      const std::uint32_t i = 2 * threadIdx.x;
      if (i < count) {
        put(at + 2 + threadIdx.x, codes[i] | (i + 1 < count ? codes[i + 1] << 4 : 0));
      }
      at += 2 + (count + 1) / 2;
    }
    if (threadIdx.x == 0) {
      const std::uint32_t bytes = (at + 3) / 4 * 4;
      for (; at < bytes; ++at) {
        put(at, 0);
      }
      state_.table_bytes = bytes;
    }
  }

 private:
  // Sums 3 j to 3 j + 2: bytes with t 0, 1 or 2, 3 at position j; 12 + q: with q of their t not 0.
  static constexpr std::uint32_t kByMoved = 12;
  __device__ static bool belongs_to(std::uint32_t sum, std::uint32_t byte) {
    if (sum >= kByMoved) {
      return moved_in(byte) == sum - kByMoved;
    }
    const std::uint32_t t = byte >> (2 * (sum / 3)) & 3;
    return sum % 3 == 0 ? t == 0 : sum % 3 == 1 ? t == 1 || t == 2 : t == kEscape;
  }

  // Sums `from` and on of what the threads give.
  __device__ void add_up(std::uint64_t share, std::uint32_t from) {
    __syncthreads();  // earlier sums have been read
    shared_.shares[threadIdx.x] = share;
    __syncthreads();  // all shares are there
    for (std::uint32_t sum = from + warp_id(); sum < 17; sum += kWarps) {
      std::uint64_t own = 0;
#pragma unroll
      for (std::uint32_t i = 0; i < 8; ++i) {
        const std::uint32_t byte = 32 * i + lane_id();
        own += belongs_to(sum, byte) ? shared_.shares[byte] : 0;
      }
      own = warp_sum(own);
      if (lane_id() == 0) {
        shared_.sums[sum] = own;
      }
    }
    __syncthreads();  // the sums are there
  }

  // As make_quad_model, of counts one a thread.
  __device__ void make_model(std::uint64_t count) {
    QuadModel& model = shared_.table.model;
    const std::uint64_t* sums = shared_.sums;
    add_up(count, 0);
    const std::uint32_t i = threadIdx.x;
    if (i < 8) {  // a_j at even, e_j at odd places
      const std::uint64_t zero = sums[3 * (i / 2)];
      const std::uint64_t other = sums[3 * (i / 2) + 1 + i % 2];
      model.parameters[i] =
          other == 0
              ? kNever
              : limited_score(log_eighths(i % 2 == 0 ? 2 * zero : zero) - log_eighths(other));
    }
    const std::uint64_t unmoved = sums[kByMoved];
    const std::uint64_t found = i >= 1 && i <= 4 ? sums[kByMoved + i] : 0;
    __syncthreads();  // the first eight parameters are there
    add_up(shared_.table.quad_weight(false), kByMoved);
    if (i >= 1 && i <= 4) {
      const std::uint64_t expected = sums[kByMoved + i];
      model.parameters[7 + i] =
          found == 0 || expected == 0
              ? kNever
              : limited_score(log_eighths(unmoved) + log_eighths(expected) - log_eighths(found) -
                              log_eighths(sums[kByMoved]));
    }
    __syncthreads();  // the model is there
  }

  // This thread's count, which is cleared; of symbol 0 what the others leave of `all`.
  __device__ std::uint64_t take_count(unsigned long long* counts, std::uint64_t all) {
    const std::uint64_t count = counts[threadIdx.x];
    counts[threadIdx.x] = 0;
    const std::uint64_t others = block_sum(count, shared_.table.sums);
    __syncthreads();  // the sums may be used again
    return threadIdx.x == 0 ? all - others : count;
  }

  __device__ uint4 entry() const {
    const std::uint32_t frequency = shared_.table.frequencies[threadIdx.x];
    return frequency == 0 ? uint4{}
                          : pack_entry(make_encode_symbol(frequency, shared_.table.cum[threadIdx.x],
                                                          kDeltaProbBits),
                                       kDeltaProbBits);
  }

  __device__ void make_quad_table(std::uint32_t c) {
    make_model(take_count(state_.quad_counts[c], state_.in_quad_context[c]));
    ContextTable& table = shared_.table;
    table.settle(table.quad_share(kDeltaProbBits), true, kDeltaProbBits);
    if (threadIdx.x == 0) {
      state_.models[c] = table.model;
    }
    const std::uint32_t byte = threadIdx.x;
    const uint4 own = entry();
    if (byte == kMark) {
      shared_.mark = own;
    }
    const bool rare = byte == kMark || table.frequencies[byte] == 0;
    const unsigned bits = __ballot_sync(kFullWarp, rare);
    if (lane_id() == 0) {
      state_.rare[c][warp_id()] = bits;
    }
    __syncthreads();  // the mark's entry is there
    state_.quad_table[256 * c + byte] = rare ? shared_.mark : own;
  }

  __device__ void make_value_table(std::uint32_t c) {
    const std::uint64_t all = state_.in_value_context[c];
    const std::uint64_t count = take_count(state_.value_counts[c], all);
    const std::uint32_t code = code_of_count(count, all);
    state_.codes[c][threadIdx.x] = static_cast<std::uint8_t>(code);
    const auto symbol = static_cast<std::int32_t>(threadIdx.x);
    ContextTable& table = shared_.table;
    const std::int32_t first = table.block_min(code != 0 ? symbol : 256);
    const std::int32_t end = -table.block_min(code != 0 ? -(symbol + 1) : 0);
    if (threadIdx.x == 0) {
      state_.code_first[c] = end == 0 ? 0 : static_cast<std::uint32_t>(first);
      state_.code_count[c] = end == 0 ? 0 : static_cast<std::uint32_t>(end - first);
    }
    table.settle(table.value_share(code, kDeltaProbBits), end != 0, kDeltaProbBits);
    state_.value_table[256 * c + threadIdx.x] = entry();
  }

  DeltaEncodeState& state_;
  Shared& shared_;
};

inline __global__ void __launch_bounds__(kThreads)
    delta_encode_table_kernel(const __grid_constant__ DeltaCodeArgs args) {
  __shared__ EncodeTableBlock::Shared shared;
  EncodeTableBlock block(args, shared);
  block.run(blockIdx.x);
  if (last_block(&args.state->ticket)) {
    block.finish(args.params);
  }
}

}  // namespace ciera::codec::cuda
