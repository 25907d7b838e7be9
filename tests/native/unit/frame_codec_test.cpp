// Frames: sizes, alignment, threads. What they hold is compared with the NumPy reference in
// tests/reference.
#include "codec/host/frame_codec.hpp"

#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <random>
#include <stdexcept>
#include <vector>

#include "exec/thread_pool.hpp"

namespace ciera::codec::host {
namespace {

std::vector<std::byte> random_bytes(std::size_t size, unsigned seed) {
  std::mt19937 random(seed);
  std::vector<std::byte> bytes(size);
  for (auto& byte : bytes) {
    byte = static_cast<std::byte>(random());
  }
  return bytes;
}

struct Encoded {
  std::vector<std::byte> frame;
  std::vector<BlockHash> hashes;
  EncodeResult result;
};

Encoded encode_frame(const FrameParams& params, std::span<const std::byte> src,
                     std::span<const BlockHash> old_hashes, ThreadPool* pool) {
  Encoded encoded;
  encoded.hashes.resize(block_count(params.numel, params.block_size));
  encoded.frame.resize(max_frame_bytes(params));
  std::vector<std::byte> scratch(encode_scratch_bytes(params));
  encoded.result = encode(params, src, old_hashes, encoded.hashes, encoded.frame, scratch, pool);
  encoded.frame.resize(encoded.result.frame_bytes);
  return encoded;
}

class EveryDtype : public ::testing::TestWithParam<DType> {};

TEST_P(EveryDtype, RandomBitsCostNoMoreThanRawAndAHeader) {
  for (const std::uint64_t numel : {0U, 1U, 9U, 513U, 70000U}) {
    for (const Coder coder : {Coder::kRaw, Coder::kRans}) {
      const FrameParams params{.coder = coder, .dtype = GetParam(), .numel = numel, .shard_key = 5};
      const auto src = random_bytes(numel * element_bytes(GetParam()), 3);
      EXPECT_LE(encode_frame(params, src, {}, nullptr).result.frame_bytes, src.size() + 80);
    }
  }
}

TEST_P(EveryDtype, UnalignedMemoryAndThreadsGiveTheSameFrameAndWords) {
  ThreadPool pool(3);
  const std::uint64_t numel = 200003;
  FrameParams params{.dtype = GetParam(), .block_size = 64, .numel = numel, .shard_key = 5};
  const std::size_t size = numel * element_bytes(GetParam());
  auto shifted = random_bytes(size + 1, 3);
  for (std::size_t i = 1; i < shifted.size(); i += element_bytes(GetParam())) {
    shifted[i + element_bytes(GetParam()) - 1] &=
        std::byte{0x3F};  // fewer exponents, so that they code
  }
  const auto src = std::span<const std::byte>(shifted).subspan(1);
  const std::vector<std::byte> aligned(src.begin(), src.end());
  const Encoded key = encode_frame(params, src, {}, &pool);
  EXPECT_EQ(key.frame, encode_frame(params, aligned, {}, nullptr).frame);

  params.base_epoch = 1;
  params.base_digest = key.result.checksum;
  auto moved = aligned;
  for (std::size_t i = 0; i < moved.size(); i += 9973) {
    moved[i] ^= std::byte{0x80};
  }
  const Encoded delta = encode_frame(params, moved, key.hashes, &pool);
  EXPECT_EQ(delta.result.kind, FrameKind::kDelta);
  FrameInfo info;
  ASSERT_EQ(check(params, delta.frame, &info, &pool), Verdict::kOk);
  EXPECT_EQ(info.changed_blocks, delta.result.changed_blocks);

  std::vector<std::byte> exponents(numel);
  std::vector<std::byte> out(size + 1);
  std::vector<std::byte> scratch(decode_scratch_bytes(params));
  const auto dst = std::span(out).subspan(1);
  for (const auto* frame : {&key.frame, &delta.frame}) {
    ASSERT_EQ(decode(params, *frame, exponents, dst, scratch, &pool), Verdict::kOk);
  }
  EXPECT_EQ(std::memcmp(dst.data(), moved.data(), size), 0);
}

INSTANTIATE_TEST_SUITE_P(Dtypes, EveryDtype,
                         ::testing::Values(DType::kBf16, DType::kFp16, DType::kFp32));

TEST(FrameCodec, UnchangedExponentsCostOneBitABlock) {
  FrameParams params{.numel = 4096, .shard_key = 5};
  const auto src = random_bytes(8192, 1);
  const Encoded key = encode_frame(params, src, {}, nullptr);
  params.base_epoch = 1;
  params.base_digest = key.result.checksum;
  const Encoded delta = encode_frame(params, src, key.hashes, nullptr);
  EXPECT_EQ(delta.result.changed_blocks, 0U);
  // Header of 96, bitmap of 1 padded to 16, one byte of sign and mantissa a value, no exponents.
  EXPECT_EQ(delta.result.frame_bytes, 96U + 16U + 4096U);
}

TEST(FrameCodec, MisuseThrows) {
  std::vector<std::byte> memory(100000);
  std::vector<BlockHash> hashes(1);
  const FrameParams good{.numel = 8};
  for (const auto& change : std::vector<std::function<void(FrameParams&)>>{
           [](FrameParams& p) { p.mode = ReuseMode::kOff; },
           [](FrameParams& p) { p.dtype = DType::kOpaque16; },
           [](FrameParams& p) { p.block_size = 12; },
           [](FrameParams& p) { p.numel = 9; },
           [](FrameParams& p) { p.numel = std::uint64_t{1} << 60; },
           [](FrameParams& p) { p.base_epoch = 1; },  // a delta without old hashes
       }) {
    FrameParams params = good;
    change(params);
    EXPECT_THROW(encode(params, std::span(memory).first(16), {}, hashes, memory, memory, nullptr),
                 std::invalid_argument);
  }
}

}  // namespace
}  // namespace ciera::codec::host
