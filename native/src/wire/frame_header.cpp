#include "wire/frame_header.hpp"

#include <algorithm>
#include <cstring>

#include "base/bytes.hpp"

namespace ciera::wire {
namespace {

constexpr std::uint32_t kMagic = 0x41524943;  // "CIRA"
constexpr std::uint64_t kSizeMask = (std::uint64_t{1} << 48) - 1;

// The sections a frame of this kind has, in order.
std::span<const SectionKind> sections_of(Kind kind) {
  static constexpr std::array kRawSections = {SectionKind::kWords};
  static constexpr std::array kKeySections = {SectionKind::kSignMantissa, SectionKind::kExponents};
  static constexpr std::array kDeltaSections = {SectionKind::kBitmap, SectionKind::kSignMantissa,
                                                SectionKind::kExponents};
  switch (kind) {
    case Kind::kRaw:
      return kRawSections;
    case Kind::kKey:
      return kKeySections;
    case Kind::kDelta:
      return kDeltaSections;
  }
  return {};
}

bool all_zero(std::span<const std::byte> bytes) {
  return std::ranges::all_of(bytes, [](std::byte b) { return b == std::byte{0}; });
}

Verdict read_fixed(std::span<const std::byte> frame, FrameHeader& header) {
  const std::byte* at = frame.data();
  const auto byte_at = [at](std::size_t i) { return std::to_integer<std::uint8_t>(at[i]); };
  if (base::load_le<std::uint32_t>(at) != kMagic) {
    return Verdict::kBadMagic;
  }
  if (byte_at(4) != kVersion) {
    return Verdict::kBadVersion;
  }
  if (byte_at(9) != 0) {
    return Verdict::kBadFlags;
  }
  if (byte_at(5) > 2) {
    return Verdict::kBadKind;
  }
  if (byte_at(6) != 1 && byte_at(6) != 2) {
    return Verdict::kBadMode;
  }
  if (byte_at(7) < 1 || byte_at(7) > 3) {
    return Verdict::kBadDtype;
  }
  header.kind = static_cast<Kind>(byte_at(5));
  header.mode = static_cast<ReuseMode>(byte_at(6));
  header.dtype = static_cast<DType>(byte_at(7));
  header.section_count = byte_at(8);
  header.block_size = base::load_le<std::uint32_t>(at + 12);
  header.numel = base::load_le<std::uint64_t>(at + 16);
  header.frame_bytes = base::load_le<std::uint64_t>(at + 24);
  header.base_epoch = base::load_le<std::uint64_t>(at + 32);
  header.base_digest = base::load_le<std::uint64_t>(at + 40);
  header.shard_key = base::load_le<std::uint64_t>(at + 48);
  header.checksum = base::load_le<std::uint64_t>(at + kChecksumOffset);
  if (header.kind == Kind::kDelta && header.mode != ReuseMode::kExponentBlock) {
    return Verdict::kBadMode;
  }
  if (header.block_size < 8 || header.block_size > 65536 || header.block_size % 8 != 0) {
    return Verdict::kBadBlockSize;
  }
  return Verdict::kOk;
}

Verdict read_sections(std::span<const std::byte> frame, FrameHeader& header) {
  const auto expected = sections_of(header.kind);
  if (header.section_count != expected.size()) {
    return Verdict::kBadSections;
  }
  const std::uint64_t start = header_bytes(header.section_count);
  if (frame.size() < start) {
    return Verdict::kTruncated;
  }
  for (std::size_t i = 0; i < expected.size(); ++i) {
    const auto entry = base::load_le<std::uint64_t>(frame.data() + kFixedBytes + 8 * i);
    const auto kind = static_cast<std::uint8_t>(entry);
    const auto coder = static_cast<std::uint8_t>(entry >> 8);
    const bool may_code = expected[i] == SectionKind::kExponents;
    if (kind != static_cast<std::uint8_t>(expected[i]) || coder > (may_code ? 1 : 0)) {
      return Verdict::kBadSections;
    }
    header.sections[i] = {expected[i], static_cast<Coder>(coder), (entry >> 16) & kSizeMask, 0};
  }
  const std::uint64_t stated = header.frame_bytes;
  lay_out(header);  // 48-bit sizes cannot overflow
  if (stated != header.frame_bytes) {
    return Verdict::kBadSizes;
  }
  return frame.size() < stated   ? Verdict::kTruncated
         : frame.size() > stated ? Verdict::kBadSizes
                                 : Verdict::kOk;
}

Verdict check_padding(std::span<const std::byte> frame, const FrameHeader& header) {
  std::uint64_t end = kFixedBytes + 8 * header.section_count;
  for (const Section& section : header.used()) {
    if (!all_zero(frame.subspan(end, section.offset - end))) {
      return Verdict::kBadPadding;
    }
    end = section.offset + section.bytes;
  }
  return Verdict::kOk;
}

}  // namespace

void lay_out(FrameHeader& header) {
  std::uint64_t end = header_bytes(header.section_count);
  for (std::size_t i = 0; i < header.section_count; ++i) {
    header.sections[i].offset = align16(end);
    end = header.sections[i].offset + header.sections[i].bytes;
  }
  header.frame_bytes = end;
}

void write_header(const FrameHeader& header, std::span<std::byte> frame) {
  std::byte* to = frame.data();
  std::memset(to, 0, header_bytes(header.section_count));
  base::store_le(to, kMagic);
  base::store_le(to + 4, kVersion);
  base::store_le(to + 5, header.kind);
  base::store_le(to + 6, header.mode);
  base::store_le(to + 7, header.dtype);
  base::store_le(to + 8, static_cast<std::uint8_t>(header.section_count));
  base::store_le(to + 12, header.block_size);
  base::store_le(to + 16, header.numel);
  base::store_le(to + 24, header.frame_bytes);
  base::store_le(to + 32, header.base_epoch);
  base::store_le(to + 40, header.base_digest);
  base::store_le(to + 48, header.shard_key);
  base::store_le(to + kChecksumOffset, header.checksum);
  for (std::size_t i = 0; i < header.section_count; ++i) {
    const Section& section = header.sections[i];
    const std::uint64_t entry = static_cast<std::uint64_t>(section.kind) |
                                static_cast<std::uint64_t>(section.coder) << 8 |
                                section.bytes << 16;
    base::store_le(to + kFixedBytes + 8 * i, entry);
  }
}

Verdict read_header(std::span<const std::byte> frame, FrameHeader* header) {
  if (frame.size() < kFixedBytes) {
    return Verdict::kTruncated;
  }
  Verdict verdict = read_fixed(frame, *header);
  if (verdict == Verdict::kOk) {
    verdict = read_sections(frame, *header);
  }
  return verdict == Verdict::kOk ? check_padding(frame, *header) : verdict;
}

}  // namespace ciera::wire
