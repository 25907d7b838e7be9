// The size below which a call is handed over to a plain all-gather. A pure function of figures that
// all ranks share, so that all ranks hand over alike.
#pragma once

#include <cstdint>
#include <limits>
#include <span>

namespace ciera::policy {

// What a call takes with shards of a size: plain, and through the codec.
struct HandoverSample {
  std::uint64_t shard_bytes = 0;
  std::uint64_t plain_ns = 0;
  std::uint64_t coded_ns = 0;
};

inline constexpr std::uint64_t kAlwaysPlain = std::numeric_limits<std::uint64_t>::max();

// `samples` by rising size. Between two of them, and beyond the last, times are taken to lie on a
// line; below the first one, where latency is all, they are taken to be the first one's.
inline std::uint64_t plain_below(std::span<const HandoverSample> samples) {
  // From the largest size down, to the first where the codec does not pay.
  std::size_t i = samples.size();
  while (i > 0 && samples[i - 1].coded_ns < samples[i - 1].plain_ns) {
    --i;
  }
  if (i == 0) {
    return 0;
  }
  if (samples.size() == 1) {
    return kAlwaysPlain;
  }
  // The line through the last size that does not pay and its neighbour.
  const std::size_t last = i < samples.size() ? i - 1 : i - 2;
  const auto loss = [&samples](std::size_t k) {
    return static_cast<double>(samples[k].coded_ns) - static_cast<double>(samples[k].plain_ns);
  };
  const double slope =
      (loss(last + 1) - loss(last)) /
      static_cast<double>(samples[last + 1].shard_bytes - samples[last].shard_bytes);
  if (!(slope < 0)) {
    return kAlwaysPlain;  // the larger the shard, the more is lost
  }
  const double size = static_cast<double>(samples[i - 1].shard_bytes) - loss(i - 1) / slope;
  return size < 1e18 ? static_cast<std::uint64_t>(size) : kAlwaysPlain;
}

}  // namespace ciera::policy
