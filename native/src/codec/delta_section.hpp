// The layout of a coded `changes` section and its tables (docs/wire-format.md, section 11). Shared
// by host and GPU.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/bytes.hpp"
#include "base/host_device.hpp"
#include "ciera/types.hpp"
#include "codec/delta_model.hpp"
#include "codec/rans_section.hpp"

namespace ciera::codec {

inline constexpr std::uint32_t kDeltaFixedBytes = 16;
inline constexpr std::uint32_t kDeltaMaxTableBytes =
    kDeltaFixedBytes + kMaxQuadContexts * kQuadParameters + kMaxValueContexts * (2 + 128) + 4;

// Where the codes of a value table lie in the section; none for a context that nothing uses.
struct ValueTablePlace {
  std::uint32_t first = 0;  // symbol
  std::uint32_t count = 0;
  std::uint32_t at = 0;
};

// What stands before the segment ends, the tables themselves as places only: those of the quads lie
// at kDeltaFixedBytes.
struct DeltaHead {
  std::uint64_t values = 0;
  std::uint32_t prob_bits = kDeltaProbBits;
  std::uint32_t segment_log2 = 0;
  Effort form = Effort::kDefault;
  ContextChoice quad;
  ContextChoice value;
  ValueTablePlace value_tables[kMaxValueContexts] = {};
  std::uint32_t bytes = 0;  // on the wire: where the segment ends begin
};

// Everything before the segment ends.
struct DeltaTables : DeltaHead {
  QuadModel quad_models[kMaxQuadContexts] = {};
  std::uint8_t value_codes[kMaxValueContexts][256] = {};
};

CIERA_HD constexpr std::uint64_t delta_items(Effort form, std::uint64_t values) {
  return form == Effort::kHigh ? values : values / 4 + (values % 4 != 0 ? 1 : 0);
}

// A segment's coded values [from, to): their places when the changed blocks are put one after the
// other. A segment of quads begins with a whole quad.
struct SegmentRange {
  std::uint64_t from = 0;
  std::uint64_t to = 0;
  CIERA_HD constexpr std::uint64_t count() const { return to - from; }
  CIERA_HD constexpr std::uint64_t quads() const { return (count() + 3) / 4; }
  CIERA_HD constexpr std::uint64_t first_quad() const { return from / 4; }
};
CIERA_HD constexpr SegmentRange segment_range(Effort form, std::uint32_t segment_log2,
                                              std::uint64_t values, std::uint64_t segment) {
  const std::uint64_t size = (form == Effort::kHigh ? 1ULL : 4ULL) << segment_log2;
  const std::uint64_t end = (segment + 1) * size;
  return {segment * size, values < end ? values : end};
}

// Writes the tables to `to` (at most kDeltaMaxTableBytes) and sets tables.bytes.
CIERA_HD inline void write_delta_tables(DeltaTables& tables, std::byte* to) {
  const auto put = [&to](std::uint32_t at, std::uint32_t byte) {
    to[at] = static_cast<std::byte>(byte);
  };
  base::store_le(to, tables.values);
  put(8, tables.prob_bits);
  put(9, tables.segment_log2);
  put(10, static_cast<std::uint32_t>(tables.form));
  put(11, tables.quad.contexts);
  put(12, tables.quad.top);
  put(13, tables.value.contexts);
  put(14, tables.value.top);
  put(15, 0);
  std::uint32_t at = kDeltaFixedBytes;
  for (std::uint32_t c = 0; c < tables.quad.contexts; ++c) {
    for (const std::int8_t parameter : tables.quad_models[c].parameters) {
      put(at++, static_cast<std::uint8_t>(parameter));
    }
  }
  for (std::uint32_t c = 0; c < tables.value.contexts; ++c) {
    const std::uint8_t* codes = tables.value_codes[c];
    std::uint32_t first = 0;
    std::uint32_t end = 256;
    while (first < 256 && codes[first] == 0) {
      ++first;
    }
    while (end > first && codes[end - 1] == 0) {
      --end;
    }
    const std::uint32_t count = end - first;
    put(at++, count == 0 ? 1 : first);
    put(at++, count == 0 ? 0 : end - 1);
    for (std::uint32_t i = 0; i < count; i += 2) {
      put(at++, codes[first + i] | (i + 1 < count ? codes[first + i + 1] << 4 : 0));
    }
  }
  for (; at % 4 != 0; ++at) {
    put(at, 0);
  }
  tables.bytes = at;
}

// Code i of those at `codes`.
CIERA_HD inline std::uint32_t value_code(const std::byte* codes, std::uint32_t i) {
  return static_cast<std::uint32_t>(codes[i / 2]) >> (4 * (i % 2)) & 15;
}

// Checks the value table at `*at` and moves `*at` behind it.
CIERA_HD inline Verdict find_value_table(const std::byte* section, std::uint64_t available,
                                         std::uint32_t symbols, ValueTablePlace* place,
                                         std::uint32_t* at) {
  if (available < *at + 2) {
    return Verdict::kBadTable;
  }
  const auto first = static_cast<std::uint32_t>(section[*at]);
  const auto last = static_cast<std::uint32_t>(section[*at + 1]);
  const bool unused = first == 1 && last == 0;
  const std::uint32_t count = unused ? 0 : last + 1 - first;
  *at += 2;
  if (last >= symbols || (last < first && !unused) || available < *at + (count + 1) / 2) {
    return Verdict::kBadTable;
  }
  *place = {first, count, *at};
  const std::byte* codes = section + *at;
  *at += (count + 1) / 2;
  if (count != 0 && (value_code(codes, 0) == 0 || value_code(codes, count - 1) == 0)) {
    return Verdict::kBadTable;
  }
  const bool spare = count % 2 != 0 && value_code(codes, count) != 0;
  return spare ? Verdict::kBadPadding : Verdict::kOk;
}

CIERA_HD inline Verdict read_delta_fixed(const std::byte* section, std::uint64_t available,
                                         DeltaHead* tables) {
  if (available < kDeltaFixedBytes) {
    return Verdict::kBadTable;
  }
  const auto byte_at = [section](std::uint32_t i) {
    return static_cast<std::uint32_t>(section[i]);
  };
  tables->values = base::load_le<std::uint64_t>(section);
  tables->prob_bits = byte_at(8);
  tables->segment_log2 = byte_at(9);
  tables->quad = {byte_at(11), byte_at(12)};
  tables->value = {byte_at(13), byte_at(14)};
  if (byte_at(10) > 1 || tables->prob_bits < kRansMinProbBits ||
      tables->prob_bits > kRansMaxProbBits || tables->segment_log2 < kRansMinSegmentLog2 ||
      tables->segment_log2 > kRansMaxSegmentLog2) {
    return Verdict::kBadTable;
  }
  tables->form = static_cast<Effort>(byte_at(10));
  const bool high = tables->form == Effort::kHigh;
  const bool quads_fit =
      high ? tables->quad.contexts == 0 && tables->quad.top == 0
           : tables->quad.contexts >= 1 && tables->quad.contexts <= kMaxQuadContexts;
  const bool values_fit = tables->value.contexts == 0 ? !high && tables->value.top == 0
                                                      : tables->value.contexts <= kMaxValueContexts;
  if (!quads_fit || !values_fit) {
    return Verdict::kBadTable;
  }
  return byte_at(15) == 0 ? Verdict::kOk : Verdict::kBadPadding;
}

// Checks what write_delta_tables wrote, and finds its parts. `available` bytes of the section may
// be read; a GPU passes a copy of its first kDeltaMaxTableBytes. `word_bits`: of the values.
CIERA_HD inline Verdict read_delta_head(const std::byte* section, std::uint64_t available,
                                        std::uint32_t word_bits, DeltaHead* head) {
  Verdict verdict = read_delta_fixed(section, available, head);
  if (verdict != Verdict::kOk) {
    return verdict;
  }
  std::uint32_t at = kDeltaFixedBytes + kQuadParameters * head->quad.contexts;
  if (available < at) {
    return Verdict::kBadTable;
  }
  for (std::uint32_t c = 0; c < head->value.contexts; ++c) {
    verdict =
        find_value_table(section, available, value_symbols(word_bits), &head->value_tables[c], &at);
    if (verdict != Verdict::kOk) {
      return verdict;
    }
  }
  head->bytes = (at + 3) / 4 * 4;
  if (available < head->bytes) {
    return Verdict::kBadTable;
  }
  for (; at < head->bytes; ++at) {
    if (section[at] != std::byte{0}) {
      return Verdict::kBadPadding;
    }
  }
  return Verdict::kOk;
}

// Parameter i of those of all quad contexts.
CIERA_HD inline std::int8_t quad_parameter(const std::byte* section, std::uint32_t i) {
  return static_cast<std::int8_t>(section[kDeltaFixedBytes + i]);
}

// As read_delta_head, with the tables' content.
CIERA_HD inline Verdict read_delta_tables(const std::byte* section, std::uint64_t available,
                                          std::uint32_t word_bits, DeltaTables* tables) {
  const Verdict verdict = read_delta_head(section, available, word_bits, tables);
  if (verdict != Verdict::kOk) {
    return verdict;
  }
  for (std::uint32_t i = 0; i < kQuadParameters * tables->quad.contexts; ++i) {
    tables->quad_models[i / kQuadParameters].parameters[i % kQuadParameters] =
        quad_parameter(section, i);
  }
  for (std::uint32_t c = 0; c < tables->value.contexts; ++c) {
    const ValueTablePlace& place = tables->value_tables[c];
    for (std::uint32_t i = 0; i < place.count; ++i) {
      tables->value_codes[c][place.first + i] =
          static_cast<std::uint8_t>(value_code(section + place.at, i));
    }
  }
  return Verdict::kOk;
}

// Where ends, states and words lie, once their sizes are known to fit.
CIERA_HD inline Verdict lay_out_delta(const DeltaHead& tables, std::uint64_t section_bytes,
                                      std::uint64_t expected_values, RansLayout* layout) {
  if (tables.values != expected_values || expected_values == 0) {
    return Verdict::kBadTable;
  }
  const std::uint64_t items = delta_items(tables.form, expected_values);
  return lay_out_streams(tables.bytes, rans_segments(items, tables.segment_log2), section_bytes,
                         layout);
}

}  // namespace ciera::codec
