// The section coder: implementations agree, threads do not matter, damaged sections get a verdict.
#include "codec/host/rans.hpp"

#include <gtest/gtest.h>

#include <random>
#include <vector>

#include "codec/rans_table.hpp"
#include "every_isa.hpp"
#include "exec/thread_pool.hpp"

namespace ciera::codec::host {
namespace {

// Symbols with the shape of exponents (a few frequent ones), one symbol only, or all alike likely.
std::vector<std::uint8_t> symbols(std::size_t count, int shape) {
  std::mt19937 random(static_cast<unsigned>(count) + 7);
  std::vector<std::uint8_t> drawn(count);
  for (auto& symbol : drawn) {
    const auto bits = static_cast<unsigned>(random());
    symbol = static_cast<std::uint8_t>(shape == 0   ? 120 - __builtin_ctz(bits | 1U << 20)
                                       : shape == 1 ? 77
                                                    : bits >> 8);
  }
  return drawn;
}

struct Coded {
  std::vector<std::byte> bytes;
};

Coded encode(std::span<const std::uint8_t> input, Isa isa, ThreadPool* pool) {
  Coded coded{std::vector<std::byte>(2 * input.size() + 4096)};
  std::vector<std::byte> scratch(rans_scratch_bytes(input.size(), kRansSegmentLog2));
  coded.bytes.resize(rans_encode(input, kRansSegmentLog2, coded.bytes, scratch, pool, isa));
  return coded;
}

// Partial and full steps of 32 lanes; the vector decoder's hand-over near the end; several
// segments, the last one short.
const std::size_t kCounts[] = {1, 31, 32, 33, 64, 1000, 65536, 65537, 200003};

TEST(Rans, ScalarAndVectorWriteTheSameBytesAndReadEachOther) {
  for (const std::size_t count : kCounts) {
    for (int shape = 0; shape < 3; ++shape) {
      const auto input = symbols(count, shape);
      const Coded scalar = encode(input, Isa::kScalar, nullptr);
      ASSERT_EQ(rans_check(scalar.bytes, count), Verdict::kOk);
      for (const Isa isa : every_isa()) {
        ASSERT_EQ(scalar.bytes, encode(input, isa, nullptr).bytes) << count << " " << shape;
        std::vector<std::uint8_t> output(count);
        ASSERT_EQ(rans_decode(scalar.bytes, output, nullptr, isa), Verdict::kOk);
        ASSERT_EQ(output, input);
      }
    }
  }
}

TEST(Rans, BytesDoNotDependOnTheNumberOfThreads) {
  ThreadPool pool(3);
  const auto input = symbols(400001, 0);
  const Coded coded = encode(input, best_isa(), &pool);
  EXPECT_EQ(coded.bytes, encode(input, best_isa(), nullptr).bytes);
  std::vector<std::uint8_t> output(input.size());
  EXPECT_EQ(rans_decode(coded.bytes, output, &pool), Verdict::kOk);
  EXPECT_EQ(output, input);
}

TEST(Rans, SymbolsOfEqualLikelihoodDoNotShrink) {
  const auto input = symbols(5000, 2);
  std::vector<std::byte> out(input.size());
  std::vector<std::byte> scratch(rans_scratch_bytes(input.size(), kRansSegmentLog2));
  EXPECT_EQ(rans_encode(input, kRansSegmentLog2, out, scratch, nullptr), 0U);
}

TEST(Rans, DamagedSectionsNeverReadOrWriteOutside) {
  // No checksum protects a bare section: any verdict will do, and so does ok. The sanitizers watch.
  const auto input = symbols(3000, 0);
  const Coded coded = encode(input, best_isa(), nullptr);
  std::vector<std::uint8_t> output(input.size());
  for (std::size_t size = 0; size < coded.bytes.size(); ++size) {
    EXPECT_NE(rans_check(std::span(coded.bytes).first(size), input.size()), Verdict::kOk);
  }
  for (std::size_t bit = 0; bit < 8 * coded.bytes.size(); ++bit) {
    auto damaged = coded.bytes;
    damaged[bit / 8] ^= std::byte{1} << (bit % 8);
    for (const Isa isa : every_isa()) {
      rans_decode(damaged, output, nullptr, isa);
    }
  }
}

TEST(Rans, TheTwoImplementationsGiveTheSameVerdictOnDamage) {
  const auto input = symbols(2500, 0);
  const Coded coded = encode(input, best_isa(), nullptr);
  std::vector<std::uint8_t> first(input.size());
  std::vector<std::uint8_t> second(input.size());
  for (std::size_t at = 0; at < coded.bytes.size(); ++at) {
    auto damaged = coded.bytes;
    damaged[at] ^= std::byte{0x55};
    EXPECT_EQ(rans_decode(damaged, first, nullptr, Isa::kScalar),
              rans_decode(damaged, second, nullptr, best_isa()))
        << at;
  }
}

}  // namespace
}  // namespace ciera::codec::host
