// What the encoder and the decoder of a changes section share: how coded values lie in blocks, and
// how scratch is divided.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

#include "codec/delta_section.hpp"
#include "codec/frame.hpp"
#include "codec/host/delta_host.hpp"
#include "codec/host/delta_values.hpp"
#include "codec/host/rans_kernels.hpp"

namespace ciera::codec::host {

inline constexpr std::size_t kScratchAlign = 64;

// Hands out parts of a span, each aligned to 64.
class ScratchDivider {
 public:
  explicit ScratchDivider(std::span<std::byte> scratch) : scratch_(scratch) {
    const auto address = reinterpret_cast<std::uintptr_t>(scratch.data());
    used_ = (kScratchAlign - address % kScratchAlign) % kScratchAlign;
  }
  template <class T>
  T* take(std::uint64_t count) {
    T* part = reinterpret_cast<T*>(scratch_.data() + used_);
    used_ += bytes_of<T>(count);
    return part;
  }
  template <class T>
  static constexpr std::size_t bytes_of(std::uint64_t count) {
    return (count * sizeof(T) + kScratchAlign - 1) / kScratchAlign * kScratchAlign;
  }

 private:
  std::span<std::byte> scratch_;
  std::size_t used_ = 0;
};

// Values that vector code may read or write beyond an array's end.
inline constexpr std::uint64_t kSlack = 64;

// A segment's coded values [from, to): their places when the changed blocks are put one after the
// other. A segment of quads begins with a whole quad.
struct SegmentRange {
  std::uint64_t from = 0;
  std::uint64_t to = 0;
  std::uint64_t count() const { return to - from; }
  std::uint64_t quads() const { return (count() + 3) / 4; }
  std::uint64_t first_quad() const { return from / 4; }
};
inline SegmentRange segment_range(Effort form, std::uint32_t segment_log2, std::uint64_t values,
                                  std::uint64_t segment) {
  const std::uint64_t size = (form == Effort::kHigh ? 1ULL : 4ULL) << segment_log2;
  return {segment * size, std::min(values, (segment + 1) * size)};
}

// Calls body(value, coded, count) for runs of at most kDeltaTile values that lie together, also
// over blocks: `value` is the place of the first one in the shard, `coded` its place among the
// coded values. All but the shard's last values come in whole quads.
template <class Body>
void for_runs(const FrameParams& params, const ChangedBlocks& changed, SegmentRange range,
              Body&& body) {
  std::uint64_t coded = range.from;
  while (coded < range.to) {
    const std::uint64_t in_block = coded % params.block_size;
    const std::uint64_t first = coded / params.block_size;
    const std::uint64_t most = std::min<std::uint64_t>(kDeltaTile, range.to - coded);
    std::uint64_t count = params.block_size - in_block;
    for (std::uint64_t b = first; count < most && changed.blocks[b + 1] == changed.blocks[b] + 1;
         ++b) {
      count += params.block_size;
    }
    count = std::min(count, most);
    body(changed.blocks[first] * params.block_size + in_block, coded,
         static_cast<std::size_t>(count));
    coded += count;
  }
}

// Fills the last quad of a tile.
inline void fill_quad(std::uint8_t* t, std::uint8_t* levels, std::size_t count) {
  for (; count % 4 != 0; ++count) {
    t[count] = 0;
    levels[count] = kFillLevel;
  }
}

}  // namespace ciera::codec::host
