// Frame header and section entries (docs/wire-format.md, section 2).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "ciera/types.hpp"

namespace ciera::wire {

inline constexpr std::uint8_t kVersion = 1;
inline constexpr std::size_t kFixedBytes = 64;
inline constexpr std::size_t kChecksumOffset = 56;
inline constexpr std::size_t kMaxSections = 3;

enum class Kind : std::uint8_t { kRaw = 0, kKey = 1, kDelta = 2 };
enum class SectionKind : std::uint8_t {
  kWords = 1,
  kBitmap = 2,
  kSignMantissa = 3,
  kExponents = 4
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
  std::size_t section_count = 0;
  std::array<Section, kMaxSections> sections{};

  std::span<const Section> used() const { return std::span(sections).first(section_count); }
};

constexpr std::uint64_t align16(std::uint64_t bytes) { return (bytes + 15) & ~std::uint64_t{15}; }
constexpr std::uint64_t header_bytes(std::size_t sections) {
  return align16(kFixedBytes + 8 * sections);
}

// Places the sections one after the other and sets frame_bytes.
void lay_out(FrameHeader& header);

// Writes header and entries with their padding; the checksum field as it stands in `header`.
void write_header(const FrameHeader& header, std::span<std::byte> frame);

// Reads the header of `frame`, which must be exactly one frame, and checks it against itself:
// magic, version, flags, known values, the sections its kind has, sizes within the frame, zero
// padding. Not the checksum.
Verdict read_header(std::span<const std::byte> frame, FrameHeader* header);

}  // namespace ciera::wire
