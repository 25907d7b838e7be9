// The layout of a `rans` section and its table (docs/wire-format.md, section 4). Shared by host and
// GPU.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/bytes.hpp"
#include "base/host_device.hpp"
#include "ciera/types.hpp"
#include "codec/rans_table.hpp"

namespace ciera::codec {

inline constexpr std::uint32_t kRansStateBytes = 4 * kRansLanes;
inline constexpr std::uint32_t kRansMaxTableBytes = 12 + 32 + 2 * 256;

CIERA_HD constexpr std::uint64_t rans_segments(std::uint64_t symbols, std::uint32_t log2) {
  return (symbols >> log2) + ((symbols & ((std::uint64_t{1} << log2) - 1)) != 0 ? 1 : 0);
}

// Bytes of everything before the segment ends, for `present` symbols from first to last.
CIERA_HD constexpr std::uint32_t rans_table_bytes(std::uint32_t first, std::uint32_t last,
                                                  std::uint32_t present) {
  return (12 + (last - first + 8) / 8 + 2 * present + 3) / 4 * 4;
}
CIERA_HD inline std::uint32_t rans_table_bytes(const std::uint32_t (&frequencies)[256]) {
  std::uint32_t first = 256;
  std::uint32_t last = 0;
  std::uint32_t present = 0;
  for (std::uint32_t s = 0; s < 256; ++s) {
    if (frequencies[s] != 0) {
      first = first == 256 ? s : first;
      last = s;
      ++present;
    }
  }
  return rans_table_bytes(first, last, present);
}

// Writes everything before the segment ends: rans_table_bytes(frequencies) bytes.
CIERA_HD inline void write_rans_table(std::uint64_t symbols, std::uint32_t segment_log2,
                                      const std::uint32_t (&frequencies)[256], std::byte* to) {
  std::uint32_t first = 0;
  std::uint32_t last = 255;
  while (frequencies[first] == 0) {
    ++first;
  }
  while (frequencies[last] == 0) {
    --last;
  }
  const std::uint32_t presence = (last - first + 8) / 8;
  const std::uint32_t size = rans_table_bytes(frequencies);
  base::store_le(to, symbols);
  base::store_le(to + 8, static_cast<std::uint8_t>(kRansProbBits));
  base::store_le(to + 9, static_cast<std::uint8_t>(segment_log2));
  base::store_le(to + 10, static_cast<std::uint8_t>(first));
  base::store_le(to + 11, static_cast<std::uint8_t>(last));
  std::uint32_t at = 12 + presence;
  for (std::uint32_t group = 0; group < presence; ++group) {
    std::uint32_t bits = 0;
    for (std::uint32_t i = 0; i < 8; ++i) {
      const std::uint32_t s = first + 8 * group + i;
      if (s <= last && frequencies[s] != 0) {
        bits |= 1U << i;
        base::store_le(to + at, static_cast<std::uint8_t>(frequencies[s] - 1));
        base::store_le(to + at + 1, static_cast<std::uint8_t>((frequencies[s] - 1) >> 8));
        at += 2;
      }
    }
    base::store_le(to + 12 + group, static_cast<std::uint8_t>(bits));
  }
  for (; at < size; ++at) {
    to[at] = std::byte{0};
  }
}

struct RansTable {
  std::uint64_t symbols = 0;
  std::uint32_t prob_bits = 0;
  std::uint32_t segment_log2 = 0;
  std::uint32_t bytes = 0;  // where the segment ends begin
  std::uint32_t frequencies[256] = {};
};

// Reads and checks what write_rans_table wrote. `available` bytes of the section may be read; a GPU
// passes a copy of its first kRansMaxTableBytes.
CIERA_HD inline Verdict read_rans_table(const std::byte* section, std::uint64_t available,
                                        RansTable* table) {
  if (available < 12) {
    return Verdict::kBadTable;
  }
  const auto byte_at = [section](std::uint32_t i) {
    return static_cast<std::uint32_t>(section[i]);
  };
  table->symbols = base::load_le<std::uint64_t>(section);
  table->prob_bits = byte_at(8);
  table->segment_log2 = byte_at(9);
  const std::uint32_t first = byte_at(10);
  const std::uint32_t last = byte_at(11);
  if (table->prob_bits < kRansMinProbBits || table->prob_bits > kRansMaxProbBits ||
      table->segment_log2 < kRansMinSegmentLog2 || table->segment_log2 > kRansMaxSegmentLog2 ||
      last < first) {
    return Verdict::kBadTable;
  }
  const std::uint32_t presence = (last - first + 8) / 8;
  std::uint32_t at = 12 + presence;
  std::uint32_t sum = 0;
  for (std::uint32_t i = 0; i < 8 * presence && available >= at; ++i) {
    const bool occurs = (byte_at(12 + i / 8) >> (i % 8) & 1) != 0;
    const bool must_occur = i == 0 || i == last - first;
    if ((occurs && i > last - first) || (!occurs && must_occur)) {
      return Verdict::kBadTable;
    }
    if (occurs) {
      if (available - at < 2) {
        return Verdict::kBadTable;
      }
      const std::uint32_t frequency = (byte_at(at) | byte_at(at + 1) << 8) + 1;
      table->frequencies[first + i] = frequency;
      sum += frequency;
      at += 2;
    }
  }
  table->bytes = (at + 3) / 4 * 4;
  if (sum != 1U << table->prob_bits || available < table->bytes) {
    return Verdict::kBadTable;
  }
  for (; at < table->bytes; ++at) {
    if (byte_at(at) != 0) {
      return Verdict::kBadPadding;
    }
  }
  return Verdict::kOk;
}

// Where the parts behind the table lie, once their sizes are known to fit.
struct RansLayout {
  std::uint64_t segments = 0;
  std::uint64_t ends = 0;  // offsets in the section
  std::uint64_t states = 0;
  std::uint64_t words = 0;
  std::uint64_t word_count = 0;
};

// What follows the tables of a section: ends, states and words of its segments.
CIERA_HD inline Verdict lay_out_streams(std::uint64_t table_bytes, std::uint64_t segments,
                                        std::uint64_t section_bytes, RansLayout* layout) {
  if (segments > (section_bytes - table_bytes) / (4 + kRansStateBytes)) {
    return Verdict::kBadStream;
  }
  layout->segments = segments;
  layout->ends = table_bytes;
  layout->states = layout->ends + 4 * segments;
  layout->words = layout->states + kRansStateBytes * segments;
  const std::uint64_t word_bytes = section_bytes - layout->words;
  layout->word_count = word_bytes / 2;
  return word_bytes % 2 == 0 ? Verdict::kOk : Verdict::kBadStream;
}

CIERA_HD inline Verdict lay_out_rans(const RansTable& table, std::uint64_t section_bytes,
                                     std::uint64_t expected_symbols, RansLayout* layout) {
  if (table.symbols != expected_symbols || expected_symbols == 0) {
    return Verdict::kBadTable;
  }
  return lay_out_streams(table.bytes, rans_segments(expected_symbols, table.segment_log2),
                         section_bytes, layout);
}

}  // namespace ciera::codec
