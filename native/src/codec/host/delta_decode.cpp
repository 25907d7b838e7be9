// The decoder of a changes section: per segment quads, what the marks stand for, values, and then
// the blocks themselves.
#include <atomic>
#include <cstring>
#include <memory>

#include "codec/host/delta_layout.hpp"
#include "codec/host/delta_rans.hpp"
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
        width_(kernels_.word_bits / 8) {
    ScratchDivider divider(scratch);
    quad_slots_ = divider.take<std::uint32_t>(table_slots(kMaxQuadContexts));
    value_slots_ = divider.take<std::uint32_t>(table_slots(kMaxValueContexts));
    const std::uint64_t quads = high() ? 0 : (changed.values + 3) / 4;
    quad_bytes_ = divider.take<std::uint8_t>(quads + kSlack);
    quad_contexts_ = divider.take<std::uint8_t>(quads + kSlack);
    t_ = divider.take<std::uint8_t>(4 * quads + kSlack);
    value_contexts_ = divider.take<std::uint8_t>(changed.values + kSlack);
    u_ = divider.take<std::byte>((changed.values + kSlack) * width_);
    make_tables();
  }

  static std::size_t scratch_bytes(const FrameParams& params);

  bool decode(std::uint64_t segment);

 private:
  static constexpr std::uint64_t table_slots(std::uint32_t contexts) {
    return std::uint64_t{contexts} << kRansMaxProbBits;
  }
  bool high() const { return view_.tables.form == Effort::kHigh; }
  void make_tables();
  bool open(std::uint64_t segment, RansReader& reader) const;
  bool decode_quads(SegmentRange all, RansReader& reader);
  bool decode_differences(SegmentRange all, RansReader& reader);
  void fill_contexts(SegmentRange all);
  bool split(SegmentRange all, std::uint64_t& escapes);
  void apply(SegmentRange all);

  const FrameParams& params_;
  const SectionView& view_;
  const ChangedBlocks& changed_;
  std::byte* values_;
  Isa isa_;
  const ValueKernels& kernels_;
  std::size_t width_;
  std::uint32_t* quad_slots_;
  std::uint32_t* value_slots_;
  bool unused_[kMaxValueContexts + 1];
  bool any_unused_ = false;
  std::uint8_t* quad_bytes_;
  std::uint8_t* quad_contexts_;
  std::uint8_t* t_;
  std::uint8_t* value_contexts_;
  std::byte* u_;
};

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
void DeltaDecoder::fill_contexts(SegmentRange all) {
  std::uint8_t levels[kDeltaTile + kSlack];
  std::uint8_t t[kDeltaTile + kSlack];
  for_runs(params_, changed_, all, [&](std::uint64_t value, std::uint64_t coded, std::size_t n) {
    std::uint8_t* contexts = value_contexts_ + coded;
    kernels_.levels(values_ + value * width_, n, levels);
    if (!high()) {
      fill_quad(t, levels, n);
      contexts = quad_contexts_ + coded / 4;
      n = (n + 3) / 4;
      smallest_levels(levels, n, contexts);
    } else {
      std::memcpy(contexts, levels, n);
    }
    const ContextChoice& choice = high() ? view_.tables.value : view_.tables.quad;
    to_contexts(contexts, n, choice.top, choice.contexts);
  });
}

bool DeltaDecoder::decode_quads(SegmentRange all, RansReader& reader) {
  std::uint8_t* bytes = quad_bytes_ + all.first_quad();
  if (!decode_symbols({quad_slots_, view_.tables.prob_bits}, quad_contexts_ + all.first_quad(),
                      all.quads(), bytes, reader, isa_)) {
    return false;
  }
  // The bytes behind marks take the contexts' place, which are not needed any more.
  std::uint8_t* marked = quad_contexts_ + all.first_quad();
  const auto marks = static_cast<std::size_t>(
      std::count(bytes, bytes + all.quads(), static_cast<std::uint8_t>(kMark)));
  if (!decode_raw_bytes(marks, marked, reader)) {
    return false;
  }
  for (std::uint64_t q = 0, next = 0; next < marks; ++q) {
    if (bytes[q] == kMark) {
      bytes[q] = marked[next++];
    }
  }
  return true;
}

// The t of each value, and the contexts of escapes; false when the filling of a quad moves.
bool DeltaDecoder::split(SegmentRange all, std::uint64_t& escapes) {
  std::uint8_t levels[kDeltaTile + kSlack];
  std::uint64_t next = all.from;
  bool fine = true;
  for_runs(params_, changed_, all, [&](std::uint64_t value, std::uint64_t coded, std::size_t n) {
    std::uint8_t* t = t_ + coded;
    kernels_.levels(values_ + value * width_, n, levels);
    fill_quad(t, levels, n);
    split_quads(quad_bytes_ + coded / 4, levels, (n + 3) / 4, t, isa_);
    for (std::size_t i = n; i % 4 != 0; ++i) {
      fine = fine && t[i] == 0;
    }
    next += gather_bytes(t, n, levels, value_contexts_ + next, isa_);
  });
  escapes = next - all.from;
  to_contexts(value_contexts_ + all.from, escapes, view_.tables.value.top,
              std::max(1U, view_.tables.value.contexts));
  return fine;
}

bool DeltaDecoder::decode_differences(SegmentRange all, RansReader& reader) {
  std::uint64_t count = all.count();
  fill_contexts(all);
  if (!high() && (!decode_quads(all, reader) || !split(all, count))) {
    return false;
  }
  const std::uint8_t* contexts = value_contexts_ + all.from;
  if (any_unused_ && std::any_of(contexts, contexts + count,
                                 [this](std::uint8_t context) { return unused_[context]; })) {
    return false;
  }
  return decode_values({value_slots_, view_.tables.prob_bits}, contexts, kernels_.word_bits, count,
                       u_ + all.from * width_, reader, isa_) &&
         finished(reader);
}

void DeltaDecoder::apply(SegmentRange all) {
  std::byte u[8 * kDeltaTile];
  std::uint64_t next = all.from;
  for_runs(params_, changed_, all, [&](std::uint64_t value, std::uint64_t coded, std::size_t n) {
    if (high()) {
      kernels_.apply(values_ + value * width_, u_ + coded * width_, n);
      return;
    }
    kernels_.widen(t_ + coded, n, u);
    next += kernels_.scatter(t_ + coded, n, u_ + next * width_, u);
    kernels_.apply(values_ + value * width_, u, n);
  });
}

bool DeltaDecoder::decode(std::uint64_t segment) {
  const SegmentRange all =
      segment_range(view_.tables.form, view_.tables.segment_log2, changed_.values, segment);
  RansReader reader;
  if (!open(segment, reader) || !decode_differences(all, reader)) {
    return false;
  }
  apply(all);
  return true;
}

std::size_t DeltaDecoder::scratch_bytes(const FrameParams& params) {
  const std::uint64_t quads = params.numel / 4 + 1;
  const std::uint64_t width = value_kernels(params.mode, params.dtype).word_bits / 8;
  return kScratchAlign + ScratchDivider::bytes_of<std::uint32_t>(table_slots(kMaxQuadContexts)) +
         ScratchDivider::bytes_of<std::uint32_t>(table_slots(kMaxValueContexts)) +
         2 * ScratchDivider::bytes_of<std::uint8_t>(quads + kSlack) +
         ScratchDivider::bytes_of<std::uint8_t>(4 * quads + kSlack) +
         ScratchDivider::bytes_of<std::uint8_t>(params.numel + kSlack) +
         ScratchDivider::bytes_of<std::byte>((params.numel + kSlack) * width);
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
                     const ChangedBlocks& changed, std::byte* values, std::span<std::byte> scratch,
                     ThreadPool* pool, Isa isa) {
  SectionView view;
  const Verdict verdict = read_section(params, section, changed.values, view);
  if (verdict != Verdict::kOk) {
    return verdict;
  }
  DeltaDecoder decoder(params, view, changed, values, scratch, isa);
  std::atomic<bool> good = true;
  parallel_for(pool, view.layout.segments, [&](std::size_t s) {
    if (!decoder.decode(s)) {
      good = false;
    }
  });
  return good ? Verdict::kOk : Verdict::kBadStream;
}

}  // namespace ciera::codec::host
