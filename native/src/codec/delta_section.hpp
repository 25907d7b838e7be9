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

// Everything before the segment ends.
struct DeltaTables {
  std::uint64_t values = 0;
  std::uint32_t prob_bits = kDeltaProbBits;
  std::uint32_t segment_log2 = 0;
  Effort form = Effort::kDefault;
  ContextChoice quad;
  ContextChoice value;
  QuadModel quad_models[kMaxQuadContexts] = {};
  std::uint8_t value_codes[kMaxValueContexts][256] = {};
  std::uint32_t bytes = 0;  // on the wire: where the segment ends begin
};

CIERA_HD constexpr std::uint64_t delta_items(Effort form, std::uint64_t values) {
  return form == Effort::kHigh ? values : values / 4 + (values % 4 != 0 ? 1 : 0);
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

CIERA_HD inline Verdict read_value_table(const std::byte* section, std::uint64_t available,
                                         std::uint32_t symbols, std::uint8_t (&codes)[256],
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
  for (std::uint32_t i = 0; i < count; ++i) {
    codes[first + i] = static_cast<std::uint32_t>(section[*at + i / 2]) >> (4 * (i % 2)) & 15;
  }
  *at += (count + 1) / 2;
  if (count != 0 && (codes[first] == 0 || codes[first + count - 1] == 0)) {
    return Verdict::kBadTable;
  }
  const bool spare = count % 2 != 0 && static_cast<std::uint32_t>(section[*at - 1]) >> 4 != 0;
  return spare ? Verdict::kBadPadding : Verdict::kOk;
}

CIERA_HD inline Verdict read_delta_fixed(const std::byte* section, std::uint64_t available,
                                         DeltaTables* tables) {
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

// Reads and checks what write_delta_tables wrote. `available` bytes of the section may be read; a
// GPU passes a copy of its first kDeltaMaxTableBytes. `word_bits`: of the values.
CIERA_HD inline Verdict read_delta_tables(const std::byte* section, std::uint64_t available,
                                          std::uint32_t word_bits, DeltaTables* tables) {
  Verdict verdict = read_delta_fixed(section, available, tables);
  if (verdict != Verdict::kOk) {
    return verdict;
  }
  std::uint32_t at = kDeltaFixedBytes + kQuadParameters * tables->quad.contexts;
  if (available < at) {
    return Verdict::kBadTable;
  }
  for (std::uint32_t i = 0; i < kQuadParameters * tables->quad.contexts; ++i) {
    tables->quad_models[i / kQuadParameters].parameters[i % kQuadParameters] =
        static_cast<std::int8_t>(section[kDeltaFixedBytes + i]);
  }
  for (std::uint32_t c = 0; c < tables->value.contexts; ++c) {
    verdict =
        read_value_table(section, available, value_symbols(word_bits), tables->value_codes[c], &at);
    if (verdict != Verdict::kOk) {
      return verdict;
    }
  }
  tables->bytes = (at + 3) / 4 * 4;
  if (available < tables->bytes) {
    return Verdict::kBadTable;
  }
  for (; at < tables->bytes; ++at) {
    if (section[at] != std::byte{0}) {
      return Verdict::kBadPadding;
    }
  }
  return Verdict::kOk;
}

// Where ends, states and words lie, once their sizes are known to fit.
CIERA_HD inline Verdict lay_out_delta(const DeltaTables& tables, std::uint64_t section_bytes,
                                      std::uint64_t expected_values, RansLayout* layout) {
  if (tables.values != expected_values || expected_values == 0) {
    return Verdict::kBadTable;
  }
  const std::uint64_t items = delta_items(tables.form, expected_values);
  return lay_out_streams(tables.bytes, rans_segments(items, tables.segment_log2), section_bytes,
                         layout);
}

}  // namespace ciera::codec
