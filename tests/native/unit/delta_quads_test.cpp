// Quads in registers and the shares of decoding tables: what a GPU's lanes do, against the model as
// it is written down.
#include "codec/delta_quads.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "codec/rans_table.hpp"

namespace ciera::codec {
namespace {

constexpr unsigned kSeed = 20261203;

template <class Kind>
class DeltaQuadOf : public ::testing::Test {};
using Kinds = ::testing::Types<ExponentByte, FloatWord<Bf16>, FloatWord<Fp16>, FloatWord<Fp32>,
                               OpaqueWord<std::uint8_t>, OpaqueWord<std::uint16_t>,
                               OpaqueWord<std::uint32_t>, OpaqueWord<std::uint64_t>>;
TYPED_TEST_SUITE(DeltaQuadOf, Kinds);

TYPED_TEST(DeltaQuadOf, MovesAsEachOfItsWordsDoes) {
  using Word = typename TypeParam::Word;
  std::mt19937_64 random(kSeed);
  constexpr Word kTop = static_cast<Word>(Word{1} << (kWordBits<TypeParam> - 1));
  const Word edges[] = {0,
                        1,
                        static_cast<Word>(~Word{0}),
                        static_cast<Word>(~Word{0} - 1),
                        kTop,
                        static_cast<Word>(kTop - 1),
                        static_cast<Word>(kTop + 1)};
  for (int round = 0; round < 20000; ++round) {
    Quad<TypeParam> quad{};
    for (std::uint32_t i = 0; i < 4; ++i) {
      const auto word = random() % 2 == 0 ? static_cast<Word>(random()) : edges[random() % 7];
      quad.set(i, word);
      EXPECT_EQ(quad.get(i), word);
    }
    const auto moves = static_cast<std::uint32_t>(random() & 0x03030303U);
    const Quad<TypeParam> moved = move_quad(quad, moves);
    for (std::uint32_t i = 0; i < 4; ++i) {
      const std::uint32_t t = moves >> (8 * i) & 3;
      const Word u = static_cast<Word>(t == kEscape ? 0 : t);
      EXPECT_EQ(moved.get(i), apply_difference<TypeParam>(quad.get(i), u));
    }
  }
}

TYPED_TEST(DeltaQuadOf, OrdersItsLevelsAndWhatFillsIt) {
  using Word = typename TypeParam::Word;
  std::mt19937_64 random(kSeed);
  for (int round = 0; round < 40000; ++round) {
    const std::uint32_t count = round % 8 == 0 ? 1 + round / 8 % 4 : 4;
    Quad<TypeParam> quad{};
    std::uint8_t levels[4] = {kFillLevel, kFillLevel, kFillLevel, kFillLevel};
    const Word base = static_cast<Word>(random());
    for (std::uint32_t i = 0; i < count; ++i) {
      // Any levels; few different ones; the highest and the lowest.
      const auto drawn = static_cast<Word>(random());
      const auto word = static_cast<Word>(round % 3 == 0   ? drawn
                                          : round % 3 == 1 ? base ^ (drawn & (base >> 1))
                                          : drawn % 2 == 0 ? 0
                                                           : ~Word{0});
      quad.set(i, word);
      levels[i] = TypeParam::level(word);
    }
    const QuadOrder order = order_quad<TypeParam>(
        count == 4 && round % 2 == 0 ? levels_of(quad) : levels_of(quad, count));
    EXPECT_EQ(order.least, *std::min_element(levels, levels + count));
    const auto symbol = static_cast<std::uint32_t>(random() % 256);
    const std::uint32_t moves = quad_moves(symbol, order.places);
    std::uint32_t escapes = 0;
    for (std::uint32_t i = 0; i < 4; ++i) {
      const std::uint32_t rank = quad_rank(levels, i);
      EXPECT_EQ(order.places >> (4 * i) & 15, rank);
      EXPECT_EQ(moves >> (8 * i) & 0xFF, symbol >> (2 * rank) & 3);
      escapes |= (symbol >> (2 * rank) & 3) == kEscape ? 1U << i : 0;
    }
    EXPECT_EQ(quad_escapes(moves), escapes);
  }
}

TEST(DeltaQuads, AnEstimatedQuotientIsThatOfADivision) {
  std::mt19937_64 random(kSeed);
  for (int round = 0; round < 300000; ++round) {
    const std::uint64_t d = 1 + (random() >> (16 + random() % 47));
    const std::uint64_t most = std::min<std::uint64_t>((std::uint64_t{1} << 60) / d, 1ULL << 33);
    const std::uint64_t quotient = random() % (most + 1);
    const std::uint64_t n = quotient * d + (round % 3 == 0   ? 0
                                            : round % 3 == 1 ? d - 1
                                                             : random() % d);
    ASSERT_EQ(divide_by_estimate(n, d), n / d) << n << " / " << d;
  }
}

// What a block of threads does for a quad context, one symbol after the other.
void frequencies_by_symbol(const QuadModel& model, std::uint32_t prob_bits,
                           std::uint32_t (&frequencies)[256]) {
  std::int32_t scores[256];
  std::int32_t least = kImpossible;
  for (std::uint32_t b = 0; b < 256; ++b) {
    scores[b] = half_score(model, 0, b & 15) + half_score(model, 1, b >> 4) + moved_score(model, b);
    least = std::min(least, scores[b]);
  }
  const auto weight = [&](std::uint32_t b) {
    return weight_of_score(static_cast<std::uint32_t>(scores[b] - least));
  };
  std::uint64_t sum = 0;
  for (std::uint32_t b = 0; b < 256; ++b) {
    sum += weight(b);
  }
  std::uint64_t rare = 0;
  for (std::uint32_t b = 0; b < 256; ++b) {
    rare += is_rare_quad(b, weight(b), sum, prob_bits) ? weight(b) : 0;
  }
  const std::uint64_t mark = rare == 0 ? 1 : rare;
  const auto share = [&](std::uint64_t part) {
    return frequency_share(part, sum - rare + mark, prob_bits);
  };
  std::uint32_t all = 0;
  for (std::uint32_t b = 0; b < 256; ++b) {
    frequencies[b] = b == kMark                                   ? share(mark)
                     : is_rare_quad(b, weight(b), sum, prob_bits) ? 0
                                                                  : share(weight(b));
    all += frequencies[b];
  }
  const auto largest = [&] { return std::ranges::max_element(frequencies); };
  if (all < 1U << prob_bits) {
    *largest() += (1U << prob_bits) - all;
  }
  for (; all > 1U << prob_bits; --all) {
    --*largest();
  }
}

TEST(DeltaQuads, FrequenciesSymbolBySymbolAreThoseOfTheModel) {
  std::mt19937_64 random(kSeed);
  for (int round = 0; round < 3000; ++round) {
    QuadModel model;
    for (std::int8_t& parameter : model.parameters) {
      parameter = static_cast<std::int8_t>(random() % 7 == 0   ? 127
                                           : random() % 2 == 0 ? random() % 60
                                                               : random());
    }
    for (const std::uint32_t prob_bits : {8U, 11U, 12U}) {
      std::uint32_t expected[256];
      std::uint32_t found[256];
      quad_frequencies(model, prob_bits, expected);
      frequencies_by_symbol(model, prob_bits, found);
      ASSERT_TRUE(std::ranges::equal(expected, found)) << round;
    }
  }
}

}  // namespace
}  // namespace ciera::codec
