// The decoder of a changes section: per segment quads, what the marks stand for, values, and then
// the blocks themselves.
#include <atomic>
#include <cstring>
#include <memory>

#include "codec/host/delta_avx512.hpp"
#include "codec/host/delta_layout.hpp"
#include "codec/host/delta_rans.hpp"
#include "codec/host/large_copy.hpp"
#include "codec/host/stream_view.hpp"
#include "exec/thread_pool.hpp"

namespace ciera::codec::host {
namespace {

struct SectionView : StreamView {
  DeltaTables tables;
};

Verdict read_section(const FrameParams& params, std::span<const std::byte> section,
                     std::uint64_t values, SectionView& view) {
  const std::uint32_t word_bits = value_kernels(params.mode, params.dtype).word_bits;
  Verdict verdict = read_delta_tables(section.data(), section.size(), word_bits, &view.tables);
  if (verdict == Verdict::kOk) {
    verdict = lay_out_delta(view.tables, section.size(), values, &view.layout);
  }
  if (verdict != Verdict::kOk) {
    return verdict;
  }
  view.section = section.data();
  return view.check_ends();
}

// Slots of a table; none that is out of range, also when the context is unused.
bool fill_slots(const std::uint32_t (&frequencies)[256], std::uint32_t prob_bits,
                std::uint32_t* slots) {
  std::uint32_t slot = 0;
  for (std::uint32_t s = 0; s < 256; ++s) {
    for (std::uint32_t i = 0; i < frequencies[s]; ++i) {
      slots[slot++] = make_decode_slot(s, frequencies[s], i);
    }
  }
  const bool used = slot != 0;
  while (slot < 1U << prob_bits) {
    slots[slot++] = 0;
  }
  return used;
}

// The values of the longest segment that a frame may have.
constexpr std::uint64_t kMostSegmentValues = std::uint64_t{4} << kRansMaxSegmentLog2;
constexpr std::uint64_t most_segments(std::uint64_t values) {
  return (values >> kRansMinSegmentLog2) + 1;
}

// What a segment is decoded through. A thread takes the first that is free, so that few are touched
// and they stay in cache.
struct Desk {
  std::uint8_t* quad_bytes;
  std::uint8_t* quad_contexts;
  std::uint8_t* t;
  std::uint8_t* value_contexts;
  std::byte* u;
};

class DeltaDecoder {
 public:
  DeltaDecoder(const FrameParams& params, const SectionView& view, const ChangedBlocks& changed,
               std::byte* values, std::span<std::byte> scratch, Isa isa)
      : params_(params),
        view_(view),
        changed_(changed),
        values_(values),
        isa_(isa),
        kernels_(value_kernels(params.mode, params.dtype)),
        tiles_(tile_kernels(params.mode, params.dtype, isa)),
        width_(kernels_.word_bits / 8) {
    ScratchDivider divider(scratch);
    quad_slots_ = divider.take<std::uint32_t>(table_slots(kMaxQuadContexts));
    value_slots_ = divider.take<std::uint32_t>(table_slots(kMaxValueContexts));
    taken_ = divider.take<std::atomic<bool>>(view.layout.segments);
    for (std::uint64_t i = 0; i < view.layout.segments; ++i) {
      std::construct_at(taken_ + i, false);
    }
    desk_values_ = (range(0).count() + 2 * kSlack - 1) / kSlack * kSlack;
    desks_ = divider.take<std::byte>(0);
    make_tables();
  }

  static std::size_t scratch_bytes(const FrameParams& params);

  bool decode(std::uint64_t segment);
  // Where the segment's part of the shard begins, unchanged blocks between segments included.
  std::uint64_t begin_of(std::uint64_t segment) const {
    if (segment == 0 || segment == view_.layout.segments) {
      return segment == 0 ? 0 : params_.numel;
    }
    const std::uint64_t coded = range(segment).from;
    return changed_.blocks[coded / params_.block_size] * params_.block_size +
           coded % params_.block_size;
  }

 private:
  static constexpr std::uint64_t table_slots(std::uint32_t contexts) {
    return std::uint64_t{contexts} << kRansMaxProbBits;
  }
  bool high() const { return view_.tables.form == Effort::kHigh; }
  SegmentRange range(std::uint64_t segment) const {
    return segment_range(view_.tables.form, view_.tables.segment_log2, changed_.values, segment);
  }
  // Of a desk of so many values: two bytes a quad; t, context and u a value.
  static constexpr std::uint64_t desk_bytes(std::uint64_t values, std::size_t width) {
    return values / 2 + (2 + width) * values;
  }
  Desk desk(std::uint64_t index) const;
  void make_tables();
  bool open(std::uint64_t segment, RansReader& reader) const;
  bool decode_quads(SegmentRange all, const Desk& desk, RansReader& reader);
  bool decode_differences(SegmentRange all, const Desk& desk, RansReader& reader);
  void fill_contexts(SegmentRange all, const Desk& desk);
  bool split(SegmentRange all, const Desk& desk, std::uint64_t& escapes);
  void apply(SegmentRange all, const Desk& desk);

  const FrameParams& params_;
  const SectionView& view_;
  const ChangedBlocks& changed_;
  std::byte* values_;
  Isa isa_;
  const ValueKernels& kernels_;
  const TileKernels* tiles_;
  std::size_t width_;
  std::uint32_t* quad_slots_;
  std::uint32_t* value_slots_;
  bool unused_[kMaxValueContexts + 1];
  bool any_unused_ = false;
  std::atomic<bool>* taken_;
  std::uint64_t desk_values_;
  std::byte* desks_;
};

Desk DeltaDecoder::desk(std::uint64_t index) const {
  auto* bytes = reinterpret_cast<std::uint8_t*>(desks_ + index * desk_bytes(desk_values_, width_));
  std::uint8_t* t = bytes + desk_values_ / 2;
  return {.quad_bytes = bytes,
          .quad_contexts = bytes + desk_values_ / 4,
          .t = t,
          .value_contexts = t + desk_values_,
          .u = reinterpret_cast<std::byte*>(t + 2 * desk_values_)};
}

void DeltaDecoder::make_tables() {
  const DeltaTables& tables = view_.tables;
  std::uint32_t frequencies[256];
  for (std::uint32_t c = 0; c < tables.quad.contexts; ++c) {
    quad_frequencies(tables.quad_models[c], tables.prob_bits, frequencies);
    fill_slots(frequencies, tables.prob_bits, quad_slots_ + (c << tables.prob_bits));
  }
  for (std::uint32_t c = 0; c < tables.value.contexts; ++c) {
    value_frequencies(tables.value_codes[c], tables.prob_bits, frequencies);
    unused_[c] = !fill_slots(frequencies, tables.prob_bits, value_slots_ + (c << tables.prob_bits));
    any_unused_ = any_unused_ || unused_[c];
  }
  if (tables.value.contexts == 0) {  // no value may come
    unused_[0] = any_unused_ = true;
  }
}

bool DeltaDecoder::open(std::uint64_t segment, RansReader& reader) const {
  const std::byte* words = view_.section + view_.layout.words;
  reader.next = words + 2 * view_.end_word(segment);
  reader.end = words + 2 * view_.end_word(segment + 1);
  std::memcpy(reader.states, view_.section + view_.layout.states + kRansStateBytes * segment,
              kRansStateBytes);
  return std::ranges::all_of(reader.states,
                             [](std::uint32_t x) { return x >= kRansLow && x < kRansLow << 16; });
}

// Of quads in form 0, of values in form 1.
void DeltaDecoder::fill_contexts(SegmentRange all, const Desk& desk) {
  std::uint8_t levels[kDeltaTile + kSlack];
  std::uint8_t t[kDeltaTile + kSlack];
  for_runs(params_, changed_, all, [&](std::uint64_t value, std::uint64_t coded, std::size_t n) {
    const std::byte* old = values_ + value * width_;
    const ContextChoice& choice = high() ? view_.tables.value : view_.tables.quad;
    std::uint8_t* contexts = high() ? desk.value_contexts + (coded - all.from)
                                    : desk.quad_contexts + (coded - all.from) / 4;
    if (!high() && tiles_ != nullptr) {
      tiles_->contexts(old, n, choice, contexts);
      return;
    }
    kernels_.levels(old, n, levels);
    if (!high()) {
      fill_quad(t, levels, n);
      n = (n + 3) / 4;
      smallest_levels(levels, n, contexts);
    } else {
      std::memcpy(contexts, levels, n);
    }
    to_contexts(contexts, n, choice.top, choice.contexts);
  });
}

bool DeltaDecoder::decode_quads(SegmentRange all, const Desk& desk, RansReader& reader) {
  std::uint8_t* bytes = desk.quad_bytes;
  if (!decode_symbols({quad_slots_, view_.tables.prob_bits}, desk.quad_contexts, all.quads(), bytes,
                      reader, isa_)) {
    return false;
  }
  // The bytes behind marks take the contexts' place, which are not needed any more.
  std::uint8_t* marked = desk.quad_contexts;
  const std::size_t marks = count_equal(bytes, all.quads(), kMark);
  if (!decode_raw_bytes(marks, marked, reader)) {
    return false;
  }
  std::uint8_t* end = bytes + all.quads();
  for (std::size_t next = 0; next < marks; ++next) {
    bytes = static_cast<std::uint8_t*>(
        std::memchr(bytes, kMark, static_cast<std::size_t>(end - bytes)));
    *bytes++ = marked[next];
  }
  return true;
}

// The t of each value, and the contexts of escapes; false when the filling of a quad moves.
bool DeltaDecoder::split(SegmentRange all, const Desk& desk, std::uint64_t& escapes) {
  std::uint8_t levels[kDeltaTile + kSlack];
  std::uint64_t next = 0;
  bool fine = true;
  for_runs(params_, changed_, all, [&](std::uint64_t value, std::uint64_t coded, std::size_t n) {
    const std::byte* old = values_ + value * width_;
    const std::uint8_t* quads = desk.quad_bytes + (coded - all.from) / 4;
    std::uint8_t* t = desk.t + (coded - all.from);
    if (tiles_ != nullptr) {
      const std::size_t found = tiles_->split(old, quads, n, t, desk.value_contexts + next);
      fine = fine && found != kMovedFilling;
      next += fine ? found : 0;
      return;
    }
    kernels_.levels(old, n, levels);
    fill_quad(t, levels, n);
    split_quads(quads, levels, (n + 3) / 4, t, isa_);
    for (std::size_t i = n; i % 4 != 0; ++i) {
      fine = fine && t[i] == 0;
    }
    next += gather_bytes(t, n, levels, desk.value_contexts + next, isa_);
  });
  escapes = next;
  to_contexts(desk.value_contexts, escapes, view_.tables.value.top,
              std::max(1U, view_.tables.value.contexts));
  return fine;
}

bool DeltaDecoder::decode_differences(SegmentRange all, const Desk& desk, RansReader& reader) {
  std::uint64_t count = all.count();
  fill_contexts(all, desk);
  if (!high() && (!decode_quads(all, desk, reader) || !split(all, desk, count))) {
    return false;
  }
  const std::uint8_t* contexts = desk.value_contexts;
  if (any_unused_ && std::any_of(contexts, contexts + count,
                                 [this](std::uint8_t context) { return unused_[context]; })) {
    return false;
  }
  return decode_values({value_slots_, view_.tables.prob_bits}, contexts, kernels_.word_bits, count,
                       desk.u, reader, isa_) &&
         finished(reader);
}

void DeltaDecoder::apply(SegmentRange all, const Desk& desk) {
  std::byte u[8 * kDeltaTile];
  std::uint64_t next = 0;
  for_runs(params_, changed_, all, [&](std::uint64_t value, std::uint64_t coded, std::size_t n) {
    std::byte* values = values_ + value * width_;
    const std::uint8_t* t = desk.t + (coded - all.from);
    if (high()) {
      kernels_.apply(values, desk.u + (coded - all.from) * width_, n);
    } else if (tiles_ != nullptr) {
      next += tiles_->apply(values, t, desk.u + next * width_, n);
    } else {
      kernels_.widen(t, n, u);
      next += kernels_.scatter(t, n, desk.u + next * width_, u);
      kernels_.apply(values, u, n);
    }
  });
}

bool DeltaDecoder::decode(std::uint64_t segment) {
  const SegmentRange all = range(segment);
  RansReader reader;
  if (!open(segment, reader)) {
    return false;
  }
  std::uint64_t own = 0;  // there are as many desks as segments
  while (taken_[own].exchange(true, std::memory_order_acquire)) {
    own = own + 1 < view_.layout.segments ? own + 1 : 0;
  }
  const bool fine = decode_differences(all, desk(own), reader);
  if (fine) {
    apply(all, desk(own));
  }
  taken_[own].store(false, std::memory_order_release);
  return fine;
}

std::size_t DeltaDecoder::scratch_bytes(const FrameParams& params) {
  const std::uint64_t width = value_kernels(params.mode, params.dtype).word_bits / 8;
  const std::uint64_t segments = most_segments(params.numel);
  // All segments but the last are full, so together desks are longer than the values by less than a
  // segment.
  const std::uint64_t values =
      params.numel + std::min(params.numel, kMostSegmentValues) + 2 * kSlack * segments;
  return kScratchAlign + ScratchDivider::bytes_of<std::uint32_t>(table_slots(kMaxQuadContexts)) +
         ScratchDivider::bytes_of<std::uint32_t>(table_slots(kMaxValueContexts)) +
         ScratchDivider::bytes_of<std::atomic<bool>>(segments) + desk_bytes(values, width);
}

}  // namespace

std::size_t delta_decode_scratch_bytes(const FrameParams& params) {
  return DeltaDecoder::scratch_bytes(params);
}

Verdict delta_check(const FrameParams& params, std::span<const std::byte> section,
                    std::uint64_t values) {
  SectionView view;
  return read_section(params, section, values, view);
}

Verdict delta_decode(const FrameParams& params, std::span<const std::byte> section,
                     const ChangedBlocks& changed, std::byte* values, std::span<std::byte> dst,
                     std::span<std::byte> scratch, ThreadPool* pool, Isa isa) {
  SectionView view;
  const Verdict verdict = read_section(params, section, changed.values, view);
  if (verdict != Verdict::kOk) {
    return verdict;
  }
  DeltaDecoder decoder(params, view, changed, values, scratch, isa);
  const std::size_t width = value_kernels(params.mode, params.dtype).word_bits / 8;
  std::atomic<bool> good = true;
  parallel_for(pool, view.layout.segments, [&](std::size_t s) {
    if (!decoder.decode(s)) {
      good = false;
    } else if (!dst.empty()) {  // while it is in cache
      const std::size_t from = decoder.begin_of(s) * width;
      copy_part(dst.data() + from, values + from, decoder.begin_of(s + 1) * width - from,
                dst.size());
    }
  });
  return good ? Verdict::kOk : Verdict::kBadStream;
}

}  // namespace ciera::codec::host
