#include "codec/host/rans.hpp"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <memory>
#include <vector>

#include "base/bytes.hpp"
#include "codec/host/delta_avx512.hpp"
#include "codec/host/rans_kernels.hpp"
#include "codec/host/stream_view.hpp"
#include "codec/rans_section.hpp"
#include "exec/thread_pool.hpp"

namespace ciera::codec::host {
namespace {

// Where the parts of a section lie, and its table.
struct SectionView : StreamView {
  RansTable table;
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

Verdict read_section(std::span<const std::byte> section, std::uint64_t symbols, SectionView& view) {
  Verdict verdict = read_rans_table(section.data(), section.size(), &view.table);
  if (verdict == Verdict::kOk) {
    verdict = lay_out_rans(view.table, section.size(), symbols, &view.layout);
  }
  if (verdict != Verdict::kOk) {
    return verdict;
  }
  view.section = section.data();
  return view.check_ends();
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
  table.prob_bits = view.table.prob_bits;
  std::uint32_t slot = 0;
  for (std::uint32_t s = 0; s < 256; ++s) {
    for (std::uint32_t i = 0; i < view.table.frequencies[s]; ++i) {
      table.slots[slot++] = make_decode_slot(s, view.table.frequencies[s], i);
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
  constexpr std::uint64_t kChunk = 65536;
  const std::uint64_t segments = (symbols.size() + kChunk - 1) / kChunk;
  if (pool == nullptr || pool->threads() == 1 || segments == 1) {
    count_symbols(symbols, counts);
    return;
  }
  std::atomic<std::uint64_t> shared[256] = {};
  parallel_for(pool, segments, [&](std::size_t s) {
    std::uint64_t part[256];
    count_symbols(
        symbols.subspan(s * kChunk, std::min<std::uint64_t>(kChunk, symbols.size() - s * kChunk)),
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
  std::byte* words = states + kRansStateBytes * results.size();
  std::uint64_t end = 0;
  for (const SegmentResult& result : results) {
    end += result.count;
    base::store_le(ends, static_cast<std::uint32_t>(end));
    ends += 4;
    std::memcpy(states, result.states, kRansStateBytes);
    states += kRansStateBytes;
    if (result.count != 0) {
      std::memcpy(words, result.words, 2 * result.count);
    }
    words += 2 * result.count;
  }
}

}  // namespace

Isa best_isa() {
#if defined(__x86_64__)
  static const Isa best = __builtin_cpu_supports("avx2") == 0 ? Isa::kScalar
                          : has_avx512()                      ? Isa::kAvx512
                                                              : Isa::kAvx2;
  return best;
#else
  return Isa::kScalar;
#endif
}

std::size_t rans_scratch_bytes(std::uint64_t symbols, std::uint32_t segment_log2) {
  const std::uint64_t segments = rans_segments(symbols, segment_log2);
  return results_bytes(segments) + 2 * (symbols + kEncodeSlackWords * segments) + 64;
}

std::uint64_t rans_encode(std::span<const std::uint8_t> symbols, std::uint32_t segment_log2,
                          std::span<std::byte> out, std::span<std::byte> scratch, ThreadPool* pool,
                          Isa isa) {
  std::uint64_t counts[256];
  count_in_parallel(symbols, pool, counts);
  std::uint32_t frequencies[256];
  normalise_counts(counts, symbols.size(), kRansProbBits, frequencies);
  const std::uint64_t table_bytes = rans_table_bytes(frequencies);
  const std::uint64_t segments = rans_segments(symbols.size(), segment_log2);
  std::uint64_t size = table_bytes + (4 + kRansStateBytes) * segments;
  if (size >= out.size()) {
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
    const std::uint64_t length = std::uint64_t{1} << segment_log2;
    const std::uint64_t from = s * length;
    const auto part = symbols.subspan(from, std::min(length, symbols.size() - from));
    const std::span region(regions + s * (length + kEncodeSlackWords),
                           part.size() + kEncodeSlackWords);
    SegmentResult& result = *std::construct_at(results + s);
    result.words = has_vectors(isa) ? encode_segment_avx2(table, part, region, result.states)
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
  write_rans_table(symbols.size(), segment_log2, frequencies, out.data());
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
  const std::uint32_t log2 = view.table.segment_log2;
  parallel_for(pool, view.layout.segments, [&](std::size_t s) {
    const std::uint64_t from = std::uint64_t{s} << log2;
    const auto part =
        symbols.subspan(from, std::min(std::uint64_t{1} << log2, symbols.size() - from));
    const std::span words(section.data() + view.layout.words + 2 * view.end_word(s),
                          2 * (view.end_word(s + 1) - view.end_word(s)));
    std::uint32_t states[kRansLanes];
    std::memcpy(states, section.data() + view.layout.states + kRansStateBytes * s, kRansStateBytes);
    bool fine = true;
    for (const std::uint32_t state : states) {
      fine = fine && state >= kRansLow && state < kRansLow << 16;
    }
    fine = fine && (has_vectors(isa) ? decode_segment_avx2(table, words, states, part)
                                     : decode_segment_scalar(table, words, states, part));
    if (!fine) {
      good = false;
    }
  });
  return good ? Verdict::kOk : Verdict::kBadStream;
}

}  // namespace ciera::codec::host
