// Frames of the delta modes, made by the host, decoded by a backend: the host's words, the host's
// cache, the host's verdicts. Instantiated for the host too, which shows that the frames and what
// is expected of them are right where there is no GPU.
#include <gtest/gtest.h>

#include "codec/cuda/cuda_backend.hpp"
#include "codec/host/delta_values.hpp"
#include "codec/host/host_backend.hpp"
#include "codec/split.hpp"
#include "contract/backend_contract.hpp"

namespace ciera::testing {

GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(BackendContract);

namespace {

constexpr unsigned kSeed = 20261202;

// What a mode codes of a dtype.
struct Coded {
  ReuseMode mode;
  DType dtype;
};
constexpr Coded kCoded[] = {
    {ReuseMode::kExponentDelta, DType::kBf16}, {ReuseMode::kExponentDelta, DType::kFp16},
    {ReuseMode::kExponentDelta, DType::kFp32}, {ReuseMode::kWordDelta, DType::kBf16},
    {ReuseMode::kWordDelta, DType::kFp16},     {ReuseMode::kWordDelta, DType::kFp32},
    {ReuseMode::kWordDelta, DType::kOpaque8},  {ReuseMode::kWordDelta, DType::kOpaque16},
    {ReuseMode::kWordDelta, DType::kOpaque32}, {ReuseMode::kWordDelta, DType::kOpaque64},
};

// How many of 10000 values move, and how many of 100 of those by more than a unit.
struct Rate {
  unsigned moved;
  unsigned far;
};
constexpr Rate kRates[] = {{0, 0}, {3, 0}, {600, 5}, {3000, 2}, {3000, 60}, {10000, 10}};

std::uint64_t jump(std::mt19937_64& random, unsigned far) {
  const std::uint64_t sign = random() % 2 == 0 ? 1 : ~std::uint64_t{0};
  return sign * (random() % 100 < far ? random() >> (random() % 64) : 1);
}

Bytes first_words(DType dtype, std::uint64_t numel) {
  if (has_exponent(dtype)) {
    return make_words(dtype, numel, Shape::kWeights, kSeed);
  }
  std::mt19937_64 random(kSeed);
  Bytes words(numel * element_bytes(dtype));
  for (std::byte& byte : words) {
    byte = static_cast<std::byte>(random());
  }
  return words;
}

Bytes moved_words(const FrameParams& params, const Bytes& old, Rate rate, unsigned seed) {
  std::mt19937_64 random(kSeed + seed);
  Bytes now = old;
  const auto bits = static_cast<std::uint32_t>(8 * element_bytes(params.dtype));
  const std::uint32_t mantissa = params.dtype == DType::kBf16   ? codec::Bf16::kMantissaBits
                                 : params.dtype == DType::kFp16 ? codec::Fp16::kMantissaBits
                                                                : codec::Fp32::kMantissaBits;
  const std::uint32_t shift = params.mode == ReuseMode::kExponentDelta ? mantissa : 0;
  for (std::uint64_t i = 0; i < params.numel; ++i) {
    if (random() % 10000 < rate.moved) {
      const std::uint64_t word = codec::host::load_word(now.data(), bits, i);
      codec::host::store_word(now.data(), bits, i, word + (jump(random, rate.far) << shift));
    }
  }
  return now;
}

Bytes reference_of(const FrameParams& params, const Bytes& words) {
  Bytes reference(params.numel * codec::own_reference_bytes(params.mode, params.dtype));
  codec::host::store_reference(params, words, reference, nullptr);
  return reference;
}

Bytes encode_delta(const FrameParams& params, const Bytes& words, const Bytes& reference) {
  Bytes frame(codec::max_frame_bytes(params));
  Bytes scratch(codec::host::encode_scratch_bytes(params));
  const codec::host::OwnReference own{params.base_epoch == 0 ? std::span<const std::byte>()
                                                             : std::span(reference)};
  frame.resize(codec::host::encode(params, words, own, frame, scratch, nullptr).frame_bytes);
  return frame;
}

std::string describe(const FrameParams& params, Rate rate) {
  return std::string(name(params.mode)) + " " + std::string(name(params.dtype)) + " effort " +
         std::string(name(params.effort)) + " numel " + std::to_string(params.numel) + " block " +
         std::to_string(params.block_size) + " segment 2^" + std::to_string(params.segment_log2) +
         " moved " + std::to_string(rate.moved) + " far " + std::to_string(rate.far);
}

enum class Output { kOwn, kCache };  // dst is memory of its own, or the WordCache

class DeltaDecode : public ::testing::TestWithParam<BackendFactory> {
 protected:
  void SetUp() override {
    backend_ = GetParam()();
    if (backend_ == nullptr) {
      GTEST_SKIP() << "no usable GPU here";
    }
  }

  // `offset`: of dst from an aligned address. Returns the verdict.
  Verdict expect_same(const FrameParams& params, const Bytes& frame, const Bytes& before,
                      std::size_t offset = 0, Output output = Output::kOwn) {
    const HostDecoded host = host_decode(params, frame, before);
    const Placed input(*backend_, frame);
    const Placed cache(*backend_, before);
    const Bytes untouched(params.numel * element_bytes(params.dtype), std::byte{0xDD});
    const Placed own(*backend_, untouched, offset);
    codec::DecodeJob job{.expected = params, .frame = input.span()};
    job.exponents = cache.span();
    job.dst = output == Output::kOwn ? own.span() : cache.span();
    backend_->start_decode({&job, 1});
    backend_->finish_decode({&job, 1});
    EXPECT_EQ(name(job.verdict), name(host.verdict));
    if (host.verdict == Verdict::kOk) {
      codec::FrameInfo info;
      EXPECT_EQ(codec::host::check(params, frame, &info, nullptr), Verdict::kOk);
      EXPECT_EQ(job.info.kind, info.kind);
      EXPECT_EQ(job.info.changed_blocks, info.changed_blocks);
      EXPECT_TRUE(cache.read() == host.exponents);
      EXPECT_TRUE(output == Output::kCache || own.read() == host.words);
    } else if (host.verdict != Verdict::kBadStream) {  // that one may come out while decoding
      EXPECT_TRUE(cache.read() == before);
      EXPECT_TRUE(own.read() == untouched);
    }
    return job.verdict;
  }

  // A step of that rate; its frame, which is compared.
  Bytes run_step(FrameParams params, Rate rate, std::size_t offset = 0,
                 Output output = Output::kOwn) {
    SCOPED_TRACE(describe(params, rate));
    const Bytes old = first_words(params.dtype, params.numel);
    const Bytes now = moved_words(params, old, rate, rate.moved);
    const Bytes reference = reference_of(params, old);
    const Bytes frame = encode_delta(params, now, reference);
    EXPECT_EQ(expect_same(params, frame, reference, offset, output), Verdict::kOk);
    ++kinds_[static_cast<std::size_t>(frame[5])];
    return frame;
  }

  std::unique_ptr<CodecBackend> backend_;
  int kinds_[4] = {};
};

FrameParams delta_params(const Coded& coded, std::uint64_t numel, Effort effort) {
  return {.mode = coded.mode,
          .dtype = coded.dtype,
          .block_size = 64,
          .numel = numel,
          .shard_key = 9,
          .base_epoch = 3,
          .base_digest = 77,
          .segment_log2 = 10,
          .effort = effort};
}

TEST_P(DeltaDecode, StepsOfEverySizeModeAndDtypeAreTheHosts) {
  // around a quad, a group, blocks; more than one segment of quads and of values; whole segments
  unsigned turn = 0;
  for (const std::uint64_t numel :
       {0U, 1U, 7U, 8U, 9U, 511U, 512U, 513U, 4095U, 4096U, 4097U, 16385U, 131072U}) {
    for (const Coded& coded : kCoded) {
      for (const Effort effort : {Effort::kDefault, Effort::kHigh}) {
        for (unsigned i = 0; i < 3 && !HasFailure(); ++i) {
          run_step(delta_params(coded, numel, effort), kRates[turn++ % std::size(kRates)]);
        }
      }
    }
  }
  for (const auto kind :
       {codec::FrameKind::kRaw, codec::FrameKind::kDelta, codec::FrameKind::kSame}) {
    EXPECT_GT(kinds_[static_cast<std::size_t>(kind)], 0);
  }
}

TEST_P(DeltaDecode, StepsOfEveryBlockAndSegmentSizeAreTheHosts) {
  // A block of 8; not a power of two, shorter and longer than a step of quads; longer than the
  // shard.
  unsigned turn = 0;
  for (const std::uint32_t block_size : {8U, 24U, 136U, 512U, 4096U, 10008U, 65536U}) {
    for (const std::uint32_t segment_log2 : {10U, 13U, 20U}) {
      for (const Coded& coded : kCoded) {
        for (const Effort effort : {Effort::kDefault, Effort::kHigh}) {
          FrameParams params = delta_params(coded, 50003 + turn % 4, effort);
          params.block_size = block_size;
          params.segment_log2 = segment_log2;
          run_step(params, kRates[turn++ % std::size(kRates)]);
          if (HasFailure()) {
            return;
          }
        }
      }
    }
  }
}

TEST_P(DeltaDecode, LargeShardsOfEveryRateAreTheHosts) {
  for (const Effort effort : {Effort::kDefault, Effort::kHigh}) {
    for (const Rate rate : kRates) {
      FrameParams params =
          delta_params({ReuseMode::kWordDelta, DType::kBf16}, (1U << 20) + 3, effort);
      params.block_size = 512;
      params.segment_log2 = 11;
      run_step(params, rate);
    }
  }
}

TEST_P(DeltaDecode, OutputsOfEveryAlignmentAndTheCacheItselfAreTheHosts) {
  for (const Coded& coded : kCoded) {
    for (const Effort effort : {Effort::kDefault, Effort::kHigh}) {
      for (const Rate rate : kRates) {
        const FrameParams params = delta_params(coded, 20011, effort);
        for (const std::size_t elements : {1U, 2U, 3U}) {
          run_step(params, rate, elements * element_bytes(coded.dtype));
        }
        if (coded.mode == ReuseMode::kWordDelta) {
          run_step(params, rate, 0, Output::kCache);
        }
      }
    }
  }
}

TEST_P(DeltaDecode, FramesWithoutAReferenceFillTheCache) {
  for (const Coded& coded : kCoded) {
    for (const std::uint64_t numel : {1U, 1003U, 30001U}) {
      FrameParams params = delta_params(coded, numel, Effort::kDefault);
      params.base_epoch = params.base_digest = 0;
      const Bytes words = first_words(coded.dtype, numel);
      const Bytes frame = encode_delta(params, words, {});
      const Bytes before(reference_of(params, words).size(), std::byte{5});
      SCOPED_TRACE(describe(params, {}));
      EXPECT_EQ(expect_same(params, frame, before), Verdict::kOk);
      EXPECT_EQ(expect_same(params, frame, before, element_bytes(coded.dtype)), Verdict::kOk);
      if (coded.mode == ReuseMode::kWordDelta) {
        EXPECT_EQ(expect_same(params, frame, before, 0, Output::kCache), Verdict::kOk);
      }
    }
  }
}

TEST_P(DeltaDecode, ChangesThatAreStoredAreTheHosts) {
  for (const Coded& coded : kCoded) {
    FrameParams params = delta_params(coded, 20003, Effort::kDefault);
    params.coder = Coder::kRaw;
    for (const Rate rate : {kRates[0], kRates[1]}) {
      run_step(params, rate);
      run_step(params, rate, element_bytes(coded.dtype));
    }
  }
  EXPECT_GT(kinds_[2], 0);
}

TEST_P(DeltaDecode, JobsOfOneCallDoNotDisturbEachOther) {
  std::vector<codec::DecodeJob> jobs;
  std::vector<std::unique_ptr<Placed>> placed;
  std::vector<HostDecoded> host;
  const auto place = [&](const Bytes& content) {
    placed.push_back(std::make_unique<Placed>(*backend_, content));
    return placed.back()->span();
  };
  for (const Coded& coded : kCoded) {
    const Effort effort = jobs.size() % 2 == 0 ? Effort::kDefault : Effort::kHigh;
    const FrameParams params = delta_params(coded, 9000 + 1000 * jobs.size(), effort);
    const Bytes old = first_words(coded.dtype, params.numel);
    const Bytes reference = reference_of(params, old);
    const Bytes frame = encode_delta(params, moved_words(params, old, kRates[2], 1), reference);
    host.push_back(host_decode(params, frame, reference));
    jobs.push_back({.expected = params, .frame = place(frame)});
    jobs.back().exponents = place(reference);
    jobs.back().dst = place(Bytes(old.size()));
  }
  backend_->start_decode(jobs);
  backend_->finish_decode(jobs);
  for (std::size_t i = 0; i < jobs.size(); ++i) {
    EXPECT_EQ(jobs[i].verdict, Verdict::kOk);
    EXPECT_TRUE(placed[3 * i + 1]->read() == host[i].exponents) << i;
    EXPECT_TRUE(placed[3 * i + 2]->read() == host[i].words) << i;
  }
}

void make_checksum_right(Bytes& frame) {
  const std::uint64_t checksum = codec::host::frame_checksum(frame, nullptr);
  std::memcpy(frame.data() + wire::kChecksumOffset, &checksum, sizeof checksum);
}

TEST_P(DeltaDecode, DamagedFramesGetTheHostsVerdicts) {
  std::mt19937_64 random(kSeed);
  int verdicts[32] = {};
  for (const Coded& coded : kCoded) {
    for (const Effort effort : {Effort::kDefault, Effort::kHigh}) {
      FrameParams params = delta_params(coded, 12007, effort);
      const Bytes old = first_words(coded.dtype, params.numel);
      const Bytes reference = reference_of(params, old);
      const Bytes good = encode_delta(params, moved_words(params, old, kRates[2], 1), reference);
      wire::FrameHeader header;
      ASSERT_EQ(wire::read_header(good.data(), good.size(), &header), Verdict::kOk);
      ASSERT_EQ(header.last().coder, Coder::kRans);
      const std::size_t section = header.last().offset;
      for (int i = 0; i < 120 && !HasFailure(); ++i) {
        SCOPED_TRACE(describe(params, kRates[2]) + " damage " + std::to_string(i));
        Bytes frame = good;
        // In turn anywhere, in the header, at the beginning of the section, and in its tables.
        const std::size_t from = i % 4 < 2 ? 0 : section;
        const std::size_t size = i % 4 == 0   ? frame.size()
                                 : i % 4 == 1 ? 96
                                 : i % 4 == 2 ? std::min<std::size_t>(16, frame.size() - section)
                                              : std::min<std::size_t>(300, frame.size() - section);
        frame[from + random() % size] ^= std::byte{1} << (random() % 8);
        make_checksum_right(frame);
        ++verdicts[static_cast<int>(expect_same(params, frame, reference))];
      }
    }
  }
  for (const Verdict verdict : {Verdict::kOk, Verdict::kBadSections, Verdict::kBadTable,
                                Verdict::kBadPadding, Verdict::kBadStream}) {
    EXPECT_GT(verdicts[static_cast<int>(verdict)], 0) << name(verdict);
  }
}

INSTANTIATE_TEST_SUITE_P(Host, DeltaDecode, ::testing::Values(BackendFactory([] {
                           return codec::host::make_host_backend(1);
                         })));
INSTANTIATE_TEST_SUITE_P(Cuda, DeltaDecode, ::testing::Values(BackendFactory([] {
                           return codec::cuda::cuda_support().available
                                      ? codec::cuda::make_cuda_backend(0)
                                      : nullptr;
                         })));

}  // namespace
}  // namespace ciera::testing
