#include "codec/host/frame_codec.hpp"

#include <algorithm>
#include <cstring>
#include <stdexcept>

#include "codec/host/digest_host.hpp"
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

// Shards are cut in chunks of whole blocks near this many values: a thread's share, in cache.
std::uint64_t chunk_values(std::uint32_t block_size) {
  return std::max<std::uint64_t>(1, 65536 / block_size) * block_size;
}

Range chunk_range(std::size_t chunk, std::uint64_t size, std::uint64_t numel) {
  return {chunk * size, std::min(numel, (chunk + 1) * size), numel};
}

void for_chunks(const FrameParams& params, ThreadPool* pool,
                const std::function<void(Range)>& body) {
  const std::uint64_t size = chunk_values(params.block_size);
  parallel_for(pool, (params.numel + size - 1) / size,
               [&](std::size_t c) { body(chunk_range(c, size, params.numel)); });
}

bool is_set(const std::byte* bitmap, std::uint64_t block) {
  return (bitmap[block / 8] >> (block % 8) & std::byte{1}) != std::byte{0};
}

std::uint64_t values_in(std::uint64_t block, const FrameParams& params) {
  return block_values(block, params.numel, params.block_size);
}

void require(bool condition, const char* what) {
  if (!condition) {
    throw std::invalid_argument(what);
  }
}

void require_params(const FrameParams& params) {
  require(params.mode == ReuseMode::kExponentOnly || params.mode == ReuseMode::kExponentBlock,
          "a frame's mode is exponent-only or exponent-block");
  require(has_exponent(params.dtype), "a frame's dtype is bf16, fp16 or fp32");
  require(params.block_size >= 8 && params.block_size <= 65536 && params.block_size % 8 == 0,
          "block_size is a multiple of 8 from 8 to 65536");
  require(params.numel <= kMaxNumel, "numel is at most 2^44");
  require(params.nvcomp_major == 0, "coder nvcomp-ans exists on GPUs only");
  require(params.segment_log2 >= kRansMinSegmentLog2 && params.segment_log2 <= kRansMaxSegmentLog2,
          "segment_log2 is from 10 to 20");
}

// Zeroes the gaps between header and sections.
void write_frame(FrameHeader& header, std::span<std::byte> frame, ThreadPool* pool) {
  std::uint64_t end = wire::header_bytes(header.section_count);
  for (std::uint32_t i = 0; i < header.section_count; ++i) {
    const Section& section = header.sections[i];
    std::memset(frame.data() + end, 0, section.offset - end);
    end = section.offset + section.bytes;
  }
  header.checksum = 0;
  wire::write_header(header, frame.data());
  header.checksum = frame_checksum(frame.first(header.frame_bytes), pool);
  wire::write_header(header, frame.data());
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

// The changed blocks and the values in them; bad_bitmap when spare bits are set.
Verdict read_bitmap(const FrameParams& expected, const std::byte* bitmap, std::uint64_t* changed,
                    std::uint64_t* symbols) {
  const std::uint64_t blocks = block_count(expected.numel, expected.block_size);
  for (std::uint64_t b = blocks; b < 8 * bitmap_bytes(blocks); ++b) {
    if (is_set(bitmap, b)) {
      return Verdict::kBadBitmap;
    }
  }
  *changed = 0;
  *symbols = 0;
  for (std::uint64_t b = 0; b < blocks; ++b) {
    if (is_set(bitmap, b)) {
      ++*changed;
      *symbols += values_in(b, expected);
    }
  }
  return Verdict::kOk;
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

}  // namespace

std::size_t encode_scratch_bytes(const FrameParams& params) {
  return 2 * params.numel + rans_scratch_bytes(params.numel, params.segment_log2);
}

std::size_t decode_scratch_bytes(const FrameParams& params) { return params.numel; }

EncodeResult encode(const FrameParams& params, std::span<const std::byte> src,
                    std::span<const BlockHash> old_hashes, std::span<BlockHash> new_hashes,
                    std::span<std::byte> frame, std::span<std::byte> scratch, ThreadPool* pool) {
  require_params(params);
  require(params.coder != Coder::kNvcompAns, "coder nvcomp-ans exists on GPUs only");
  const std::uint64_t blocks = block_count(params.numel, params.block_size);
  const bool delta = is_delta(params);
  require(src.size() == params.numel * element_bytes(params.dtype), "src has the wrong size");
  require(!delta || old_hashes.size() == blocks, "old_hashes has the wrong size");
  require(params.mode == ReuseMode::kExponentOnly || new_hashes.size() == blocks,
          "new_hashes has the wrong size");
  require(frame.size() >= max_frame_bytes(params), "frame is too small");
  require(scratch.size() >= encode_scratch_bytes(params), "scratch is too small");

  const EncodeScratch work = divide(scratch, params.numel);
  FrameHeader header = make_header(params, delta ? Kind::kDelta : Kind::kKey);
  const std::size_t rest = delta ? 1 : 0;
  split_and_hash(params, src.data(), work.exponents, frame.data() + header.sections[rest].offset,
                 new_hashes, pool);
  EncodeResult result{.blocks = blocks, .changed_blocks = blocks};
  std::span<const std::uint8_t> symbols(work.exponents, params.numel);
  if (delta) {
    std::byte* bitmap = frame.data() + header.sections[0].offset;
    result.changed_blocks = mark_changed(old_hashes, new_hashes, bitmap);
    if (result.changed_blocks != blocks) {
      symbols = {work.compacted, compact(params, bitmap, work.exponents, work.compacted)};
    }
  }
  write_exponents(params, symbols, frame, header, work.rans, pool);
  const FrameHeader raw = make_header(params, Kind::kRaw);
  if (header.frame_bytes >= raw.frame_bytes) {
    header = raw;
    result.changed_blocks = blocks;
    if (!src.empty()) {
      std::memcpy(frame.data() + header.sections[0].offset, src.data(), src.size());
    }
  }
  write_frame(header, frame, pool);
  result.frame_bytes = header.frame_bytes;
  result.checksum = header.checksum;
  result.kind = static_cast<FrameKind>(header.kind);
  return result;
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
  const Section& last = header.last();
  if (verdict != Verdict::kOk || last.kind != SectionKind::kExponents) {
    return verdict;
  }
  if (last.coder == Coder::kRans) {
    return rans_check(frame.subspan(last.offset, last.bytes), symbols);
  }
  return last.bytes == stored_exponent_bytes(header.dtype, symbols) ? Verdict::kOk
                                                                    : Verdict::kBadSizes;
}

Verdict decode(const FrameParams& expected, std::span<const std::byte> frame,
               std::span<std::byte> exponents, std::span<std::byte> dst,
               std::span<std::byte> scratch, ThreadPool* pool) {
  require_params(expected);
  require(dst.size() == expected.numel * element_bytes(expected.dtype), "dst has the wrong size");
  require(exponents.size() == (expected.mode == ReuseMode::kExponentBlock ? expected.numel : 0),
          "exponents has the wrong size");
  require(scratch.size() >= decode_scratch_bytes(expected), "scratch is too small");
  FrameHeader header;
  const Verdict verdict = wire::read_header(frame.data(), frame.size(), &header);
  if (verdict != Verdict::kOk) {
    return verdict;
  }
  auto* spare = reinterpret_cast<std::uint8_t*>(scratch.data());
  auto* cache = reinterpret_cast<std::uint8_t*>(exponents.data());
  const std::byte* first = frame.data() + header.sections[0].offset;
  if (header.kind == Kind::kRaw) {
    for_chunks(expected, pool, [&](Range range) {
      const std::size_t width = element_bytes(expected.dtype);
      std::memcpy(dst.data() + range.from * width, first + range.from * width,
                  (range.to - range.from) * width);
      if (!exponents.empty()) {
        extract_exponents(expected.dtype, range, first, cache);
      }
    });
    return Verdict::kOk;
  }
  std::uint8_t* merged = exponents.empty() ? spare : cache;
  std::span<std::uint8_t> symbols(merged, expected.numel);
  if (header.kind == Kind::kDelta) {
    std::uint64_t changed = 0;
    std::uint64_t count = 0;
    read_bitmap(expected, first, &changed, &count);
    symbols = {spare, count};
  }
  const Section& coded = header.last();
  const Verdict stream = decode_exponents(expected, coded, frame, symbols, pool);
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

}  // namespace ciera::codec::host
