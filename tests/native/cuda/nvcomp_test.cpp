// Coder nvcomp-ans on a GPU, with the libnvcomp of this machine.
#include "ciera/nvcomp.hpp"

#include <gtest/gtest.h>

#include "codec/cuda/cuda_backend.hpp"
#include "codec/nvcomp_section.hpp"
#include "contract/backend_contract.hpp"
#include "pipeline/ranks.hpp"

namespace ciera::testing {
namespace {

std::string why_not() {
  const auto gpu = codec::cuda::cuda_support();
  const NvcompSupport library = nvcomp_support();
  return !gpu.available ? gpu.detail : !library.available ? library.detail : "";
}

std::unique_ptr<CodecBackend> make_backend() {
  return why_not().empty() ? codec::cuda::make_cuda_backend(0, Coder::kNvcompAns) : nullptr;
}

// A backend that has nvCOMP treats every other coder as one that has not.
INSTANTIATE_TEST_SUITE_P(CudaWithNvcomp, BackendContract, ::testing::Values(&make_backend));

struct Encoded {
  Bytes frame;
  Bytes hashes;
  codec::EncodeResult result;
  wire::FrameHeader header;
};

class NvcompOnGpu : public ::testing::Test {
 protected:
  void SetUp() override {
    if (const std::string reason = why_not(); !reason.empty()) {
      GTEST_SKIP() << reason;
    }
    backend_ = make_backend();
  }

  Encoded encode(const FrameParams& params, const Bytes& words, const Bytes& old_hashes) {
    const bool stateful = params.mode == ReuseMode::kExponentBlock;
    const std::uint64_t blocks = codec::block_count(params.numel, params.block_size);
    const Placed src(*backend_, words);
    const Placed old(*backend_, old_hashes);
    const Placed hashes(*backend_, Bytes(stateful ? blocks * sizeof(BlockHash) : 0));
    const Placed frame(*backend_, Bytes(codec::max_frame_bytes(params), std::byte{0xEE}));
    codec::EncodeJob job{.params = params, .src = src.span()};
    job.old_hashes = params.base_epoch == 0 ? std::span<std::byte>() : old.span();
    job.new_hashes = hashes.span();
    job.frame = frame.span();
    backend_->encode({&job, 1});
    Encoded made{frame.read(), hashes.read(), job.result, {}};
    made.frame.resize(job.result.frame_bytes);
    EXPECT_EQ(codec::host::frame_checksum(made.frame, nullptr), job.result.checksum);
    EXPECT_EQ(
        wire::read_header(made.frame.data(), made.frame.size(), &made.header, Coder::kNvcompAns),
        Verdict::kOk);
    return made;
  }

  // The words, when the frame is good; `exponents` becomes the cache after it.
  Verdict decode(const FrameParams& params, const Bytes& frame, Bytes& exponents, Bytes& words) {
    const Placed input(*backend_, frame);
    const Placed cache(*backend_, exponents);
    const Placed dst(*backend_, words);
    codec::DecodeJob job{.expected = params, .frame = input.span()};
    job.exponents = cache.span();
    job.dst = dst.span();
    backend_->start_decode({&job, 1});
    backend_->finish_decode({&job, 1});
    exponents = cache.read();
    words = dst.read();
    return job.verdict;
  }

  static Bytes exponents_of(FrameParams params, const Bytes& words) {
    params.coder = Coder::kRans;
    params.base_epoch = 0;
    params.base_digest = 0;
    const bool stateful = params.mode == ReuseMode::kExponentBlock;
    const HostFrame key = host_encode(params, words, {});
    return host_decode(params, key.frame, Bytes(stateful ? params.numel : 0)).exponents;
  }

  // A key frame and two delta frames of one shard; the header of each.
  std::vector<wire::FrameHeader> run_steps(FrameParams params, Shape shape) {
    SCOPED_TRACE(std::string(name(params.mode)) + " " + std::string(name(params.dtype)) +
                 " numel " + std::to_string(params.numel) + " shape " +
                 std::to_string(static_cast<int>(shape)));
    const bool stateful = params.mode == ReuseMode::kExponentBlock;
    Bytes words = make_words(params.dtype, params.numel, shape, 11);
    Bytes hashes;
    Bytes exponents(stateful ? params.numel : 0);
    std::vector<wire::FrameHeader> headers;
    for (unsigned step = 0; step < 3 && !HasFailure(); ++step) {
      const Encoded made = encode(params, words, hashes);
      Bytes out(words.size(), std::byte{0xDD});
      EXPECT_EQ(name(decode(params, made.frame, exponents, out)), "ok");
      EXPECT_EQ(out, words);
      EXPECT_EQ(exponents, exponents_of(params, words));
      headers.push_back(made.header);
      hashes = made.hashes;
      params.base_epoch = stateful ? step + 1 : 0;
      params.base_digest = stateful ? made.result.checksum : 0;
      words = next_step(words, params.dtype, step);
    }
    return headers;
  }

  std::unique_ptr<CodecBackend> backend_;
};

TEST_F(NvcompOnGpu, FramesOfEveryModeDtypeAndLengthComeBack) {
  // Around a group of 8 and a block; around a tile of 8192; one chunk, one and a value, several.
  for (const std::uint64_t numel :
       {1U, 7U, 8U, 9U, 63U, 65U, 1003U, 8193U, 65535U, 65536U, 65537U, 131072U, 300001U}) {
    for (const DType dtype : {DType::kBf16, DType::kFp16, DType::kFp32}) {
      for (const ReuseMode mode : {ReuseMode::kExponentOnly, ReuseMode::kExponentBlock}) {
        run_steps({.mode = mode,
                   .coder = Coder::kNvcompAns,
                   .dtype = dtype,
                   .block_size = 64,
                   .numel = numel,
                   .shard_key = 9},
                  Shape::kWeights);
      }
    }
  }
}

TEST_F(NvcompOnGpu, AnEmptyShardComesBack) {
  const FrameParams params{.coder = Coder::kNvcompAns, .shard_key = 9};
  EXPECT_EQ(run_steps(params, Shape::kWeights)[0].kind, wire::Kind::kRaw);
}

TEST_F(NvcompOnGpu, ExponentsOfWeightsAreCodedInKeyAndDeltaFrames) {
  for (const DType dtype : {DType::kBf16, DType::kFp16, DType::kFp32}) {
    const FrameParams params{.coder = Coder::kNvcompAns,
                             .dtype = dtype,
                             .block_size = 512,
                             .numel = 300001,
                             .shard_key = 9};
    const auto headers = run_steps(params, Shape::kWeights);
    ASSERT_EQ(headers.size(), 3U);
    EXPECT_EQ(headers[0].kind, wire::Kind::kKey);
    EXPECT_EQ(headers[1].kind, wire::Kind::kDelta);
    EXPECT_EQ(headers[0].last().coder, Coder::kNvcompAns) << name(dtype);
    EXPECT_LT(headers[0].last().bytes, codec::stored_exponent_bytes(dtype, params.numel) * 3 / 4);
    if (dtype != DType::kFp16) {  // a step moves no exponent of FP16
      EXPECT_EQ(headers[1].last().coder, Coder::kNvcompAns) << name(dtype);
    }
    EXPECT_LT(headers[1].last().bytes, headers[0].last().bytes);
  }
}

TEST_F(NvcompOnGpu, EveryDistributionComesBack) {
  for (const Shape shape : {Shape::kConstant, Shape::kSpecials, Shape::kRandom}) {
    for (const DType dtype : {DType::kBf16, DType::kFp16, DType::kFp32}) {
      run_steps({.coder = Coder::kNvcompAns, .dtype = dtype, .block_size = 128, .numel = 200011},
                shape);
    }
  }
}

TEST_F(NvcompOnGpu, WhatDoesNotShrinkIsStoredOrRaw) {
  FrameParams params{.coder = Coder::kNvcompAns, .block_size = 64, .numel = 70000, .shard_key = 9};
  Bytes words = make_words(params.dtype, params.numel, Shape::kRandom, 3);
  const Encoded key = encode(params, words, {});
  EXPECT_EQ(key.header.kind, wire::Kind::kRaw);
  Bytes exponents(params.numel);
  Bytes out(words.size());
  ASSERT_EQ(name(decode(params, key.frame, exponents, out)), "ok");

  params.base_epoch = 1;
  params.base_digest = key.result.checksum;
  words[1] ^= std::byte{1};  // one exponent: 64 of random bits are sent
  const Encoded delta = encode(params, words, key.hashes);
  EXPECT_EQ(delta.header.kind, wire::Kind::kDelta);
  EXPECT_EQ(delta.result.changed_blocks, 1U);
  EXPECT_EQ(delta.header.last().coder, Coder::kRaw);
  ASSERT_EQ(name(decode(params, delta.frame, exponents, out)), "ok");
  EXPECT_EQ(out, words);

  params.base_epoch = 2;
  params.base_digest = delta.result.checksum;
  const Encoded same = encode(params, words, delta.hashes);
  EXPECT_EQ(same.result.changed_blocks, 0U);
  EXPECT_EQ(same.header.last().bytes, 0U);
  ASSERT_EQ(name(decode(params, same.frame, exponents, out)), "ok");
  EXPECT_EQ(out, words);
}

TEST_F(NvcompOnGpu, JobsOfOneCallShareItsScratch) {
  const std::uint64_t numels[] = {300001, 5, 0, 70000, 131072};
  std::vector<Placed> sources;
  std::vector<Placed> frames;
  std::vector<Placed> outs;
  std::vector<Bytes> words;
  std::vector<codec::EncodeJob> encodes;
  for (const std::uint64_t numel : numels) {
    const FrameParams params{.mode = ReuseMode::kExponentOnly,
                             .coder = Coder::kNvcompAns,
                             .numel = numel,
                             .shard_key = 9};
    words.push_back(make_words(params.dtype, numel, Shape::kWeights, 40));
    sources.emplace_back(*backend_, words.back());
    frames.emplace_back(*backend_, Bytes(codec::max_frame_bytes(params)));
    outs.emplace_back(*backend_, Bytes(words.back().size()));
    encodes.push_back({.params = params, .src = sources.back().span()});
    encodes.back().frame = frames.back().span();
  }
  backend_->encode(encodes);
  std::vector<codec::DecodeJob> decodes;
  for (std::size_t i = 0; i < encodes.size(); ++i) {
    decodes.push_back({.expected = encodes[i].params,
                       .frame = frames[i].span().first(encodes[i].result.frame_bytes)});
    decodes.back().dst = outs[i].span();
  }
  backend_->start_decode(decodes);
  backend_->finish_decode(decodes);
  for (std::size_t i = 0; i < encodes.size(); ++i) {
    EXPECT_EQ(name(decodes[i].verdict), "ok") << numels[i];
    EXPECT_EQ(outs[i].read(), words[i]) << numels[i];
  }
  const std::uint64_t scratch = backend_->scratch_bytes();
  backend_->encode(encodes);
  backend_->start_decode(decodes);
  backend_->finish_decode(decodes);
  EXPECT_EQ(backend_->scratch_bytes(), scratch);  // steady state allocates nothing
}

TEST_F(NvcompOnGpu, DamagedSectionsAreRefusedBeforeNvcompSeesThem) {
  const FrameParams params{.mode = ReuseMode::kExponentOnly,
                           .coder = Coder::kNvcompAns,
                           .numel = 200000,
                           .shard_key = 9};
  const Encoded good =
      encode(params, make_words(params.dtype, params.numel, Shape::kWeights, 5), {});
  ASSERT_EQ(good.header.last().coder, Coder::kNvcompAns);
  const std::size_t section = good.header.last().offset;
  const Bytes before(2 * params.numel, std::byte{7});
  const auto verdict_of = [&](Bytes frame, bool sealed, const FrameParams& expected) {
    if (sealed) {
      const std::uint64_t checksum = codec::host::frame_checksum(frame, nullptr);
      std::memcpy(frame.data() + wire::kChecksumOffset, &checksum, sizeof checksum);
    }
    Bytes out = before;
    Bytes none;
    const Verdict verdict = decode(expected, frame, none, out);
    EXPECT_TRUE(verdict == Verdict::kBadStream || out == before);
    return name(verdict);
  };
  const auto with = [&](std::size_t at, std::uint64_t value, std::size_t width) {
    Bytes frame = good.frame;
    std::memcpy(frame.data() + section + at, &value, width);
    return frame;
  };
  const std::uint64_t kFar = std::uint64_t{1} << 60;
  EXPECT_EQ(verdict_of(with(0, 1, 8), true, params), "bad_table");
  EXPECT_EQ(verdict_of(with(8, 4, 4), true, params), "bad_table");  // another major version
  EXPECT_EQ(verdict_of(with(24, 1, 8), true, params), "bad_padding");
  for (std::uint64_t chunk = 0; chunk < 4; ++chunk) {
    const std::size_t entry = codec::nvcomp_table_bytes(chunk);
    EXPECT_EQ(verdict_of(with(entry, kFar, 8), true, params), "bad_table");
    EXPECT_EQ(verdict_of(with(entry + 8, kFar, 8), true, params), "bad_table");
    EXPECT_EQ(verdict_of(with(entry + 8, 0, 8), true, params), "bad_table");
  }
  const codec::NvcompChunk first = codec::read_nvcomp_chunk(0, good.frame.data() + section);
  EXPECT_EQ(verdict_of(with(first.offset + 9, 0x55, 1), false, params), "bad_checksum");
  FrameParams rans = params;
  rans.coder = Coder::kRans;  // whoever did not ask for nvCOMP does not take its frames
  EXPECT_EQ(verdict_of(good.frame, true, rans), "bad_sections");
}

TEST_F(NvcompOnGpu, ABackendMadeWithoutItSaysSo) {
  backend_ = codec::cuda::make_cuda_backend(0);
  const FrameParams params{.coder = Coder::kNvcompAns, .numel = 100};
  const auto error = error_of([&] { encode(params, Bytes(200), {}); });
  ASSERT_TRUE(error);
  EXPECT_EQ(error->code(), ErrorCode::kLibrary);
}

TEST_F(NvcompOnGpu, CommunicatorsGatherTheOriginalBits) {
  constexpr std::size_t kNumel = 100003;
  on_ranks(2, [](std::size_t rank, auto transport) {
    const auto own_memory = make_backend();
    CompressedAllgather comm(transport, {.coder = Coder::kNvcompAns, .backend = Backend::kCuda});
    for (std::size_t step = 0; step < 4; ++step) {
      const Placed own(*own_memory, bytes(weights(rank, step, kNumel)));
      const auto call = comm.allgather({.segments = {{"w", kNumel}}, .src = own.span()});
      Bytes all(4 * kNumel);
      own_memory->download(all, call->outputs()[0]);
      own_memory->wait();
      auto expected = weights(0, step, kNumel);
      const auto other = weights(1, step, kNumel);
      expected.insert(expected.end(), other.begin(), other.end());
      ASSERT_EQ(words_of(all), expected) << step;
    }
    EXPECT_EQ(comm.stats().delta_frames, 3U);
    EXPECT_LT(comm.stats().wire_bytes, comm.stats().raw_bytes);
  });
}

// Last, since what nvCOMP does with such a chunk is nvCOMP's: checksums keep it from ever seeing
// one.
TEST_F(NvcompOnGpu, AChunkThatNvcompDidNotWriteIsABadStream) {
  const FrameParams params{.mode = ReuseMode::kExponentOnly,
                           .coder = Coder::kNvcompAns,
                           .numel = 200000,
                           .shard_key = 9};
  Encoded made = encode(params, make_words(params.dtype, params.numel, Shape::kWeights, 5), {});
  ASSERT_EQ(made.header.last().coder, Coder::kNvcompAns);
  std::byte* section = made.frame.data() + made.header.last().offset;
  const codec::NvcompChunk first = codec::read_nvcomp_chunk(0, section);
  std::fill_n(section + first.offset, first.bytes, std::byte{0});
  const std::uint64_t checksum = codec::host::frame_checksum(made.frame, nullptr);
  std::memcpy(made.frame.data() + wire::kChecksumOffset, &checksum, sizeof checksum);
  Bytes none;
  Bytes out(2 * params.numel);
  EXPECT_EQ(name(decode(params, made.frame, none, out)), "bad_stream");
}

}  // namespace
}  // namespace ciera::testing
