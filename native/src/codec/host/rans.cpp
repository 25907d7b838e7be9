#include "codec/host/rans.hpp"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <memory>
#include <vector>

#include "base/bytes.hpp"
#include "codec/host/rans_kernels.hpp"
#include "exec/thread_pool.hpp"

namespace ciera::codec::host {
namespace {

constexpr std::uint64_t kSegmentSymbols = std::uint64_t{1} << kRansSegmentLog2;
constexpr std::size_t kStateBytes = 4 * kRansLanes;
constexpr std::size_t kRegionWords = kSegmentSymbols + kEncodeSlackWords;

constexpr std::uint64_t segment_count(std::uint64_t symbols, std::uint32_t log2) {
  return (symbols >> log2) + ((symbols & ((std::uint64_t{1} << log2) - 1)) != 0 ? 1 : 0);
}

// Where the parts of a section lie, and its table.
struct SectionView {
  std::uint64_t symbols = 0;
  std::uint32_t prob_bits = 0;
  std::uint32_t segment_log2 = 0;
  std::uint32_t frequencies[256] = {};
  std::uint64_t segments = 0;
  const std::byte* ends = nullptr;
  const std::byte* states = nullptr;
  const std::byte* words = nullptr;

  std::uint64_t end_word(std::uint64_t segment) const {
    return segment == 0 ? 0 : base::load_le<std::uint32_t>(ends + 4 * (segment - 1));
  }
};

void count_symbols(std::span<const std::uint8_t> symbols, std::uint64_t (&counts)[256]) {
  // Four tables, so that runs of one symbol do not wait for their own last increment.
  std::uint32_t part[4][256] = {};
  std::size_t i = 0;
  for (; i + 4 <= symbols.size(); i += 4) {
    ++part[0][symbols[i]];
    ++part[1][symbols[i + 1]];
    ++part[2][symbols[i + 2]];
    ++part[3][symbols[i + 3]];
  }
  for (; i < symbols.size(); ++i) {
    ++part[0][symbols[i]];
  }
  for (std::size_t s = 0; s < 256; ++s) {
    counts[s] = std::uint64_t{part[0][s]} + part[1][s] + part[2][s] + part[3][s];
  }
}

// Writes everything before the segment ends; returns its size, or 0 when `out` is too small.
std::uint64_t write_table(std::uint64_t symbols, const std::uint32_t (&frequencies)[256],
                          std::span<std::byte> out) {
  std::uint32_t first = 0;
  std::uint32_t last = 255;
  while (frequencies[first] == 0) {
    ++first;
  }
  while (frequencies[last] == 0) {
    --last;
  }
  const std::size_t presence = (last - first + 8) / 8;
  const auto present = static_cast<std::size_t>(
      std::ranges::count_if(frequencies, [](std::uint32_t f) { return f != 0; }));
  const std::size_t size = (12 + presence + 2 * present + 3) / 4 * 4;
  if (size > out.size()) {
    return 0;
  }
  std::byte* to = out.data();
  std::memset(to, 0, size);
  base::store_le(to, symbols);
  base::store_le(to + 8, static_cast<std::uint8_t>(kRansProbBits));
  base::store_le(to + 9, static_cast<std::uint8_t>(kRansSegmentLog2));
  base::store_le(to + 10, static_cast<std::uint8_t>(first));
  base::store_le(to + 11, static_cast<std::uint8_t>(last));
  std::byte* frequency = to + 12 + presence;
  for (std::uint32_t s = first; s <= last; ++s) {
    if (frequencies[s] != 0) {
      to[12 + (s - first) / 8] |= std::byte{1} << ((s - first) % 8);
      base::store_le(frequency, static_cast<std::uint16_t>(frequencies[s] - 1));
      frequency += 2;
    }
  }
  return size;
}

// Reads and checks what write_table wrote; `size` is where the segment ends begin.
Verdict read_table(std::span<const std::byte> section, SectionView& view, std::uint64_t* size) {
  if (section.size() < 12) {
    return Verdict::kBadTable;
  }
  const auto byte_at = [&section](std::size_t i) {
    return std::to_integer<std::uint32_t>(section[i]);
  };
  view.symbols = base::load_le<std::uint64_t>(section.data());
  view.prob_bits = byte_at(8);
  view.segment_log2 = byte_at(9);
  const std::uint32_t first = byte_at(10);
  const std::uint32_t last = byte_at(11);
  if (view.prob_bits < kRansMinProbBits || view.prob_bits > kRansMaxProbBits ||
      view.segment_log2 < kRansMinSegmentLog2 || view.segment_log2 > kRansMaxSegmentLog2 ||
      last < first) {
    return Verdict::kBadTable;
  }
  const std::size_t presence = (last - first + 8) / 8;
  std::size_t at = 12 + presence;
  std::uint64_t sum = 0;
  for (std::uint32_t i = 0; i < 8 * presence && section.size() >= at; ++i) {
    const bool occurs = (byte_at(12 + i / 8) >> (i % 8) & 1) != 0;
    const bool must_occur = i == 0 || i == last - first;
    if ((occurs && i > last - first) || (!occurs && must_occur)) {
      return Verdict::kBadTable;
    }
    if (occurs) {
      if (section.size() - at < 2) {
        return Verdict::kBadTable;
      }
      view.frequencies[first + i] = base::load_le<std::uint16_t>(section.data() + at) + 1U;
      sum += view.frequencies[first + i];
      at += 2;
    }
  }
  *size = (at + 3) / 4 * 4;
  if (sum != std::uint64_t{1} << view.prob_bits || section.size() < *size) {
    return Verdict::kBadTable;
  }
  for (; at < *size; ++at) {
    if (byte_at(at) != 0) {
      return Verdict::kBadPadding;
    }
  }
  return Verdict::kOk;
}

Verdict read_section(std::span<const std::byte> section, std::uint64_t symbols, SectionView& view) {
  std::uint64_t table_bytes = 0;
  const Verdict verdict = read_table(section, view, &table_bytes);
  if (verdict != Verdict::kOk) {
    return verdict;
  }
  if (view.symbols != symbols || symbols == 0) {
    return Verdict::kBadTable;
  }
  view.segments = segment_count(symbols, view.segment_log2);
  const std::uint64_t rest = section.size() - table_bytes;
  if (view.segments > rest / (4 + kStateBytes)) {
    return Verdict::kBadStream;
  }
  view.ends = section.data() + table_bytes;
  view.states = view.ends + 4 * view.segments;
  view.words = view.states + kStateBytes * view.segments;
  const std::uint64_t word_bytes = rest - (4 + kStateBytes) * view.segments;
  for (std::uint64_t s = 1; s <= view.segments; ++s) {
    if (view.end_word(s) < view.end_word(s - 1)) {
      return Verdict::kBadStream;
    }
  }
  return word_bytes == 2 * view.end_word(view.segments) ? Verdict::kOk : Verdict::kBadStream;
}

RansEncodeTable make_encode_table(const std::uint32_t (&frequencies)[256]) {
  RansEncodeTable table{};
  table.prob_bits = kRansProbBits;
  std::uint32_t cum = 0;
  for (std::size_t s = 0; s < 256; ++s) {
    if (frequencies[s] != 0) {
      table.symbols[s] = make_encode_symbol(frequencies[s], cum, kRansProbBits);
      cum += frequencies[s];
    }
  }
  return table;
}

void fill_decode_table(const SectionView& view, RansDecodeTable& table) {
  table.prob_bits = view.prob_bits;
  std::uint32_t slot = 0;
  for (std::uint32_t s = 0; s < 256; ++s) {
    for (std::uint32_t i = 0; i < view.frequencies[s]; ++i) {
      table.slots[slot++] = make_decode_slot(s, view.frequencies[s], i);
    }
  }
}

struct SegmentResult {
  const std::uint16_t* words;
  std::uint64_t count;
  std::uint32_t states[kRansLanes];
};

// scratch: results, then one region a segment.
constexpr std::size_t results_bytes(std::uint64_t segments) {
  return (segments * sizeof(SegmentResult) + 63) / 64 * 64;
}

void count_in_parallel(std::span<const std::uint8_t> symbols, ThreadPool* pool,
                       std::uint64_t (&counts)[256]) {
  const std::uint64_t segments = segment_count(symbols.size(), kRansSegmentLog2);
  if (pool == nullptr || pool->threads() == 1 || segments == 1) {
    count_symbols(symbols, counts);
    return;
  }
  std::atomic<std::uint64_t> shared[256] = {};
  parallel_for(pool, segments, [&](std::size_t s) {
    std::uint64_t part[256];
    count_symbols(symbols.subspan(s * kSegmentSymbols,
                                  std::min<std::uint64_t>(kSegmentSymbols,
                                                          symbols.size() - s * kSegmentSymbols)),
                  part);
    for (std::size_t i = 0; i < 256; ++i) {
      shared[i].fetch_add(part[i],
                          std::memory_order_relaxed);  // integer sums: the order does not matter
    }
  });
  for (std::size_t i = 0; i < 256; ++i) {
    counts[i] = shared[i].load();
  }
}

// Puts ends, states and words behind the table.
void write_segments(std::span<const SegmentResult> results, std::byte* ends) {
  std::byte* states = ends + 4 * results.size();
  std::byte* words = states + kStateBytes * results.size();
  std::uint64_t end = 0;
  for (const SegmentResult& result : results) {
    end += result.count;
    base::store_le(ends, static_cast<std::uint32_t>(end));
    ends += 4;
    std::memcpy(states, result.states, kStateBytes);
    states += kStateBytes;
    if (result.count != 0) {
      std::memcpy(words, result.words, 2 * result.count);
    }
    words += 2 * result.count;
  }
}

}  // namespace

Isa best_isa() {
#if defined(__x86_64__)
  return __builtin_cpu_supports("avx2") != 0 ? Isa::kAvx2 : Isa::kScalar;
#else
  return Isa::kScalar;
#endif
}

std::size_t rans_scratch_bytes(std::uint64_t symbols) {
  const std::uint64_t segments = segment_count(symbols, kRansSegmentLog2);
  return results_bytes(segments) + 2 * (symbols + kEncodeSlackWords * segments) + 64;
}

std::uint64_t rans_encode(std::span<const std::uint8_t> symbols, std::span<std::byte> out,
                          std::span<std::byte> scratch, ThreadPool* pool, Isa isa) {
  std::uint64_t counts[256];
  count_in_parallel(symbols, pool, counts);
  std::uint32_t frequencies[256];
  normalise_counts(counts, symbols.size(), kRansProbBits, frequencies);
  const std::uint64_t table_bytes = write_table(symbols.size(), frequencies, out);
  const std::uint64_t segments = segment_count(symbols.size(), kRansSegmentLog2);
  std::uint64_t size = table_bytes + (4 + kStateBytes) * segments;
  if (table_bytes == 0 || size >= out.size()) {
    return 0;
  }
  void* aligned = scratch.data();
  std::size_t space = scratch.size();
  std::align(64, results_bytes(segments), aligned, space);
  auto* results = static_cast<SegmentResult*>(aligned);
  auto* regions =
      reinterpret_cast<std::uint16_t*>(static_cast<std::byte*>(aligned) + results_bytes(segments));
  const RansEncodeTable table = make_encode_table(frequencies);
  parallel_for(pool, segments, [&](std::size_t s) {
    const std::uint64_t from = s * kSegmentSymbols;
    const auto part =
        symbols.subspan(from, std::min<std::uint64_t>(kSegmentSymbols, symbols.size() - from));
    const std::span region(regions + s * kRegionWords, part.size() + kEncodeSlackWords);
    SegmentResult& result = *std::construct_at(results + s);
    result.words = isa == Isa::kAvx2 ? encode_segment_avx2(table, part, region, result.states)
                                     : encode_segment_scalar(table, part, region, result.states);
    result.count = static_cast<std::uint64_t>(region.data() + region.size() - result.words);
  });
  std::uint64_t words = 0;
  for (std::uint64_t s = 0; s < segments; ++s) {
    words += results[s].count;
  }
  size += 2 * words;
  if (size >= out.size() || words > 0xFFFFFFFF) {
    return 0;
  }
  write_segments({results, segments}, out.data() + table_bytes);
  return size;
}

Verdict rans_check(std::span<const std::byte> section, std::uint64_t symbols) {
  SectionView view;
  return read_section(section, symbols, view);
}

Verdict rans_decode(std::span<const std::byte> section, std::span<std::uint8_t> symbols,
                    ThreadPool* pool, Isa isa) {
  SectionView view;
  const Verdict verdict = read_section(section, symbols.size(), view);
  if (verdict != Verdict::kOk) {
    return verdict;
  }
  RansDecodeTable table;
  fill_decode_table(view, table);
  std::atomic<bool> good = true;
  parallel_for(pool, view.segments, [&](std::size_t s) {
    const std::uint64_t from = std::uint64_t{s} << view.segment_log2;
    const auto part = symbols.subspan(
        from, std::min(std::uint64_t{1} << view.segment_log2, symbols.size() - from));
    const std::span words(view.words + 2 * view.end_word(s),
                          2 * (view.end_word(s + 1) - view.end_word(s)));
    std::uint32_t states[kRansLanes];
    std::memcpy(states, view.states + kStateBytes * s, kStateBytes);
    bool fine = true;
    for (const std::uint32_t state : states) {
      fine = fine && state >= kRansLow && state < kRansLow << 16;
    }
    fine = fine && (isa == Isa::kAvx2 ? decode_segment_avx2(table, words, states, part)
                                      : decode_segment_scalar(table, words, states, part));
    if (!fine) {
      good = false;
    }
  });
  return good ? Verdict::kOk : Verdict::kBadStream;
}

}  // namespace ciera::codec::host
