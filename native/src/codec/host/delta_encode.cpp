// Passes of the encoder: compare and count levels; choose contexts and count symbols; code the
// segments. Each is parallel over segments, and sums of counts do not depend on the order.
#include <algorithm>
#include <atomic>
#include <cstring>
#include <memory>

#include "base/bytes.hpp"
#include "codec/host/delta_avx512.hpp"
#include "codec/host/delta_layout.hpp"
#include "codec/host/delta_rans.hpp"
#include "exec/thread_pool.hpp"

namespace ciera::codec::host {
namespace {

using Counts = std::uint64_t[256];

struct SegmentWork {
  std::uint64_t values;  // through the value coder
  std::uint16_t* words;
  std::uint64_t word_count;
  std::uint32_t states[kRansLanes];
};

// Counts that all segments add to.
struct SharedCounts {
  std::atomic<std::uint64_t> moved_quads;
  std::atomic<std::uint64_t> quad_levels[256];
  std::atomic<std::uint64_t> value_levels[256];
  std::atomic<std::uint64_t> quads[kMaxQuadContexts][256];
  std::atomic<std::uint64_t> values[kMaxValueContexts][256];
};

struct Tables {
  RansEncodeSymbol quads[kMaxQuadContexts * 256];
  RansEncodeSymbol values[kMaxValueContexts * 256];
  bool rare[kMaxQuadContexts][256];  // bytes behind marks
  std::uint8_t rare_bits[kMaxQuadContexts * 32];
};

void add_counts(std::atomic<std::uint64_t> (&to)[256], const std::uint32_t* counts) {
  for (std::size_t i = 0; i < 256; ++i) {
    if (counts[i] != 0) {
      to[i].fetch_add(counts[i], std::memory_order_relaxed);
    }
  }
}

void read(const std::atomic<std::uint64_t> (&from)[256], Counts& to) {
  for (std::size_t i = 0; i < 256; ++i) {
    to[i] = from[i].load(std::memory_order_relaxed);
  }
}

// The most words that a segment of so many quads and values can emit: a quad and its mark, a value
// and its raw steps.
std::uint64_t most_words(std::uint64_t quads, std::uint64_t values, std::uint32_t word_bits) {
  return 2 * quads + values * (1 + raw_steps(word_bits)) + kEncodeSlackWords;
}

class DeltaEncoder {
 public:
  DeltaEncoder(const FrameParams& params, const ChangedBlocks& changed, const std::byte* old,
               const std::byte* now, std::span<std::byte> scratch, ThreadPool* pool, Isa isa)
      : params_(params),
        changed_(changed),
        old_(old),
        now_(now),
        pool_(pool),
        isa_(isa),
        kernels_(value_kernels(params.mode, params.dtype)),
        tiles_(tile_kernels(params.mode, params.dtype, isa)),
        width_(kernels_.word_bits / 8) {
    tables_.values = changed.values;
    tables_.segment_log2 = params.segment_log2;
    tables_.form = params.effort;
    segments_ = rans_segments(delta_items(params.effort, changed.values), params.segment_log2);
    ScratchDivider divider(scratch);
    counts_ = std::construct_at(divider.take<SharedCounts>(1));
    codes_ = divider.take<Tables>(1);
    work_ = divider.take<SegmentWork>(segments_);
    const std::uint64_t quads = high() ? 0 : (changed.values + 3) / 4;
    quad_bytes_ = divider.take<std::uint8_t>(quads + kSlack);
    quad_contexts_ = divider.take<std::uint8_t>(quads + kSlack);
    marked_ = divider.take<std::uint8_t>(quads + kSlack);
    value_symbols_ = divider.take<std::uint8_t>(changed.values + kSlack);
    value_contexts_ = divider.take<std::uint8_t>(changed.values + kSlack);
    values_ = divider.take<std::byte>((changed.values + kSlack) * width_);
    words_ = divider.take<std::uint16_t>(0);
  }

  static std::size_t scratch_bytes(const FrameParams& params);

  std::uint64_t run(std::span<std::byte> out) {
    parallel_for(pool_, segments_, [this](std::size_t s) { compare(s); });
    choose();
    parallel_for(pool_, segments_, [this](std::size_t s) { count(s); });
    make_tables();
    std::byte header[kDeltaMaxTableBytes];
    write_delta_tables(tables_, header);
    std::uint64_t bytes = tables_.bytes + (4 + kRansStateBytes) * segments_;
    if (bytes >= out.size()) {
      return 0;
    }
    parallel_for(pool_, segments_, [this](std::size_t s) { code(s); });
    std::uint64_t words = 0;
    for (std::uint64_t s = 0; s < segments_; ++s) {
      words += work_[s].word_count;
    }
    bytes += 2 * words;
    if (bytes >= out.size() || words > 0xFFFFFFFF) {
      return 0;
    }
    std::memcpy(out.data(), header, tables_.bytes);
    write_segments(out.data() + tables_.bytes);
    return bytes;
  }

 private:
  bool high() const { return params_.effort == Effort::kHigh; }
  SegmentRange range(std::uint64_t segment) const {
    return segment_range(params_.effort, params_.segment_log2, changed_.values, segment);
  }

  void compare(std::uint64_t segment);
  ComparedTile compare_tile(const std::byte* old, const std::byte* now, std::size_t count,
                            std::uint64_t coded, std::uint64_t escapes);
  void choose();
  void count(std::uint64_t segment);
  void make_tables();
  void code(std::uint64_t segment);
  void write_segments(std::byte* ends) const;

  const FrameParams& params_;
  const ChangedBlocks& changed_;
  const std::byte* old_;
  const std::byte* now_;
  ThreadPool* pool_;
  Isa isa_;
  const ValueKernels& kernels_;
  const TileKernels* tiles_;
  std::size_t width_;
  DeltaTables tables_;
  std::uint64_t segments_;
  SharedCounts* counts_;
  Tables* codes_;
  SegmentWork* work_;
  // Of each coded quad: byte, context, and the bytes behind marks from the segment's start on.
  std::uint8_t* quad_bytes_;
  std::uint8_t* quad_contexts_;
  std::uint8_t* marked_;
  // Of what the value coder takes, from the segment's first value on: symbol, context, u.
  std::uint8_t* value_symbols_;
  std::uint8_t* value_contexts_;
  std::byte* values_;
  std::uint16_t* words_;
};

// Of values that are coded from `coded` on, with `escapes` of the segment's already gathered.
ComparedTile DeltaEncoder::compare_tile(const std::byte* old, const std::byte* now,
                                        std::size_t count, std::uint64_t coded,
                                        std::uint64_t escapes) {
  std::uint8_t* quads = quad_bytes_ + coded / 4;
  std::uint8_t* smallest = quad_contexts_ + coded / 4;
  std::byte* values = values_ + escapes * width_;
  if (tiles_ != nullptr) {
    return tiles_->compare(old, now, count, quads, smallest, value_contexts_ + escapes, values);
  }
  std::uint8_t t[kDeltaTile + kSlack];
  std::uint8_t levels[kDeltaTile + kSlack];
  std::byte u[8 * kDeltaTile];
  kernels_.compare(old, now, count, u, t, levels);
  gather_bytes(t, count, levels, value_contexts_ + escapes, isa_);
  ComparedTile tile{.escapes = kernels_.gather(t, count, u, values)};
  fill_quad(t, levels, count);
  const std::size_t quad_count = (count + 3) / 4;
  make_quads(t, levels, quad_count, quads, smallest, isa_);
  tile.moved_quads = quad_count - count_equal(quads, quad_count, 0);
  return tile;
}

// Fills quad bytes and values of a segment; their contexts are still levels.
void DeltaEncoder::compare(std::uint64_t segment) {
  const SegmentRange all = range(segment);
  std::uint8_t t[kDeltaTile + kSlack];
  std::uint64_t escapes = all.from;
  std::uint64_t moved = 0;
  for_runs(params_, changed_, all, [&](std::uint64_t value, std::uint64_t coded, std::size_t n) {
    const std::byte* old = old_ + value * width_;
    const std::byte* now = now_ + value * width_;
    if (high()) {
      kernels_.compare(old, now, n, values_ + coded * width_, t, value_contexts_ + coded);
      return;
    }
    const ComparedTile tile = compare_tile(old, now, n, coded, escapes);
    escapes += tile.escapes;
    moved += tile.moved_quads;
  });
  SegmentWork& work = *std::construct_at(work_ + segment);
  work.values = high() ? all.count() : escapes - all.from;
  std::uint32_t found[256] = {};
  if (!high()) {
    count_bytes(quad_contexts_ + all.first_quad(), all.quads(), found);
    add_counts(counts_->quad_levels, found);
    std::ranges::fill(found, 0);
    counts_->moved_quads += moved;
  }
  count_bytes(value_contexts_ + all.from, work.values, found);
  add_counts(counts_->value_levels, found);
}

void DeltaEncoder::choose() {
  Counts levels;
  if (!high()) {
    read(counts_->quad_levels, levels);
    tables_.quad = choose_contexts(levels, quad_contexts_for(counts_->moved_quads), 64);
  }
  std::uint64_t values = 0;
  for (std::uint64_t s = 0; s < segments_; ++s) {
    values += work_[s].values;
  }
  if (values != 0) {
    read(counts_->value_levels, levels);
    tables_.value =
        choose_contexts(levels, value_contexts_for(values, params_.effort), high() ? 64 : 16);
  }
}

// Counts of (context, symbol), in two tables by turns: neighbours are often alike.
class PairCounts {
 public:
  PairCounts(std::uint32_t contexts, Isa isa) : contexts_(contexts), isa_(isa) {}
  void add(const std::uint8_t* contexts, const std::uint8_t* symbols, std::uint64_t count) {
    if (isa_ == Isa::kAvx512) {
      const std::size_t done = count_pairs_avx512(contexts, symbols, count, contexts_, found_[0]);
      contexts += done;
      symbols += done;
      count -= done;
    }
    const auto pair = [&](std::uint64_t i) {
      return static_cast<std::size_t>(contexts[i]) << 8 | symbols[i];
    };
    std::uint64_t i = 0;
    for (; i + 2 <= count; i += 2) {
      ++found_[0][pair(i)];
      ++found_[1][pair(i + 1)];
    }
    if (i < count) {
      ++found_[0][pair(i)];
    }
  }
  void add_to(std::atomic<std::uint64_t> (*to)[256]) {
    for (std::size_t i = 0; i < std::size_t{256} * contexts_; ++i) {
      found_[0][i] += found_[1][i];
    }
    for (std::uint32_t c = 0; c < contexts_; ++c) {
      add_counts(to[c], found_[0] + 256 * c);
    }
  }

 private:
  std::uint32_t contexts_;
  Isa isa_;
  std::uint32_t found_[2][256 * kMaxValueContexts] = {};
};

void DeltaEncoder::count(std::uint64_t segment) {
  const SegmentRange all = range(segment);
  const std::uint64_t values = work_[segment].values;
  if (!high()) {
    std::uint8_t* contexts = quad_contexts_ + all.first_quad();
    to_contexts(contexts, all.quads(), tables_.quad.top, tables_.quad.contexts);
    PairCounts found(tables_.quad.contexts, isa_);
    found.add(contexts, quad_bytes_ + all.first_quad(), all.quads());
    found.add_to(counts_->quads);
  }
  if (values != 0) {
    std::uint8_t* contexts = value_contexts_ + all.from;
    std::uint8_t* symbols = value_symbols_ + all.from;
    to_contexts(contexts, values, tables_.value.top, tables_.value.contexts);
    const std::byte* u = values_ + all.from * width_;
    const std::size_t done =
        isa_ == Isa::kAvx512 && width_ == 2 ? value_symbols_avx512(u, values, symbols) : 0;
    kernels_.symbols(u + done * width_, values - done, symbols + done);
    PairCounts found(tables_.value.contexts, isa_);
    found.add(contexts, symbols, values);
    found.add_to(counts_->values);
  }
}

void fill_encode_table(const std::uint32_t (&frequencies)[256], RansEncodeSymbol* table) {
  std::uint32_t cum = 0;
  for (std::uint32_t s = 0; s < 256; ++s) {
    if (frequencies[s] != 0) {
      table[s] = make_encode_symbol(frequencies[s], cum, kDeltaProbBits);
      cum += frequencies[s];
    }
  }
}

void DeltaEncoder::make_tables() {
  Counts counts;
  for (std::uint32_t c = 0; c < tables_.quad.contexts; ++c) {
    read(counts_->quads[c], counts);
    tables_.quad_models[c] = make_quad_model(counts);
    std::uint32_t frequencies[256];
    quad_frequencies(tables_.quad_models[c], kDeltaProbBits, frequencies);
    for (std::uint32_t b = 0; b < 256; ++b) {
      const bool rare = frequencies[b] == 0 || b == kMark;
      std::uint8_t& eight = codes_->rare_bits[32 * c + b / 8];
      eight = static_cast<std::uint8_t>((b % 8 == 0 ? 0 : eight) | (rare ? 1U << (b % 8) : 0));
      codes_->rare[c][b] = rare;
    }
    fill_encode_table(frequencies, codes_->quads + 256 * c);
  }
  for (std::uint32_t c = 0; c < tables_.value.contexts; ++c) {
    read(counts_->values[c], counts);
    std::uint64_t total = 0;
    for (const std::uint64_t n : counts) {
      total += n;
    }
    for (std::uint32_t s = 0; s < 256; ++s) {
      tables_.value_codes[c][s] = static_cast<std::uint8_t>(code_of_count(counts[s], total));
    }
    std::uint32_t frequencies[256];
    value_frequencies(tables_.value_codes[c], kDeltaProbBits, frequencies);
    fill_encode_table(frequencies, codes_->values + 256 * c);
  }
  // Regions of words, now that it is known how much each segment can emit.
  std::uint16_t* region = words_;
  for (std::uint64_t s = 0; s < segments_; ++s) {
    const std::uint64_t quads = high() ? 0 : range(s).quads();
    region += most_words(quads, work_[s].values, kernels_.word_bits);
    work_[s].words = region;  // the end, until it is coded
  }
}

void DeltaEncoder::code(std::uint64_t segment) {
  const SegmentRange all = range(segment);
  SegmentWork& work = work_[segment];
  std::uint16_t* end = work.words;
  RansWriter writer(end);
  encode_values({codes_->values, kDeltaProbBits}, value_contexts_ + all.from,
                value_symbols_ + all.from, values_ + all.from * width_, kernels_.word_bits,
                work.values, writer, isa_);
  if (!high()) {
    std::uint8_t* bytes = quad_bytes_ + all.first_quad();
    const std::uint8_t* contexts = quad_contexts_ + all.first_quad();
    std::uint8_t* marked = marked_ + all.first_quad();
    std::size_t marks = 0;
    std::uint64_t q = isa_ == Isa::kAvx512 ? mark_rare_avx512(codes_->rare_bits, contexts, bytes,
                                                              all.quads(), marked, marks)
                                           : 0;
    for (; q < all.quads(); ++q) {
      const bool rare = codes_->rare[contexts[q]][bytes[q]];
      marked[marks] = bytes[q];
      marks += rare ? 1 : 0;
      bytes[q] = rare ? std::uint8_t{kMark} : bytes[q];
    }
    encode_raw_bytes(marked, marks, writer);
    encode_symbols({codes_->quads, kDeltaProbBits}, contexts, bytes, all.quads(), writer, isa_);
  }
  work.words = writer.top;
  work.word_count = static_cast<std::uint64_t>(end - writer.top);
  std::memcpy(work.states, writer.states, sizeof work.states);
}

void DeltaEncoder::write_segments(std::byte* ends) const {
  std::byte* states = ends + 4 * segments_;
  std::byte* words = states + kRansStateBytes * segments_;
  std::uint64_t end = 0;
  for (std::uint64_t s = 0; s < segments_; ++s) {
    const SegmentWork& work = work_[s];
    end += work.word_count;
    base::store_le(ends + 4 * s, static_cast<std::uint32_t>(end));
    std::memcpy(states + kRansStateBytes * s, work.states, kRansStateBytes);
    if (work.word_count != 0) {
      std::memcpy(words, work.words, 2 * work.word_count);
    }
    words += 2 * work.word_count;
  }
}

std::size_t DeltaEncoder::scratch_bytes(const FrameParams& params) {
  const std::uint32_t word_bits = value_kernels(params.mode, params.dtype).word_bits;
  const bool high = params.effort == Effort::kHigh;
  const std::uint64_t quads = high ? 0 : params.numel / 4 + 1;
  const std::uint64_t segments =
      rans_segments(delta_items(params.effort, params.numel), params.segment_log2);
  return 2 * kScratchAlign + ScratchDivider::bytes_of<SharedCounts>(1) +
         ScratchDivider::bytes_of<Tables>(1) + ScratchDivider::bytes_of<SegmentWork>(segments) +
         3 * ScratchDivider::bytes_of<std::uint8_t>(quads + kSlack) +
         2 * ScratchDivider::bytes_of<std::uint8_t>(params.numel + kSlack) +
         ScratchDivider::bytes_of<std::byte>((params.numel + kSlack) * word_bits / 8) +
         2 * (most_words(quads, params.numel, word_bits) + segments * kEncodeSlackWords);
}

}  // namespace

std::size_t delta_encode_scratch_bytes(const FrameParams& params) {
  return DeltaEncoder::scratch_bytes(params);
}

std::uint64_t delta_encode(const FrameParams& params, const ChangedBlocks& changed,
                           const std::byte* old, const std::byte* now, std::span<std::byte> out,
                           std::span<std::byte> scratch, ThreadPool* pool, Isa isa) {
  return DeltaEncoder(params, changed, old, now, scratch, pool, isa).run(out);
}

}  // namespace ciera::codec::host
