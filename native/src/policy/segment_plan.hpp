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

// Per-rank counts on a GPU are grouped broadcasts, which take longer than one all-gather of the
// same bytes: padding is better while it adds less than this part of them.
inline constexpr std::uint64_t kPaddedPart = 32;

struct PayloadSizes {
  std::uint64_t least = 0;
  std::uint64_t most = 0;
  std::uint64_t sum = 0;
  std::uint64_t ranks = 1;
};

inline ExchangeForm plan_exchange(const PayloadSizes& sizes, CountSupport support, Backend where) {
  if (sizes.most == sizes.least) {
    return ExchangeForm::kEqual;
  }
  const std::uint64_t padding = sizes.most * sizes.ranks - sizes.sum;
  const bool cheap = where == Backend::kCuda && padding < sizes.sum / kPaddedPart;
  return support == CountSupport::kPerRank && !cheap ? ExchangeForm::kPerRankCounts
                                                     : ExchangeForm::kPadded;
}

}  // namespace ciera::policy
