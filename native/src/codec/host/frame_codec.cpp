#include "codec/host/frame_codec.hpp"

#include <algorithm>
#include <cstring>
#include <stdexcept>

#include "codec/host/digest_host.hpp"
#include "codec/host/frame_changes.hpp"
#include "codec/host/frame_parts.hpp"
#include "codec/host/rans.hpp"
#include "codec/host/split_host.hpp"
#include "codec/rans_table.hpp"
#include "exec/thread_pool.hpp"
#include "wire/frame_header.hpp"

namespace ciera::codec::host {
namespace {

using wire::FrameHeader;
using wire::Kind;
using wire::Section;
using wire::SectionKind;

void require(bool condition, const char* what) {
  if (!condition) {
    throw std::invalid_argument(what);
  }
}

void require_params(const FrameParams& params) {
  require(params.mode != ReuseMode::kOff, "a frame has a reuse mode");
  require(codes(params.mode, params.dtype),
          "a frame's dtype is bf16, fp16 or fp32, or in word-delta opaque up to 64 bits");
  require(params.block_size >= 8 && params.block_size <= 65536 && params.block_size % 8 == 0,
          "block_size is a multiple of 8 from 8 to 65536");
  require(params.numel <= kMaxNumel, "numel is at most 2^44");
  require(params.nvcomp_major == 0, "coder nvcomp-ans exists on GPUs only");
  require(params.segment_log2 >= kRansMinSegmentLog2 && params.segment_log2 <= kRansMaxSegmentLog2,
          "segment_log2 is from 10 to 20");
}

// Moves the exponents of changed blocks together; returns how many.
std::uint64_t compact(const FrameParams& params, const std::byte* bitmap,
                      const std::uint8_t* exponents, std::uint8_t* to) {
  std::uint64_t count = 0;
  const std::uint64_t blocks = block_count(params.numel, params.block_size);
  for (std::uint64_t b = 0; b < blocks; ++b) {
    if (is_set(bitmap, b)) {
      const std::uint64_t values = values_in(b, params);
      std::memcpy(to + count, exponents + b * params.block_size, values);
      count += values;
    }
  }
  return count;
}

// Writes the exponents section, coded when that is smaller and asked for.
void write_exponents(const FrameParams& params, std::span<const std::uint8_t> symbols,
                     std::span<std::byte> frame, FrameHeader& header, std::span<std::byte> scratch,
                     ThreadPool* pool) {
  Section& section = header.last();
  const std::uint64_t stored = stored_exponent_bytes(params.dtype, symbols.size());
  const auto out = frame.subspan(section.offset, stored);
  section.bytes = params.coder == Coder::kRans && !symbols.empty()
                      ? rans_encode(symbols, params.segment_log2, out, scratch, pool)
                      : 0;
  section.coder = section.bytes != 0 ? Coder::kRans : Coder::kRaw;
  if (section.bytes == 0) {
    store_exponents(params.dtype, symbols.data(), symbols.size(), out.data());
    section.bytes = stored;
  }
  wire::lay_out(header);
}

struct EncodeScratch {
  std::uint8_t* exponents;
  std::uint8_t* compacted;
  std::span<std::byte> rans;
};

EncodeScratch divide(std::span<std::byte> scratch, std::uint64_t numel) {
  auto* bytes = reinterpret_cast<std::uint8_t*>(scratch.data());
  return {bytes, bytes + numel, scratch.subspan(2 * numel)};
}

// Sets the bits of changed blocks; a byte of the bitmap belongs to one caller of this at a time.
std::uint64_t mark_changed(std::span<const BlockHash> old_hashes,
                           std::span<const BlockHash> new_hashes, std::byte* bitmap) {
  std::memset(bitmap, 0, bitmap_bytes(new_hashes.size()));
  std::uint64_t changed = 0;
  for (std::size_t b = 0; b < new_hashes.size(); ++b) {
    if (old_hashes[b] != new_hashes[b]) {
      bitmap[b / 8] |= std::byte{1} << (b % 8);
      ++changed;
    }
  }
  return changed;
}

void split_and_hash(const FrameParams& params, const std::byte* src, std::uint8_t* exponents,
                    std::byte* sign_mantissa, std::span<BlockHash> hashes, ThreadPool* pool) {
  for_chunks(params, pool, [&](Range range) {
    split(params.dtype, range, src, exponents, sign_mantissa);
    for (std::uint64_t at = range.from; at < range.to && !hashes.empty(); at += params.block_size) {
      const std::uint64_t block = at / params.block_size;
      hashes[block] = hash_block(exponents + at, values_in(block, params));
    }
  });
}

Verdict decode_exponents(const FrameParams& params, const Section& section,
                         std::span<const std::byte> frame, std::span<std::uint8_t> symbols,
                         ThreadPool* pool) {
  const auto bytes = frame.subspan(section.offset, section.bytes);
  if (section.coder == Coder::kRans) {
    return rans_decode(bytes, symbols, pool);
  }
  load_exponents(params.dtype, bytes.data(), symbols.size(), symbols.data());
  return Verdict::kOk;
}

// Puts decoded exponents of changed blocks into their places.
void scatter(const FrameParams& params, const std::byte* bitmap, const std::uint8_t* from,
             std::uint8_t* exponents) {
  const std::uint64_t blocks = block_count(params.numel, params.block_size);
  for (std::uint64_t b = 0; b < blocks; ++b) {
    if (is_set(bitmap, b)) {
      const std::uint64_t values = values_in(b, params);
      std::memcpy(exponents + b * params.block_size, from, values);
      from += values;
    }
  }
}

// The frame that needs no words or exponents of the reference: with hashes a delta frame of
// exponent-block, else a key frame; raw when that is not shorter. Writes the sections.
FrameHeader make_sections(const FrameParams& params, std::span<const std::byte> src,
                          std::span<const BlockHash> old_hashes, std::span<BlockHash> new_hashes,
                          std::span<std::byte> frame, std::span<std::byte> scratch,
                          ThreadPool* pool, EncodeResult& result) {
  const bool delta = params.mode == ReuseMode::kExponentBlock && is_delta(params);
  const FrameHeader raw = make_header(params, Kind::kRaw);
  FrameHeader header = raw;
  result.changed_blocks = result.blocks;
  if (has_exponent(params.dtype)) {
    header = make_header(params, delta ? Kind::kDelta : Kind::kKey);
    const EncodeScratch work = divide(scratch, params.numel);
    const std::size_t rest = delta ? 1 : 0;
    split_and_hash(params, src.data(), work.exponents, frame.data() + header.sections[rest].offset,
                   new_hashes, pool);
    std::span<const std::uint8_t> symbols(work.exponents, params.numel);
    if (delta) {
      std::byte* bitmap = frame.data() + header.sections[0].offset;
      result.changed_blocks = mark_changed(old_hashes, new_hashes, bitmap);
      if (result.changed_blocks != result.blocks) {
        symbols = {work.compacted, compact(params, bitmap, work.exponents, work.compacted)};
      }
    }
    write_exponents(params, symbols, frame, header, work.rans, pool);
  }
  if (header.kind == Kind::kRaw || header.frame_bytes >= raw.frame_bytes) {
    header = raw;
    result.changed_blocks = result.blocks;
    if (!src.empty()) {
      std::memcpy(frame.data() + header.sections[0].offset, src.data(), src.size());
    }
  }
  return header;
}

// The delta, same, key or raw frame of a delta mode (docs/wire-format.md, section 2).
FrameHeader make_delta_sections(const FrameParams& params, std::span<const std::byte> src,
                                OwnReference reference, std::span<std::byte> frame,
                                std::span<std::byte> scratch, ThreadPool* pool,
                                EncodeResult& result) {
  const auto make_key = [&] {
    return make_sections(params, src, {}, {}, frame, scratch, pool, result);
  };
  if (!is_delta(params)) {
    return make_key();
  }
  const auto make_delta = [&] {
    return make_changes(params, src, reference, frame, scratch, pool, &result.changed_blocks);
  };
  const FrameHeader delta = make_delta();
  const std::uint64_t raw_bytes = make_header(params, Kind::kRaw).frame_bytes;
  if (delta.kind == Kind::kSame ||
      (delta.frame_bytes < raw_bytes && delta.frame_bytes <= delta_quick_bytes(params))) {
    return delta;
  }
  const FrameHeader key = make_key();
  // Rare: the key frame took the delta frame's place, and the same bytes are made once more.
  return delta.frame_bytes < key.frame_bytes ? make_delta() : key;
}

EncodeResult finish(FrameHeader header, std::span<std::byte> frame, ThreadPool* pool,
                    EncodeResult result) {
  write_frame(header, frame, pool);
  result.frame_bytes = header.frame_bytes;
  result.checksum = header.checksum;
  result.kind = static_cast<FrameKind>(header.kind);
  return result;
}

void require_spans(const FrameParams& params, std::span<const std::byte> src,
                   std::span<std::byte> frame, std::span<std::byte> scratch) {
  require_params(params);
  require(params.coder != Coder::kNvcompAns, "coder nvcomp-ans exists on GPUs only");
  require(src.size() == params.numel * element_bytes(params.dtype), "src has the wrong size");
  require(frame.size() >= max_frame_bytes(params), "frame is too small");
  require(scratch.size() >= encode_scratch_bytes(params), "scratch is too small");
}

}  // namespace

std::size_t encode_scratch_bytes(const FrameParams& params) {
  const std::size_t key = 2 * params.numel + rans_scratch_bytes(params.numel, params.segment_log2);
  return params.mode >= ReuseMode::kExponentDelta
             ? std::max(key, changes_encode_scratch_bytes(params))
             : key;
}

std::size_t decode_scratch_bytes(const FrameParams& params) {
  return params.mode >= ReuseMode::kExponentDelta
             ? std::max<std::size_t>(params.numel, changes_decode_scratch_bytes(params))
             : params.numel;
}

EncodeResult encode(const FrameParams& params, std::span<const std::byte> src,
                    std::span<const BlockHash> old_hashes, std::span<BlockHash> new_hashes,
                    std::span<std::byte> frame, std::span<std::byte> scratch, ThreadPool* pool) {
  require_spans(params, src, frame, scratch);
  const std::uint64_t blocks = block_count(params.numel, params.block_size);
  require(params.mode <= ReuseMode::kExponentBlock, "the delta modes take a reference, no hashes");
  require(!is_delta(params) || old_hashes.size() == blocks, "old_hashes has the wrong size");
  require(params.mode == ReuseMode::kExponentOnly || new_hashes.size() == blocks,
          "new_hashes has the wrong size");
  EncodeResult result{.blocks = blocks, .changed_blocks = blocks};
  const FrameHeader header =
      make_sections(params, src, old_hashes, new_hashes, frame, scratch, pool, result);
  return finish(header, frame, pool, result);
}

EncodeResult encode(const FrameParams& params, std::span<const std::byte> src,
                    OwnReference reference, std::span<std::byte> frame,
                    std::span<std::byte> scratch, ThreadPool* pool) {
  require_spans(params, src, frame, scratch);
  require(params.mode >= ReuseMode::kExponentDelta, "only the delta modes take a reference");
  const std::uint64_t blocks = block_count(params.numel, params.block_size);
  require(!is_delta(params) || reference.values.size() ==
                                   params.numel * own_reference_bytes(params.mode, params.dtype),
          "reference has the wrong size");
  EncodeResult result{.blocks = blocks, .changed_blocks = blocks};
  const FrameHeader header =
      make_delta_sections(params, src, reference, frame, scratch, pool, result);
  return finish(header, frame, pool, result);
}

std::optional<EncodeResult> encode_same(const FrameParams& params, std::span<const std::byte> src,
                                        OwnReference words, std::span<std::byte> frame,
                                        ThreadPool* pool) {
  if (is_word_delta(params) || !may_be_same(params)) {
    return std::nullopt;
  }
  require(words.values.empty() || words.values.size() == src.size(), "words have the wrong size");
  const bool known = words.values.size() == src.size() && equal_bytes(words.values, src, pool);
  if (words.claim != Claim::kUnchanged && !known) {
    return std::nullopt;
  }
  return finish(make_header(params, Kind::kSame), frame, pool,
                {.blocks = block_count(params.numel, params.block_size)});
}

Verdict check(const FrameParams& expected, std::span<const std::byte> frame, FrameInfo* info,
              ThreadPool* pool) {
  FrameHeader header;
  Verdict verdict = check_header(expected, frame.data(), frame.size(), &header);
  if (verdict == Verdict::kOk && frame_checksum(frame, pool) != header.checksum) {
    verdict = Verdict::kBadChecksum;
  }
  if (verdict == Verdict::kOk) {
    verdict = check_identity(expected, header);
  }
  if (verdict != Verdict::kOk) {
    return verdict;
  }
  info->kind = static_cast<FrameKind>(header.kind);
  info->frame_bytes = header.frame_bytes;
  info->checksum = header.checksum;
  info->changed_blocks = block_count(header.numel, header.block_size);
  std::uint64_t symbols = header.numel;
  if (header.kind == Kind::kDelta) {
    verdict = read_bitmap(expected, frame.data() + header.sections[0].offset, &info->changed_blocks,
                          &symbols);
  }
  if (header.kind == Kind::kSame) {
    info->changed_blocks = 0;
    return Verdict::kOk;
  }
  const Section& last = header.last();
  if (verdict != Verdict::kOk || last.kind == SectionKind::kWords) {
    return verdict;
  }
  if (last.kind == SectionKind::kChanges) {
    return check_changes(expected, last, frame, symbols);
  }
  if (last.coder == Coder::kRans) {
    return rans_check(frame.subspan(last.offset, last.bytes), symbols);
  }
  return last.bytes == stored_exponent_bytes(header.dtype, symbols) ? Verdict::kOk
                                                                    : Verdict::kBadSizes;
}

namespace {

// Copies a raw frame's words; the cache gets its exponents or, in word-delta, the words.
void decode_raw(const FrameParams& expected, const std::byte* words, std::span<std::byte> cache,
                std::span<std::byte> dst, ThreadPool* pool) {
  for_chunks(expected, pool, [&](Range range) {
    const std::size_t width = element_bytes(expected.dtype);
    std::memcpy(dst.data() + range.from * width, words + range.from * width,
                (range.to - range.from) * width);
    if (!cache.empty() && !is_word_delta(expected)) {
      extract_exponents(expected.dtype, range, words,
                        reinterpret_cast<std::uint8_t*>(cache.data()));
    }
  });
}

// Key frames, and delta frames of exponent-block.
Verdict decode_coded(const FrameParams& expected, const FrameHeader& header,
                     std::span<const std::byte> frame, std::span<std::byte> exponents,
                     std::span<std::byte> dst, std::span<std::byte> scratch, ThreadPool* pool) {
  auto* spare = reinterpret_cast<std::uint8_t*>(scratch.data());
  auto* cache = reinterpret_cast<std::uint8_t*>(exponents.data());
  const std::byte* first = frame.data() + header.sections[0].offset;
  std::uint8_t* merged = exponents.empty() ? spare : cache;
  std::span<std::uint8_t> symbols(merged, expected.numel);
  if (header.kind == Kind::kDelta) {
    std::uint64_t changed = 0;
    std::uint64_t count = 0;
    read_bitmap(expected, first, &changed, &count);
    symbols = {spare, count};
  }
  const Verdict stream = decode_exponents(expected, header.last(), frame, symbols, pool);
  if (stream != Verdict::kOk) {
    return stream;
  }
  if (header.kind == Kind::kDelta) {
    scatter(expected, first, spare, cache);
  }
  const std::byte* rest = frame.data() + header.sections[header.section_count - 2].offset;
  for_chunks(expected, pool,
             [&](Range range) { merge(expected.dtype, range, merged, rest, dst.data()); });
  return Verdict::kOk;
}

}  // namespace

Verdict decode(const FrameParams& expected, std::span<const std::byte> frame,
               std::span<std::byte> cache, std::span<std::byte> dst, std::span<std::byte> scratch,
               ThreadPool* pool) {
  require_params(expected);
  require(dst.size() == expected.numel * element_bytes(expected.dtype), "dst has the wrong size");
  require(cache.size() == expected.numel * reference_bytes(expected.mode, expected.dtype),
          "the cache has the wrong size");
  require(scratch.size() >= decode_scratch_bytes(expected), "scratch is too small");
  FrameHeader header;
  Verdict verdict = wire::read_header(frame.data(), frame.size(), &header);
  if (verdict != Verdict::kOk) {
    return verdict;
  }
  const bool words = is_word_delta(expected);
  if (header.kind == Kind::kSame && !words) {
    return Verdict::kOk;
  }
  const bool changes = header.kind == Kind::kSame ||
                       (header.kind == Kind::kDelta && expected.mode != ReuseMode::kExponentBlock);
  if (changes) {
    return decode_changes(expected, header, frame, cache, dst, scratch, pool);
  }
  if (header.kind == Kind::kRaw) {
    decode_raw(expected, frame.data() + header.sections[0].offset, cache, dst, pool);
  } else {
    verdict = decode_coded(expected, header, frame, words ? std::span<std::byte>{} : cache, dst,
                           scratch, pool);
  }
  if (verdict == Verdict::kOk && words) {
    copy_bytes(cache, dst, pool);
  }
  return verdict;
}

}  // namespace ciera::codec::host
