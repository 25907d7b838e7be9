// The contract of a codec backend, written once and instantiated for the host and for a GPU: frames
// are byte for byte the host codec's, its frames decode, damaged ones get its verdicts.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "codec/backend.hpp"
#include "codec/host/digest_host.hpp"
#include "codec/host/frame_codec.hpp"

namespace ciera::testing {

using codec::BlockHash;
using codec::CodecBackend;
using codec::FrameParams;
using Bytes = std::vector<std::byte>;
using BackendFactory = std::unique_ptr<CodecBackend> (*)();  // null: none here

// Bytes in the backend's memory.
class Placed {
 public:
  Placed(CodecBackend& backend, std::span<const std::byte> content, std::size_t offset = 0)
      : backend_(backend),
        buffer_(backend.memory(), content.size() + offset + 1),
        offset_(offset),
        size_(content.size()) {
    backend.upload(span(), content);
    backend.wait();
  }
  std::span<std::byte> span() const { return buffer_.span().subspan(offset_, size_); }
  Bytes read() const {
    Bytes bytes(size_);
    backend_.download(bytes, span());
    backend_.wait();
    return bytes;
  }

 private:
  CodecBackend& backend_;
  Buffer buffer_;
  std::size_t offset_;
  std::size_t size_;
};

// Few exponents, all alike, special values, random bits.
enum class Shape { kWeights, kConstant, kSpecials, kRandom };

inline Bytes make_words(DType dtype, std::uint64_t numel, Shape shape, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0.0F, 0.02F);
  const std::size_t width = element_bytes(dtype);
  Bytes bytes(numel * width);
  for (std::uint64_t i = 0; i < numel; ++i) {
    const float drawn = normal(random);
    std::uint64_t word = 0;
    std::memcpy(&word, &drawn, 4);
    if (dtype == DType::kFp16) {  // the exponent in FP16's range
      word = (word >> 31) << 15 | (((word >> 23) - 112) & 31) << 10 | (word >> 13 & 1023);
    } else if (dtype == DType::kBf16) {
      word >>= 16;
    }
    if (shape == Shape::kConstant) {
      word = 0x3F803C00;
    } else if (shape == Shape::kSpecials) {
      const std::uint32_t top = dtype == DType::kFp16 ? 0x7C00 : width == 2 ? 0x7F80 : 0x7F800000;
      const std::uint32_t choices[] = {0, 1, top, top + 1,
                                       static_cast<std::uint32_t>(1ULL << (8 * width - 1))};
      word = choices[random() % 5];
    } else if (shape == Shape::kRandom) {
      word = random();
    }
    std::memcpy(bytes.data() + i * width, &word, width);
  }
  return bytes;
}

// A training step: now and then a value moves by a unit, rarely across an exponent.
inline Bytes next_step(const Bytes& words, DType dtype, unsigned seed) {
  std::mt19937 random(seed);
  Bytes moved = words;
  const std::size_t width = element_bytes(dtype);
  for (std::size_t i = random() % 97; i * width < moved.size(); i += 1 + random() % 997) {
    moved[i * width + random() % width] ^= std::byte{1};
  }
  return moved;
}

// How much of a shard moves in a step of a delta mode, and how far.
enum class Motion { kNone, kFewUnits, kManyUnits, kJumps, kFewJumps, kOneBlock, kEverything };

inline Bytes move_words(const Bytes& words, DType dtype, Motion motion, unsigned seed) {
  std::mt19937 random(seed);
  Bytes moved = words;
  const std::size_t width = element_bytes(dtype);
  const unsigned rate = motion == Motion::kNone        ? 0
                        : motion == Motion::kFewUnits  ? 6
                        : motion == Motion::kManyUnits ? 30
                        : motion == Motion::kFewJumps  ? 4
                                                       : 100;
  const std::size_t numel = words.size() / width;
  const std::size_t end = motion == Motion::kOneBlock ? std::min<std::size_t>(numel, 40) : numel;
  for (std::size_t i = 0; i < end; ++i) {
    if (random() % 100 >= rate) {
      continue;
    }
    std::uint64_t word = 0;
    std::memcpy(&word, words.data() + i * width, width);
    if (motion == Motion::kEverything) {
      word = static_cast<std::uint64_t>(random()) << 32 | random();
    } else if (motion == Motion::kJumps || motion == Motion::kFewJumps) {
      const std::uint64_t far = random() % (std::uint64_t{1} << (1 + random() % (4 * width)));
      word = random() % 2 == 0 ? word + far : word - far;
    } else {
      word = random() % 2 == 0 ? word + 1 : word - 1;
    }
    std::memcpy(moved.data() + i * width, &word, width);
  }
  return moved;
}

struct HostFrame {
  Bytes frame;
  std::vector<BlockHash> hashes;
  codec::EncodeResult result;
};

inline HostFrame host_encode(const FrameParams& params, const Bytes& src,
                             const std::vector<BlockHash>& old_hashes) {
  HostFrame made;
  const bool stateful = params.mode == ReuseMode::kExponentBlock;
  made.hashes.resize(stateful ? codec::block_count(params.numel, params.block_size) : 0);
  made.frame.resize(codec::max_frame_bytes(params));
  Bytes scratch(codec::host::encode_scratch_bytes(params));
  const std::span<const BlockHash> base =
      params.base_epoch == 0 ? std::span<const BlockHash>() : std::span(old_hashes);
  made.result = codec::host::encode(params, src, base, made.hashes, made.frame, scratch, nullptr);
  made.frame.resize(made.result.frame_bytes);
  return made;
}

// A frame of a delta mode; `reference`: own words or exponents of the base.
inline HostFrame host_encode_delta(const FrameParams& params, const Bytes& src,
                                   const Bytes& reference) {
  HostFrame made;
  made.frame.resize(codec::max_frame_bytes(params));
  Bytes scratch(codec::host::encode_scratch_bytes(params));
  const codec::host::OwnReference own{
      params.base_epoch == 0 ? std::span<const std::byte>() : std::span(reference),
      codec::Claim::kCompare};
  made.result = codec::host::encode(params, src, own, made.frame, scratch, nullptr);
  made.frame.resize(made.result.frame_bytes);
  return made;
}

struct HostDecoded {
  Verdict verdict;
  Bytes words;
  Bytes exponents;
};

inline HostDecoded host_decode(const FrameParams& params, const Bytes& frame,
                               const Bytes& exponents) {
  HostDecoded decoded{Verdict::kOk, Bytes(params.numel * element_bytes(params.dtype)), exponents};
  codec::FrameInfo info;
  decoded.verdict = codec::host::check(params, frame, &info, nullptr);
  if (decoded.verdict == Verdict::kOk) {
    Bytes scratch(codec::host::decode_scratch_bytes(params));
    decoded.verdict =
        codec::host::decode(params, frame, decoded.exponents, decoded.words, scratch, nullptr);
  }
  return decoded;
}

inline std::span<const std::byte> as_bytes(const std::vector<BlockHash>& hashes) {
  return std::as_bytes(std::span(hashes));
}

class BackendContract : public ::testing::TestWithParam<BackendFactory> {
 protected:
  void SetUp() override {
    backend_ = GetParam()();
    if (backend_ == nullptr) {
      GTEST_SKIP() << "no usable GPU here";
    }
  }

  // Encodes with the backend and compares with the host codec; returns the host's frame.
  HostFrame expect_same_frame(const FrameParams& params, const Bytes& src,
                              const std::vector<BlockHash>& old_hashes, std::size_t offset) {
    const HostFrame host = host_encode(params, src, old_hashes);
    const Placed input(*backend_, src, offset);
    const Placed old(*backend_, as_bytes(old_hashes));
    const Placed hashes(*backend_, Bytes(as_bytes(host.hashes).size()));
    const Placed frame(*backend_, Bytes(codec::max_frame_bytes(params), std::byte{0xEE}));
    codec::EncodeJob job{.params = params, .src = input.span()};
    job.old_hashes = params.base_epoch == 0 ? std::span<std::byte>() : old.span();
    job.new_hashes = hashes.span();
    job.frame = frame.span();
    backend_->encode({&job, 1});
    Bytes made = frame.read();
    EXPECT_EQ(job.result.frame_bytes, host.result.frame_bytes);
    EXPECT_EQ(job.result.checksum, host.result.checksum);
    EXPECT_EQ(job.result.kind, host.result.kind);
    EXPECT_EQ(job.result.changed_blocks, host.result.changed_blocks);
    made.resize(host.frame.size());
    EXPECT_EQ(made, host.frame);
    const Bytes made_hashes = hashes.read();
    EXPECT_TRUE(std::ranges::equal(made_hashes, as_bytes(host.hashes)));
    return host;
  }

  // The same for the delta modes; the backend makes the new reference too.
  HostFrame expect_same_delta(const FrameParams& params, const Bytes& src, Bytes& reference,
                              std::size_t offset) {
    HostFrame host = host_encode_delta(params, src, reference);
    const Placed input(*backend_, src, offset);
    const Placed own(*backend_, reference);
    const Placed frame(*backend_, Bytes(codec::max_frame_bytes(params), std::byte{0xEE}));
    codec::EncodeJob job{.params = params, .src = input.span()};
    job.own_reference = params.base_epoch == 0 ? std::span<std::byte>() : own.span();
    job.frame = frame.span();
    backend_->encode({&job, 1});
    EXPECT_EQ(job.result.frame_bytes, host.result.frame_bytes);
    EXPECT_EQ(static_cast<int>(job.result.kind), static_cast<int>(host.result.kind));
    EXPECT_EQ(job.result.changed_blocks, host.result.changed_blocks);
    EXPECT_EQ(job.result.checksum, host.result.checksum);
    Bytes made = frame.read();
    made.resize(host.frame.size());
    EXPECT_TRUE(made == host.frame) << "first difference at byte "
                                    << std::ranges::mismatch(made, host.frame).in1 - made.begin();
    backend_->store_reference(params, input.span(), own.span());
    codec::host::store_reference(params, src, reference, nullptr);
    EXPECT_TRUE(own.read() == reference);
    return host;
  }

  // Steps of one shard in a delta mode through both codecs.
  void run_delta_steps(FrameParams params, std::size_t offset) {
    Bytes words = make_words(params.dtype, params.numel, Shape::kWeights, 11);
    const std::uint64_t width = codec::reference_bytes(params.mode, params.dtype);
    Bytes reference(params.numel * width);
    Bytes cache(params.numel * width);
    unsigned step = 0;
    for (const Motion motion : {Motion::kNone, Motion::kFewUnits, Motion::kManyUnits, Motion::kNone,
                                Motion::kFewJumps, Motion::kOneBlock, Motion::kJumps,
                                Motion::kFewUnits, Motion::kEverything, Motion::kManyUnits}) {
      SCOPED_TRACE(std::string(name(params.mode)) + " " + std::string(name(params.dtype)) + " " +
                   std::string(name(params.effort)) + " " + std::string(name(params.coder)) +
                   " numel " + std::to_string(params.numel) + " block " +
                   std::to_string(params.block_size) + " segment 2^" +
                   std::to_string(params.segment_log2) + " motion " +
                   std::to_string(static_cast<int>(motion)) + " step " + std::to_string(step));
      words = step == 0 ? words : move_words(words, params.dtype, motion, step);
      const HostFrame host = expect_same_delta(params, words, reference, offset);
      expect_same_decode(params, host.frame, cache, offset);
      if (HasFailure()) {
        return;
      }
      cache = host_decode(params, host.frame, cache).exponents;
      params.base_epoch = ++step;
      params.base_digest = host.result.checksum;
    }
  }

  // Decodes with the backend and compares verdict, words and exponents with the host codec.
  void expect_same_decode(const FrameParams& params, const Bytes& frame, const Bytes& exponents,
                          std::size_t offset) {
    const HostDecoded host = host_decode(params, frame, exponents);
    const Placed input(*backend_, frame);
    const Placed cache(*backend_, exponents);
    const Bytes before(params.numel * element_bytes(params.dtype), std::byte{0xDD});
    const Placed dst(*backend_, before, offset);
    codec::DecodeJob job{.expected = params, .frame = input.span()};
    job.exponents = cache.span();
    job.dst = dst.span();
    backend_->start_decode({&job, 1});
    backend_->finish_decode({&job, 1});
    ASSERT_EQ(name(job.verdict), name(host.verdict));
    if (host.verdict == Verdict::kOk) {
      EXPECT_EQ(dst.read(), host.words);
      EXPECT_EQ(cache.read(), host.exponents);
    } else if (host.verdict != Verdict::kBadStream) {  // that one may come out while decoding
      EXPECT_EQ(dst.read(), before);
      EXPECT_EQ(cache.read(), exponents);
    }
  }

  // Three steps of one shard through both codecs.
  void run_steps(FrameParams params, Shape shape, std::size_t offset) {
    SCOPED_TRACE(std::string(name(params.mode)) + " " + std::string(name(params.dtype)) + " " +
                 std::string(name(params.coder)) + " numel " + std::to_string(params.numel) +
                 " block " + std::to_string(params.block_size) + " shape " +
                 std::to_string(static_cast<int>(shape)));
    Bytes words = make_words(params.dtype, params.numel, shape, 11);
    const bool stateful = params.mode == ReuseMode::kExponentBlock;
    Bytes exponents(stateful ? params.numel : 0);
    std::vector<BlockHash> hashes(stateful ? codec::block_count(params.numel, params.block_size)
                                           : 0);
    for (unsigned step = 0; step < 3 && !HasFailure(); ++step) {
      const HostFrame host = expect_same_frame(params, words, hashes, offset);
      expect_same_decode(params, host.frame, exponents, offset);
      exponents = host_decode(params, host.frame, exponents).exponents;
      hashes = host.hashes;
      params.base_epoch = stateful ? step + 1 : 0;
      params.base_digest = stateful ? host.result.checksum : 0;
      words = next_step(words, params.dtype, step);
    }
  }

  std::unique_ptr<CodecBackend> backend_;
};

TEST_P(BackendContract, FramesOfEveryModeDtypeAndLengthAreTheHosts) {
  // 0 and 1; around a group of 8 and a block; around a tile of 8192 values; several segments.
  for (const std::uint64_t numel : {0U, 1U, 7U, 8U, 63U, 64U, 65U, 1003U, 8191U, 8193U, 140001U}) {
    for (const DType dtype : {DType::kBf16, DType::kFp16, DType::kFp32}) {
      for (const ReuseMode mode : {ReuseMode::kExponentOnly, ReuseMode::kExponentBlock}) {
        for (const Coder coder : {Coder::kRans, Coder::kRaw}) {
          run_steps({.mode = mode,
                     .coder = coder,
                     .dtype = dtype,
                     .block_size = 64,
                     .numel = numel,
                     .shard_key = 9,
                     .segment_log2 = backend_->segment_log2(mode, Effort::kDefault, numel)},
                    Shape::kWeights, 0);
        }
      }
    }
  }
}

TEST_P(BackendContract, FramesOfEveryBlockAndSegmentSizeAreTheHosts) {
  // A block of 8; not a power of two; longer than a tile; longer than the shard.
  for (const std::uint32_t block_size : {8U, 24U, 512U, 1000U, 4096U, 65536U}) {
    for (const std::uint32_t segment_log2 : {10U, 13U, 16U}) {
      run_steps({.dtype = DType::kBf16,
                 .block_size = block_size,
                 .numel = 70003,
                 .shard_key = 9,
                 .segment_log2 = segment_log2},
                Shape::kWeights, 0);
    }
  }
}

TEST_P(BackendContract, FramesOfEveryDistributionAndAlignmentAreTheHosts) {
  for (const Shape shape : {Shape::kWeights, Shape::kConstant, Shape::kSpecials, Shape::kRandom}) {
    for (const DType dtype : {DType::kBf16, DType::kFp16, DType::kFp32}) {
      for (const std::size_t elements : {0U, 1U, 3U}) {
        run_steps({.dtype = dtype, .block_size = 128, .numel = 20011, .shard_key = 9}, shape,
                  elements * element_bytes(dtype));
      }
    }
  }
}

TEST_P(BackendContract, DamagedFramesGetTheHostsVerdicts) {
  const std::uint64_t numel = 5003;
  FrameParams params{.block_size = 64, .numel = numel, .shard_key = 9, .segment_log2 = 10};
  const Bytes first = make_words(params.dtype, numel, Shape::kWeights, 5);
  const HostFrame key = host_encode(params, first, {});
  const Bytes exponents = host_decode(params, key.frame, Bytes(numel)).exponents;
  params.base_epoch = 1;
  params.base_digest = key.result.checksum;
  const HostFrame delta = host_encode(params, next_step(first, params.dtype, 3), key.hashes);
  std::mt19937 random(77);
  for (const Bytes& good : {key.frame, delta.frame}) {
    for (int i = 0; i < 400 && !HasFailure(); ++i) {
      SCOPED_TRACE("damage " + std::to_string(i));
      Bytes frame = good;
      // Mostly in the header, the bitmap and the table; with the checksum made right again, so that
      // what lies behind it is reached.
      const std::size_t near = i % 2 == 0 ? 128 : frame.size();
      frame[random() % near] ^= std::byte{1} << (random() % 8);
      if (i % 4 < 3) {
        const std::uint64_t checksum = codec::host::frame_checksum(frame, nullptr);
        std::memcpy(frame.data() + wire::kChecksumOffset, &checksum, sizeof checksum);
      }
      if (i % 50 == 0) {
        frame.resize(random() % frame.size());
      }
      expect_same_decode(params, frame, exponents, 0);
    }
  }
}

TEST_P(BackendContract, DeltaFramesOfEveryDTypeAndLengthAreTheHosts) {
  // Around a quad, a group, a block and a segment; several segments and tiles.
  for (const std::uint64_t numel : {0U, 1U, 3U, 4U, 5U, 9U, 511U, 513U, 4096U, 4099U, 70003U}) {
    for (const DType dtype : {DType::kBf16, DType::kFp16, DType::kFp32, DType::kOpaque8,
                              DType::kOpaque16, DType::kOpaque32, DType::kOpaque64}) {
      for (const ReuseMode mode : {ReuseMode::kExponentDelta, ReuseMode::kWordDelta}) {
        for (const Effort effort : {Effort::kDefault, Effort::kHigh}) {
          if (codes(mode, dtype)) {
            run_delta_steps({.mode = mode,
                             .dtype = dtype,
                             .numel = numel,
                             .shard_key = 9,
                             .segment_log2 = backend_->segment_log2(mode, effort, numel),
                             .effort = effort},
                            0);
          }
        }
      }
    }
  }
}

TEST_P(BackendContract, DeltaFramesOfEveryBlockAndSegmentSizeAreTheHosts) {
  // Segments that begin and end within blocks, and blocks of few quads.
  for (const std::uint32_t block_size : {8U, 24U, 512U, 1000U, 4096U, 65536U}) {
    for (const std::uint32_t segment_log2 : {10U, 12U, 16U}) {
      for (const Effort effort : {Effort::kDefault, Effort::kHigh}) {
        for (const ReuseMode mode : {ReuseMode::kExponentDelta, ReuseMode::kWordDelta}) {
          run_delta_steps({.mode = mode,
                           .block_size = block_size,
                           .numel = 140005,
                           .shard_key = 9,
                           .segment_log2 = segment_log2,
                           .effort = effort},
                          0);
        }
      }
    }
  }
}

TEST_P(BackendContract, DeltaFramesOfEveryCoderAndAlignmentAreTheHosts) {
  for (const Coder coder : {Coder::kRans, Coder::kRaw}) {
    for (const DType dtype : {DType::kBf16, DType::kFp16, DType::kFp32, DType::kOpaque8}) {
      for (const std::size_t elements : {0U, 1U, 3U}) {
        for (const ReuseMode mode : {ReuseMode::kExponentDelta, ReuseMode::kWordDelta}) {
          if (codes(mode, dtype)) {
            run_delta_steps({.mode = mode,
                             .coder = coder,
                             .dtype = dtype,
                             .block_size = 64,
                             .numel = 20011,
                             .shard_key = 9,
                             .segment_log2 = 10},
                            elements * element_bytes(dtype));
          }
        }
      }
    }
  }
}

TEST_P(BackendContract, AShardThatIsEncodedAgainGetsTheSameFrameAgain) {
  constexpr std::uint64_t kNumel = 1 << 19;  // as many segments as run side by side
  const Bytes words = make_words(DType::kBf16, kNumel, Shape::kWeights, 4);
  const Bytes moved = move_words(words, DType::kBf16, Motion::kManyUnits, 5);
  for (const Effort effort : {Effort::kDefault, Effort::kHigh}) {
    const FrameParams params{
        .mode = ReuseMode::kWordDelta,
        .numel = kNumel,
        .shard_key = 9,
        .base_epoch = 1,
        .base_digest = 3,
        .segment_log2 = backend_->segment_log2(ReuseMode::kWordDelta, effort, kNumel),
        .effort = effort};
    const HostFrame host = host_encode_delta(params, moved, words);
    const Placed src(*backend_, moved);
    const Placed reference(*backend_, words);
    const Placed frame(*backend_, Bytes(codec::max_frame_bytes(params)));
    for (int i = 0; i < 60; ++i) {
      codec::EncodeJob job{.params = params, .src = src.span()};
      job.own_reference = reference.span();
      job.frame = frame.span();
      backend_->encode({&job, 1});
      Bytes made = frame.read();
      made.resize(host.frame.size());
      ASSERT_EQ(job.result.frame_bytes, host.frame.size()) << "encode " << i;
      ASSERT_TRUE(made == host.frame) << "encode " << i << ", first difference at byte "
                                      << std::ranges::mismatch(made, host.frame).in1 - made.begin();
    }
  }
}

TEST_P(BackendContract, GoldenFramesGetTheHostsVerdicts) {
  int frames = 0;
  for (const auto& entry :
       std::filesystem::recursive_directory_iterator(CIERA_TEST_DATA "/golden")) {
    if (entry.path().extension() != ".frame") {
      continue;
    }
    SCOPED_TRACE(entry.path().filename().string());
    std::ifstream file(entry.path(), std::ios::binary);
    const std::vector<char> chars((std::istreambuf_iterator<char>(file)), {});
    const auto content = std::as_bytes(std::span(chars));
    const Bytes frame(content.begin(), content.end());
    wire::FrameHeader header;
    FrameParams params{.numel = 1000};
    if (wire::read_header(frame.data(), frame.size(), &header) == Verdict::kOk &&
        header.numel < 1 << 20) {
      params = {.mode = header.mode,
                .dtype = header.dtype,
                .block_size = header.block_size,
                .numel = header.numel,
                .shard_key = header.shard_key,
                .base_epoch = header.base_epoch,
                .base_digest = header.base_digest};
    }
    const std::uint64_t cache = params.numel * codec::reference_bytes(params.mode, params.dtype);
    expect_same_decode(params, frame, Bytes(cache, std::byte{3}), 0);
    ++frames;
  }
  EXPECT_GT(frames, 50);
}

TEST_P(BackendContract, OneRefusedFrameLeavesAllOthersUndecoded) {
  const FrameParams params{.mode = ReuseMode::kExponentOnly, .numel = 3000, .shard_key = 9};
  const HostFrame good =
      host_encode(params, make_words(params.dtype, 3000, Shape::kWeights, 1), {});
  Bytes bad = good.frame;
  bad[200] ^= std::byte{4};
  const Placed frames[] = {{*backend_, good.frame}, {*backend_, bad}};
  const Bytes before(6000, std::byte{7});
  const Placed dst[] = {{*backend_, before}, {*backend_, before}};
  codec::DecodeJob jobs[2];
  for (int i = 0; i < 2; ++i) {
    jobs[i].expected = params;
    jobs[i].frame = frames[i].span();
    jobs[i].dst = dst[i].span();
  }
  backend_->start_decode(jobs);
  backend_->finish_decode(jobs);
  EXPECT_EQ(jobs[0].verdict, Verdict::kOk);
  EXPECT_EQ(jobs[1].verdict, Verdict::kBadChecksum);
  EXPECT_EQ(dst[0].read(), before);
  EXPECT_EQ(dst[1].read(), before);
}

TEST_P(BackendContract, WordsThatReceiversHoldMakeSameFrames) {
  for (const ReuseMode mode : {ReuseMode::kExponentBlock, ReuseMode::kExponentDelta}) {
    const FrameParams params{.mode = mode,
                             .numel = 3000,
                             .shard_key = 9,
                             .base_epoch = 2,
                             .base_digest = 7,
                             .words_held = true};
    const Bytes content = make_words(params.dtype, 3000, Shape::kWeights, 1);
    const Placed words(*backend_, content);
    const Placed hashes(*backend_, Bytes(6 * sizeof(BlockHash)));
    const Placed exponents(*backend_, Bytes(3000, std::byte{5}));
    const Placed frame(*backend_, Bytes(codec::max_frame_bytes(params)));
    codec::EncodeJob encode{.params = params, .src = words.span()};
    if (mode == ReuseMode::kExponentBlock) {
      encode.old_hashes = encode.new_hashes = hashes.span();
    } else {
      encode.own_reference = exponents.span();
    }
    encode.own_words = words.span();
    encode.frame = frame.span();
    backend_->encode({&encode, 1});
    ASSERT_EQ(static_cast<int>(encode.result.kind), static_cast<int>(codec::FrameKind::kSame));
    EXPECT_EQ(encode.result.frame_bytes, 64U);
    EXPECT_EQ(encode.result.changed_blocks, 0U);
    for (const bool held : {true, false}) {
      codec::DecodeJob decode{.expected = params, .frame = frame.span().first(64)};
      decode.expected.words_held = held;
      decode.exponents = exponents.span();
      decode.dst = words.span();
      backend_->start_decode({&decode, 1});
      backend_->finish_decode({&decode, 1});
      EXPECT_EQ(decode.verdict, held ? Verdict::kOk : Verdict::kBadKind);
      EXPECT_EQ(words.read(), content);
      EXPECT_EQ(exponents.read(), Bytes(3000, std::byte{5}));
    }
  }
}

TEST_P(BackendContract, MovesAndJudgesBytes) {
  const Bytes content = make_words(DType::kBf16, 500, Shape::kRandom, 2);
  const Placed from(*backend_, content);
  const Placed to(*backend_, Bytes(content.size()));
  const std::span<const std::byte> ranges[] = {to.span().first(15), to.span().subspan(20, 7)};
  EXPECT_TRUE(backend_->all_zero(ranges));
  backend_->copy(to.span(), from.span());
  EXPECT_FALSE(backend_->all_zero(ranges));
  EXPECT_EQ(to.read(), content);
  backend_->zero(to.span().first(300));
  EXPECT_TRUE(backend_->all_zero(ranges));
  EXPECT_TRUE(backend_->all_zero({}));
}

}  // namespace ciera::testing
