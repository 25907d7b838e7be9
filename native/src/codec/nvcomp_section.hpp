// The layout of an `nvcomp-ans` section around nvCOMP's chunks, which are opaque
// (docs/wire-format.md, section 4b). Shared by host and GPU, so that its checks are tested on both.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/bytes.hpp"
#include "base/host_device.hpp"
#include "ciera/types.hpp"
#include "codec/frame.hpp"
#include "wire/frame_header.hpp"

namespace ciera::codec {

inline constexpr std::uint32_t kNvcompChunkBytes = 65536;  // symbols in a chunk; the last: the rest
inline constexpr std::uint32_t kNvcompHeadBytes = 32;
inline constexpr std::uint32_t kNvcompEntryBytes = 16;

CIERA_HD constexpr std::uint64_t nvcomp_chunks(std::uint64_t symbols) {
  return ceil_div(symbols, kNvcompChunkBytes);
}
CIERA_HD constexpr std::uint64_t nvcomp_chunk_symbols(std::uint64_t chunk, std::uint64_t symbols) {
  const std::uint64_t first = chunk * kNvcompChunkBytes;
  const std::uint64_t rest = first < symbols ? symbols - first : 0;
  return rest < kNvcompChunkBytes ? rest : kNvcompChunkBytes;
}
// Head and entries; the first chunk follows without a gap.
CIERA_HD constexpr std::uint64_t nvcomp_table_bytes(std::uint64_t chunks) {
  return kNvcompHeadBytes + kNvcompEntryBytes * chunks;
}

// Where a chunk lies in its section.
struct NvcompChunk {
  std::uint64_t offset = 0;
  std::uint64_t bytes = 0;
};

CIERA_HD inline void write_nvcomp_head(std::uint64_t symbols, std::uint32_t major,
                                       std::byte* section) {
  base::store_le(section, symbols);
  base::store_le(section + 8, major);
  base::store_le(section + 12, kNvcompChunkBytes);
  base::store_le(section + 16, nvcomp_chunks(symbols));
  base::store_le(section + 24, std::uint64_t{0});
}
CIERA_HD inline void write_nvcomp_chunk(std::uint64_t chunk, NvcompChunk place,
                                        std::byte* section) {
  std::byte* entry = section + nvcomp_table_bytes(chunk);
  base::store_le(entry, place.offset);
  base::store_le(entry + 8, place.bytes);
}
CIERA_HD inline NvcompChunk read_nvcomp_chunk(std::uint64_t chunk, const std::byte* section) {
  const std::byte* entry = section + nvcomp_table_bytes(chunk);
  return {base::load_le<std::uint64_t>(entry), base::load_le<std::uint64_t>(entry + 8)};
}

// The head against what the frame says, and that all entries lie in the section.
CIERA_HD inline Verdict check_nvcomp_head(const std::byte* section, std::uint64_t section_bytes,
                                          std::uint64_t symbols, std::uint32_t major) {
  if (section_bytes < kNvcompHeadBytes) {
    return Verdict::kBadTable;
  }
  if (base::load_le<std::uint64_t>(section + 24) != 0) {
    return Verdict::kBadPadding;
  }
  const std::uint64_t chunks = nvcomp_chunks(symbols);
  const bool good = symbols != 0 && base::load_le<std::uint64_t>(section) == symbols &&
                    base::load_le<std::uint32_t>(section + 8) == major &&
                    base::load_le<std::uint32_t>(section + 12) == kNvcompChunkBytes &&
                    base::load_le<std::uint64_t>(section + 16) == chunks &&
                    chunks <= (section_bytes - kNvcompHeadBytes) / kNvcompEntryBytes;
  return good ? Verdict::kOk : Verdict::kBadTable;
}

// One chunk's entry, after the head was found good: it lies in the section, right behind what comes
// before it; the last one ends the section. Every chunk must be checked before one is used.
CIERA_HD inline Verdict check_nvcomp_chunk(const std::byte* section, std::uint64_t section_bytes,
                                           std::uint64_t chunk, std::uint64_t chunks) {
  const auto lies_inside = [section_bytes](NvcompChunk place) {
    return place.bytes != 0 && place.offset <= section_bytes &&
           place.bytes <= section_bytes - place.offset;
  };
  const NvcompChunk own = read_nvcomp_chunk(chunk, section);
  std::uint64_t end = nvcomp_table_bytes(chunks);  // of what comes before
  if (chunk > 0) {
    const NvcompChunk before = read_nvcomp_chunk(chunk - 1, section);
    if (!lies_inside(before)) {
      return Verdict::kBadTable;
    }
    end = before.offset + before.bytes;
  }
  if (!lies_inside(own) || own.offset != wire::align16(end) ||
      (chunk + 1 == chunks && own.offset + own.bytes != section_bytes)) {
    return Verdict::kBadTable;
  }
  for (; end < own.offset; ++end) {
    if (section[end] != std::byte{0}) {
      return Verdict::kBadPadding;
    }
  }
  return Verdict::kOk;
}

}  // namespace ciera::codec
