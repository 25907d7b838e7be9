// Frame header and section entries (docs/wire-format.md, section 2). Shared by host and GPU.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/bytes.hpp"
#include "base/host_device.hpp"
#include "ciera/types.hpp"

namespace ciera::wire {

inline constexpr std::uint8_t kVersion = 1;
inline constexpr std::uint32_t kMagic = 0x41524943;  // "CIRA"
inline constexpr std::size_t kFixedBytes = 64;
inline constexpr std::size_t kChecksumOffset = 56;
inline constexpr std::size_t kMaxSections = 3;
inline constexpr std::uint64_t kSectionSizeMask = (std::uint64_t{1} << 48) - 1;

enum class Kind : std::uint8_t { kRaw = 0, kKey = 1, kDelta = 2, kSame = 3 };
enum class SectionKind : std::uint8_t {
  kWords = 1,
  kBitmap = 2,
  kSignMantissa = 3,
  kExponents = 4,
  kChanges = 5
};

struct Section {
  SectionKind kind = SectionKind::kWords;
  Coder coder = Coder::kRaw;
  std::uint64_t bytes = 0;
  std::uint64_t offset = 0;  // in the frame; derived, not written
};

struct FrameHeader {
  Kind kind = Kind::kRaw;
  ReuseMode mode = ReuseMode::kExponentBlock;
  DType dtype = DType::kBf16;
  std::uint32_t block_size = 512;
  std::uint64_t numel = 0;
  std::uint64_t frame_bytes = 0;
  std::uint64_t base_epoch = 0;
  std::uint64_t base_digest = 0;
  std::uint64_t shard_key = 0;
  std::uint64_t checksum = 0;
  std::uint32_t section_count = 0;
  Section sections[kMaxSections] = {};

  // Not of a same frame, which has no section.
  CIERA_HD Section& last() { return sections[section_count - 1]; }
  CIERA_HD const Section& last() const { return sections[section_count - 1]; }
};

CIERA_HD constexpr std::uint64_t align16(std::uint64_t bytes) {
  return (bytes + 15) & ~std::uint64_t{15};
}
CIERA_HD constexpr std::uint64_t header_bytes(std::uint32_t sections) {
  return align16(kFixedBytes + 8 * sections);
}

// The sections a frame of this kind has, in order: raw: words; key: sign_mantissa, exponents;
// delta: bitmap, sign_mantissa, exponents (exponent-block) or changes (exponent-delta), or bitmap,
// changes (word-delta); same: none.
CIERA_HD constexpr std::uint32_t section_count_of(Kind kind, ReuseMode mode) {
  return kind == Kind::kSame ? 0
         : kind == Kind::kDelta && mode == ReuseMode::kWordDelta
             ? 2
             : static_cast<std::uint32_t>(kind) + 1;
}
CIERA_HD constexpr SectionKind section_of(Kind kind, ReuseMode mode, std::uint32_t i) {
  if (kind == Kind::kRaw) {
    return SectionKind::kWords;
  }
  if (kind == Kind::kDelta && i + 1 == section_count_of(kind, mode) &&
      mode != ReuseMode::kExponentBlock) {
    return SectionKind::kChanges;
  }
  const std::uint32_t first = kind == Kind::kKey ? 3 : 2;
  return static_cast<SectionKind>(first + i);
}
CIERA_HD constexpr bool names_base(Kind kind) {
  return kind == Kind::kDelta || kind == Kind::kSame;
}

// Places the sections one after the other and sets frame_bytes.
CIERA_HD inline void lay_out(FrameHeader& header) {
  std::uint64_t end = header_bytes(header.section_count);
  for (std::uint32_t i = 0; i < header.section_count; ++i) {
    header.sections[i].offset = align16(end);
    end = header.sections[i].offset + header.sections[i].bytes;
  }
  header.frame_bytes = end;
}

// Writes header and entries with their padding; the checksum field as it stands in `header`.
CIERA_HD inline void write_header(const FrameHeader& header, std::byte* frame) {
  for (std::uint64_t i = 0; i < header_bytes(header.section_count); ++i) {
    frame[i] = std::byte{0};
  }
  base::store_le(frame, kMagic);
  base::store_le(frame + 4, kVersion);
  base::store_le(frame + 5, header.kind);
  base::store_le(frame + 6, header.mode);
  base::store_le(frame + 7, header.dtype);
  base::store_le(frame + 8, static_cast<std::uint8_t>(header.section_count));
  base::store_le(frame + 12, header.block_size);
  base::store_le(frame + 16, header.numel);
  base::store_le(frame + 24, header.frame_bytes);
  base::store_le(frame + 32, header.base_epoch);
  base::store_le(frame + 40, header.base_digest);
  base::store_le(frame + 48, header.shard_key);
  base::store_le(frame + kChecksumOffset, header.checksum);
  for (std::uint32_t i = 0; i < header.section_count; ++i) {
    const Section& section = header.sections[i];
    const std::uint64_t entry = static_cast<std::uint64_t>(section.kind) |
                                static_cast<std::uint64_t>(section.coder) << 8 |
                                section.bytes << 16;
    base::store_le(frame + kFixedBytes + 8 * i, entry);
  }
}

// `words_held`: same frames of exponent-block and exponent-delta can be made use of.
CIERA_HD inline Verdict read_fixed(const std::byte* frame, FrameHeader* header,
                                   bool words_held = true) {
  const auto byte_at = [frame](std::size_t i) { return static_cast<std::uint8_t>(frame[i]); };
  if (base::load_le<std::uint32_t>(frame) != kMagic) {
    return Verdict::kBadMagic;
  }
  if (byte_at(4) != kVersion) {
    return Verdict::kBadVersion;
  }
  if (byte_at(9) != 0) {
    return Verdict::kBadFlags;
  }
  const bool words = byte_at(6) == static_cast<std::uint8_t>(ReuseMode::kWordDelta);
  const bool held =
      words_held && (byte_at(6) == static_cast<std::uint8_t>(ReuseMode::kExponentBlock) ||
                     byte_at(6) == static_cast<std::uint8_t>(ReuseMode::kExponentDelta));
  if (byte_at(5) > 3 || (byte_at(5) == 3 && !words && !held)) {
    return Verdict::kBadKind;
  }
  if (byte_at(6) < 1 || byte_at(6) > 4) {
    return Verdict::kBadMode;
  }
  const bool is_float = byte_at(7) >= 1 && byte_at(7) <= 3;
  const bool opaque = words && byte_at(7) >= 16 && byte_at(7) <= 19;
  if (!is_float && !opaque) {
    return Verdict::kBadDtype;
  }
  header->kind = static_cast<Kind>(byte_at(5));
  header->mode = static_cast<ReuseMode>(byte_at(6));
  header->dtype = static_cast<DType>(byte_at(7));
  header->section_count = byte_at(8);
  header->block_size = base::load_le<std::uint32_t>(frame + 12);
  header->numel = base::load_le<std::uint64_t>(frame + 16);
  header->frame_bytes = base::load_le<std::uint64_t>(frame + 24);
  header->base_epoch = base::load_le<std::uint64_t>(frame + 32);
  header->base_digest = base::load_le<std::uint64_t>(frame + 40);
  header->shard_key = base::load_le<std::uint64_t>(frame + 48);
  header->checksum = base::load_le<std::uint64_t>(frame + kChecksumOffset);
  if (header->kind == Kind::kDelta && header->mode == ReuseMode::kExponentOnly) {
    return Verdict::kBadMode;
  }
  if (header->kind == Kind::kKey && opaque) {
    return Verdict::kBadDtype;
  }
  if (header->block_size < 8 || header->block_size > 65536 || header->block_size % 8 != 0) {
    return Verdict::kBadBlockSize;
  }
  return Verdict::kOk;
}

CIERA_HD inline Verdict read_sections(const std::byte* frame, std::uint64_t size, Coder last_coder,
                                      FrameHeader* header) {
  if (header->section_count != section_count_of(header->kind, header->mode)) {
    return Verdict::kBadSections;
  }
  if (size < header_bytes(header->section_count)) {
    return Verdict::kTruncated;
  }
  for (std::uint32_t i = 0; i < header->section_count; ++i) {
    const auto entry = base::load_le<std::uint64_t>(frame + kFixedBytes + 8 * i);
    const SectionKind expected = section_of(header->kind, header->mode, i);
    const auto kind = static_cast<std::uint8_t>(entry);
    const auto coder = static_cast<std::uint8_t>(entry >> 8);
    const Coder last = expected == SectionKind::kExponents ? last_coder
                       : expected == SectionKind::kChanges ? Coder::kRans
                                                           : Coder::kRaw;
    if (kind != static_cast<std::uint8_t>(expected) || coder > static_cast<std::uint8_t>(last)) {
      return Verdict::kBadSections;
    }
    header->sections[i].kind = expected;
    header->sections[i].coder = static_cast<Coder>(coder);
    header->sections[i].bytes = (entry >> 16) & kSectionSizeMask;
  }
  const std::uint64_t stated = header->frame_bytes;
  lay_out(*header);  // 48-bit sizes cannot overflow
  if (stated != header->frame_bytes) {
    return Verdict::kBadSizes;
  }
  return size < stated ? Verdict::kTruncated : size > stated ? Verdict::kBadSizes : Verdict::kOk;
}

CIERA_HD inline Verdict check_padding(const std::byte* frame, const FrameHeader& header) {
  std::uint64_t end = kFixedBytes + 8 * header.section_count;
  for (std::uint32_t i = 0; i < header.section_count; ++i) {
    for (; end < header.sections[i].offset; ++end) {
      if (frame[end] != std::byte{0}) {
        return Verdict::kBadPadding;
      }
    }
    end += header.sections[i].bytes;
  }
  return Verdict::kOk;
}

// What follows read_fixed: the sections the frame's kind has, sizes within the frame, zero padding.
CIERA_HD inline Verdict read_rest(const std::byte* frame, std::uint64_t size, Coder last_coder,
                                  FrameHeader* header) {
  const Verdict verdict = read_sections(frame, size, last_coder, header);
  return verdict == Verdict::kOk ? check_padding(frame, *header) : verdict;
}

// Reads the header of `frame`, which must be exactly one frame of `size` bytes, and checks it
// against itself: magic, version, flags, known values and what read_rest checks. Not the checksum.
// `last_coder`: the highest coder that exponents may have.
CIERA_HD inline Verdict read_header(const std::byte* frame, std::uint64_t size, FrameHeader* header,
                                    Coder last_coder = Coder::kRans) {
  if (size < kFixedBytes) {
    return Verdict::kTruncated;
  }
  const Verdict verdict = read_fixed(frame, header);
  return verdict == Verdict::kOk ? read_rest(frame, size, last_coder, header) : verdict;
}

}  // namespace ciera::wire
