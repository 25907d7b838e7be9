// The layout of an nvcomp-ans section around chunks of any content: what must be refused before
// anything of it reaches nvCOMP.
#include "codec/nvcomp_section.hpp"

#include <gtest/gtest.h>

#include <cstring>
#include <limits>
#include <stdexcept>
#include <vector>

#include "codec/host/frame_codec.hpp"

namespace ciera::codec {
namespace {

constexpr std::uint32_t kMajor = 6;
constexpr std::uint64_t kSymbols = 2 * kNvcompChunkBytes + 100;
constexpr std::uint64_t kSizes[] = {1000, 1001, 37};  // with gaps of 8 and 7 bytes

std::vector<std::byte> make_section() {
  std::vector<std::byte> section(nvcomp_table_bytes(3));
  write_nvcomp_head(kSymbols, kMajor, section.data());
  for (std::uint64_t c = 0; c < 3; ++c) {
    const NvcompChunk place{wire::align16(section.size()), kSizes[c]};
    section.resize(place.offset);
    section.resize(place.offset + place.bytes, std::byte{0xAB});
    write_nvcomp_chunk(c, place, section.data());
  }
  return section;
}

Verdict check(const std::vector<std::byte>& section, std::uint64_t symbols = kSymbols,
              std::uint32_t major = kMajor) {
  Verdict verdict = check_nvcomp_head(section.data(), section.size(), symbols, major);
  const std::uint64_t chunks = nvcomp_chunks(symbols);
  for (std::uint64_t c = 0; c < chunks && verdict == Verdict::kOk; ++c) {
    verdict = check_nvcomp_chunk(section.data(), section.size(), c, chunks);
  }
  return verdict;
}

template <class Value>
Verdict with(std::size_t offset, Value value) {
  auto section = make_section();
  std::memcpy(section.data() + offset, &value, sizeof value);
  return check(section);
}

TEST(NvcompSection, AWholeSectionIsTaken) { EXPECT_EQ(check(make_section()), Verdict::kOk); }

TEST(NvcompSection, ChunksOfTheSymbolsAreFullButTheLast) {
  EXPECT_EQ(nvcomp_chunks(0), 0U);
  EXPECT_EQ(nvcomp_chunks(65536), 1U);
  EXPECT_EQ(nvcomp_chunks(65537), 2U);
  EXPECT_EQ(nvcomp_chunk_symbols(0, kSymbols), 65536U);
  EXPECT_EQ(nvcomp_chunk_symbols(2, kSymbols), 100U);
  EXPECT_EQ(nvcomp_chunk_symbols(3, kSymbols), 0U);  // a surplus chunk
}

TEST(NvcompSection, AHeadThatSaysSomethingElseIsABadTable) {
  EXPECT_EQ(with(0, kSymbols + 1), Verdict::kBadTable);
  EXPECT_EQ(with(8, kMajor - 1), Verdict::kBadTable);
  EXPECT_EQ(with(12, kNvcompChunkBytes / 2), Verdict::kBadTable);
  EXPECT_EQ(with(16, std::uint64_t{2}), Verdict::kBadTable);
  EXPECT_EQ(with(24, std::uint64_t{1} << 63), Verdict::kBadPadding);
  EXPECT_EQ(check(make_section(), 0), Verdict::kBadTable);
  EXPECT_EQ(check(make_section(), kSymbols, 5), Verdict::kBadTable);
}

TEST(NvcompSection, ASectionCutAnywhereIsABadTable) {
  const auto whole = make_section();
  for (std::size_t size = 0; size < whole.size(); ++size) {
    const std::vector<std::byte> cut(whole.begin(), whole.begin() + static_cast<long>(size));
    EXPECT_EQ(check(cut), Verdict::kBadTable) << size;
  }
  auto longer = whole;
  longer.push_back(std::byte{0});
  EXPECT_EQ(check(longer), Verdict::kBadTable);
}

TEST(NvcompSection, AnOffsetOrSizeThatLiesIsABadTable) {
  const auto whole = make_section();
  constexpr std::uint64_t kMost = std::numeric_limits<std::uint64_t>::max();
  for (std::uint64_t chunk = 0; chunk < 3; ++chunk) {
    const NvcompChunk place = read_nvcomp_chunk(chunk, whole.data());
    const std::size_t entry = nvcomp_table_bytes(chunk);
    for (const std::uint64_t lie : {std::uint64_t{0}, place.offset - 16, place.offset + 16,
                                    place.offset + 1, std::uint64_t{whole.size()}, kMost - 15}) {
      EXPECT_EQ(with(entry, lie), Verdict::kBadTable) << chunk << " at " << lie;
    }
    for (const std::uint64_t lie : {std::uint64_t{0}, place.bytes - 32, place.bytes + 32,
                                    std::uint64_t{whole.size()}, kMost, kMost - place.offset + 1}) {
      EXPECT_EQ(with(entry + 8, lie), Verdict::kBadTable) << chunk << " of " << lie;
    }
  }
}

TEST(NvcompSection, AGapThatIsNotZeroIsBadPadding) {
  auto section = make_section();
  const NvcompChunk first = read_nvcomp_chunk(0, section.data());
  const NvcompChunk second = read_nvcomp_chunk(1, section.data());
  for (std::uint64_t at = first.offset + first.bytes; at < second.offset; ++at) {
    section[at] = std::byte{1};
    EXPECT_EQ(check(section), Verdict::kBadPadding);
    section[at] = std::byte{0};
  }
}

TEST(NvcompSection, TheHostRefusesItsFramesAndMakesNone) {
  FrameParams params{.numel = 4096, .shard_key = 5};
  const std::vector<std::byte> src(8192);
  std::vector<BlockHash> hashes(8);
  std::vector<std::byte> frame(max_frame_bytes(params));
  std::vector<std::byte> scratch(host::encode_scratch_bytes(params));
  const EncodeResult made = host::encode(params, src, {}, hashes, frame, scratch, nullptr);
  frame.resize(made.frame_bytes);
  ASSERT_EQ(frame[wire::kFixedBytes + 9], std::byte{1});  // exponents are coded
  frame[wire::kFixedBytes + 9] = std::byte{2};
  FrameInfo info;
  EXPECT_EQ(host::check(params, frame, &info, nullptr), Verdict::kBadSections);
  params.coder = Coder::kNvcompAns;
  EXPECT_EQ(host::check(params, frame, &info, nullptr), Verdict::kBadSections);
  wire::FrameHeader header;
  EXPECT_EQ(wire::read_header(frame.data(), frame.size(), &header, Coder::kNvcompAns),
            Verdict::kOk);
  frame.resize(max_frame_bytes(params));
  EXPECT_THROW(host::encode(params, src, {}, hashes, frame, scratch, nullptr),
               std::invalid_argument);
}

}  // namespace
}  // namespace ciera::codec
