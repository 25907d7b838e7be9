// The delta modes: implementations, threads and alignment give the same frame, and every frame is
// within its bound. What frames hold is compared with the NumPy reference in tests/reference.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <vector>

#include "codec/delta_model.hpp"
#include "codec/host/delta_host.hpp"
#include "codec/host/delta_values.hpp"
#include "codec/host/frame_codec.hpp"
#include "every_isa.hpp"
#include "exec/thread_pool.hpp"

namespace ciera::codec::host {
namespace {

constexpr unsigned kSeed = 20261201;

using Form = std::tuple<ReuseMode, DType, Effort>;

// Words of many magnitudes; `moved` of a thousand move, one in `far` of those far.
std::vector<std::byte> step(DType dtype, std::span<const std::byte> old, unsigned moved,
                            unsigned far, unsigned seed) {
  std::mt19937_64 random(kSeed + seed);
  std::vector<std::byte> now(old.begin(), old.end());
  const auto bits = static_cast<std::uint32_t>(8 * element_bytes(dtype));
  for (std::uint64_t i = 0; i < old.size() / element_bytes(dtype); ++i) {
    if (random() % 1000 < moved) {
      const std::uint64_t by = random() % far == 0 ? random() : random() % 5 - 2;
      store_word(now.data(), bits, i, load_word(now.data(), bits, i) + by);
    }
  }
  return now;
}

std::vector<std::byte> random_bytes(std::size_t size, unsigned seed) {
  std::mt19937_64 random(kSeed + seed);
  std::vector<std::byte> bytes(size);
  for (auto& byte : bytes) {
    byte = static_cast<std::byte>(random());
  }
  return bytes;
}

struct Ends {
  explicit Ends(const FrameParams& params)
      : own(params.numel * own_reference_bytes(params.mode, params.dtype)),
        cache(params.numel * reference_bytes(params.mode, params.dtype)) {}
  std::vector<std::byte> own;
  std::vector<std::byte> cache;
};

std::vector<std::byte> encode_frame(const FrameParams& params, std::span<const std::byte> src,
                                    const Ends& ends, ThreadPool* pool) {
  std::vector<std::byte> frame(max_frame_bytes(params));
  std::vector<std::byte> scratch(encode_scratch_bytes(params));
  const auto result = encode(params, src, OwnReference{ends.own}, frame, scratch, pool);
  frame.resize(result.frame_bytes);
  return frame;
}

class EveryForm : public ::testing::TestWithParam<Form> {
 protected:
  FrameParams params(std::uint64_t numel) const {
    const auto [mode, dtype, effort] = GetParam();
    return {.mode = mode, .dtype = dtype, .block_size = 64, .numel = numel, .effort = effort};
  }

  // Sends `src` to the other end, over unaligned memory, and takes it as the new reference.
  FrameKind exchange(FrameParams& params, std::span<const std::byte> src, Ends& ends) {
    ThreadPool pool(3);
    std::vector<std::byte> shifted(src.size() + 1);
    std::ranges::copy(src, shifted.begin() + 1);
    const auto frame = encode_frame(params, std::span(shifted).subspan(1), ends, &pool);
    EXPECT_EQ(frame, encode_frame(params, src, ends, nullptr));
    EXPECT_LE(frame.size(), src.size() + 80);
    FrameInfo info;
    EXPECT_EQ(check(params, frame, &info, &pool), Verdict::kOk);
    std::vector<std::byte> scratch(decode_scratch_bytes(params));
    const auto dst = std::span(shifted).subspan(1);
    std::ranges::fill(shifted, std::byte{0});
    EXPECT_EQ(decode(params, frame, ends.cache, dst, scratch, &pool), Verdict::kOk);
    EXPECT_TRUE(std::ranges::equal(dst, src));
    store_reference(params, src, ends.own, &pool);
    EXPECT_EQ(ends.own, ends.cache);
    ++params.base_epoch;
    params.base_digest = info.checksum;
    return info.kind;
  }
};

TEST_P(EveryForm, StepsOfEveryKindTravelBitForBit) {
  // several segments of 2^10 items with a short last block and quad; one value; none
  for (const std::uint64_t numel : {70003U, 4096U, 9U, 1U, 0U}) {
    FrameParams frame = params(numel);
    frame.segment_log2 = 10;
    Ends ends(frame);
    auto words = random_bytes(numel * element_bytes(frame.dtype), 1);
    EXPECT_NE(exchange(frame, words, ends), FrameKind::kDelta);
    for (const auto& [moved, far] : {std::pair{300U, 50U}, {5U, 1000U}, {0U, 1U}, {1000U, 1U}}) {
      words = step(frame.dtype, words, moved, far, moved);
      const FrameKind kind = exchange(frame, words, ends);
      if (numel > 4000 && (moved == 300 || moved == 5)) {
        EXPECT_EQ(kind, FrameKind::kDelta) << numel << " " << moved;
      }
      if (moved == 0 && frame.mode == ReuseMode::kWordDelta) {
        EXPECT_EQ(kind, FrameKind::kSame);
      }
    }
  }
}

// Runs of two quads, and runs of whole tiles over several segments with an odd end.
TEST_P(EveryForm, VectorsWriteAndReadWhatTheScalarCoderDoes) {
  ThreadPool pool(3);
  for (const auto& [numel, block_size, apart] :
       {std::tuple{9000U, 8U, 3U}, {40021U, 512U, 7U}, {20000U, 64U, 1U}, {67U, 8U, 1U}}) {
    FrameParams frame = params(numel);
    frame.block_size = block_size;
    frame.segment_log2 = 10;
    const std::uint32_t width = value_kernels(frame.mode, frame.dtype).word_bits / 8;
    const auto old = random_bytes(std::size_t{numel} * width, 1);
    const DType as_words = frame.mode == ReuseMode::kExponentDelta ? DType::kOpaque8 : frame.dtype;
    const auto now = step(as_words, old, 400, 7, 3);
    std::vector<std::uint64_t> blocks;
    ChangedBlocks changed;
    auto expected = old;
    for (std::uint64_t b = 0; b < block_count(numel, block_size); ++b) {
      if (b % apart != 1) {
        blocks.push_back(b);
        const std::uint64_t count = std::min<std::uint64_t>(block_size, numel - b * block_size);
        changed.values += count;
        std::memcpy(expected.data() + b * block_size * width, now.data() + b * block_size * width,
                    count * width);
      }
    }
    changed.blocks = blocks;
    std::vector<std::byte> scratch(delta_encode_scratch_bytes(frame));
    std::vector<std::byte> coded(1 << 20);
    coded.resize(delta_encode(frame, changed, old.data(), now.data(), coded, scratch, nullptr,
                              Isa::kScalar));
    ASSERT_FALSE(coded.empty());
    std::vector<std::byte> room(delta_decode_scratch_bytes(frame));
    for (const Isa isa : every_isa()) {
      std::vector<std::byte> again(1 << 20);
      again.resize(
          delta_encode(frame, changed, old.data(), now.data(), again, scratch, &pool, isa));
      ASSERT_EQ(coded, again) << numel << " " << static_cast<int>(isa);
      ASSERT_EQ(delta_check(frame, coded, changed.values), Verdict::kOk);
      auto values = old;
      std::vector<std::byte> copy(old.size());
      for (const std::span<std::byte> dst : {std::span<std::byte>(), std::span(copy)}) {
        values = old;
        ASSERT_EQ(delta_decode(frame, coded, changed, values.data(), dst, room, &pool, isa),
                  Verdict::kOk);
        EXPECT_EQ(values, expected) << numel << " " << static_cast<int>(isa);
      }
      EXPECT_EQ(copy, expected) << numel << " " << static_cast<int>(isa);
    }
  }
}

std::vector<Form> forms() {
  std::vector<Form> all;
  for (const Effort effort : {Effort::kDefault, Effort::kHigh}) {
    for (const DType dtype : {DType::kBf16, DType::kFp16, DType::kFp32}) {
      all.emplace_back(ReuseMode::kExponentDelta, dtype, effort);
      all.emplace_back(ReuseMode::kWordDelta, dtype, effort);
    }
    for (const DType dtype :
         {DType::kOpaque8, DType::kOpaque16, DType::kOpaque32, DType::kOpaque64}) {
      all.emplace_back(ReuseMode::kWordDelta, dtype, effort);
    }
  }
  return all;
}
INSTANTIATE_TEST_SUITE_P(Forms, EveryForm, ::testing::ValuesIn(forms()));

TEST(DeltaModel, OrderedWordsKeepTheOrderOfFloatsAndComeBack) {
  std::uint16_t last = 0;
  for (std::uint32_t i = 0; i < 65536; ++i) {
    const auto ordered = static_cast<std::uint16_t>(i);
    const std::uint16_t word = from_ordered<FloatWord<Bf16>>(ordered);
    ASSERT_EQ(to_ordered<FloatWord<Bf16>>(word), ordered);
    ASSERT_EQ(apply_difference<FloatWord<Bf16>>(last, difference<FloatWord<Bf16>>(last, word)),
              word);
    last = word;
  }
  EXPECT_LT(to_ordered<FloatWord<Bf16>>(0xBF80), to_ordered<FloatWord<Bf16>>(0x8000));
  EXPECT_EQ(difference<FloatWord<Bf16>>(0x8000, 0), 2);  // from -0 one up to +0
}

TEST(DeltaModel, ValueSymbolsAreBelowTheirLimitAndComeBack) {
  for (std::uint32_t bits = 1; bits <= 64; ++bits) {
    for (const std::uint64_t low : {0ULL, 1ULL, 0x5555555555555555ULL, ~0ULL}) {
      const std::uint64_t top = 1ULL << (bits - 1);
      const std::uint64_t u = top | (low & (top - 1));
      const ValueSymbol coded = value_symbol(u);
      const std::uint64_t extra = u & ((1ULL << coded.extra_bits) - 1);
      EXPECT_EQ(value_of(coded.symbol, extra), u);
      EXPECT_EQ(extra_bits_of(coded.symbol), coded.extra_bits);
      EXPECT_LT(coded.symbol, value_symbols(std::max(bits, 4U)));
      EXPECT_LE(coded.extra_bits, kRawBits * raw_steps(std::max(bits, 8U)));
    }
  }
}

TEST(DeltaModel, AnyParametersGiveFrequenciesThatFillTheRange) {
  std::mt19937_64 random(kSeed);
  for (int round = 0; round < 300; ++round) {
    QuadModel model;
    for (std::int8_t& parameter : model.parameters) {
      parameter = static_cast<std::int8_t>(random() % 3 == 0 ? 127 : random());
    }
    for (const std::uint32_t prob_bits : {8U, 11U, 12U}) {
      std::uint32_t frequencies[256];
      quad_frequencies(model, prob_bits, frequencies);
      std::uint32_t sum = 0;
      for (const std::uint32_t frequency : frequencies) {
        sum += frequency;
      }
      EXPECT_EQ(sum, 1U << prob_bits);
      EXPECT_GE(frequencies[kMark], 1U);
    }
  }
}

}  // namespace
}  // namespace ciera::codec::host
