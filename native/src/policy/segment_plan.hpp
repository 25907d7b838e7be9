// PLAN: how a segment travels. A pure function of what all ranks know, so that all ranks plan
// alike.
#pragma once

#include "cache/shard_table.hpp"
#include "ciera/compressed_allgather.hpp"

namespace ciera::policy {

// A bare part has no frame: the bytes as they are.
enum class PartForm : std::uint8_t { kBare, kFrame };

struct SegmentPlan {
  PartForm form = PartForm::kBare;
  ReuseMode mode = ReuseMode::kOff;
};

// What a shard falls back to that has no state.
inline ReuseMode stateless_mode(const Options& options) {
  return options.reuse == ReuseMode::kOff ? ReuseMode::kOff : ReuseMode::kExponentOnly;
}

inline SegmentPlan plan_segment(const Options& options, DType dtype, cache::Residence residence) {
  const ReuseMode mode =
      residence == cache::Residence::kStateful ? options.reuse : stateless_mode(options);
  return codes(mode, dtype) ? SegmentPlan{PartForm::kFrame, mode} : SegmentPlan{};
}

// How payloads of known sizes are exchanged: an equal all-gather when sizes are equal, per-rank
// counts where the transport has them, else an equal all-gather padded to the largest.
enum class ExchangeForm : std::uint8_t { kEqual, kPadded, kPerRankCounts };

inline ExchangeForm plan_exchange(std::uint64_t min_bytes, std::uint64_t max_bytes,
                                  CountSupport support) {
  if (max_bytes == min_bytes) {
    return ExchangeForm::kEqual;
  }
  return support == CountSupport::kPerRank ? ExchangeForm::kPerRankCounts : ExchangeForm::kPadded;
}

}  // namespace ciera::policy
