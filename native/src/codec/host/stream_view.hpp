// The rANS streams of a section: what views of both kinds of section have in common.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/bytes.hpp"
#include "codec/rans_section.hpp"

namespace ciera::codec::host {

struct StreamView {
  RansLayout layout;
  const std::byte* section = nullptr;

  // In words from the first one; segment 0 is the end of none.
  std::uint64_t end_word(std::uint64_t segment) const {
    return segment == 0 ? 0
                        : base::load_le<std::uint32_t>(section + layout.ends + 4 * (segment - 1));
  }

  // Whether the segments cover the words, in order.
  Verdict check_ends() const {
    for (std::uint64_t s = 1; s <= layout.segments; ++s) {
      if (end_word(s) < end_word(s - 1)) {
        return Verdict::kBadStream;
      }
    }
    return end_word(layout.segments) == layout.word_count ? Verdict::kOk : Verdict::kBadStream;
  }
};

}  // namespace ciera::codec::host
