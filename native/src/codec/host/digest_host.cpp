#include "codec/host/digest_host.hpp"

#include <algorithm>
#include <atomic>
#include <cstring>

#include "base/bytes.hpp"
#include "base/splitmix64.hpp"
#include "exec/thread_pool.hpp"
#include "wire/frame_header.hpp"

namespace ciera::codec::host {
namespace {

std::uint64_t tail_word(const std::byte* from, std::uint64_t bytes) {
  std::uint64_t word = 0;
  std::memcpy(&word, from, bytes);
  return word;
}

// Words [from, to) of a frame, the last one zero-filled.
std::uint64_t sum_words(std::span<const std::byte> frame, std::uint64_t from, std::uint64_t to) {
  std::uint64_t sum = 0;
  const std::uint64_t whole = std::min<std::uint64_t>(to, frame.size() / 8);
  std::uint64_t index = from;
  for (; index < whole; ++index) {
    sum +=
        base::keyed(base::load_le<std::uint64_t>(frame.data() + 8 * index), index, base::kGamma0);
  }
  if (index < to) {
    sum += base::keyed(tail_word(frame.data() + 8 * index, frame.size() - 8 * index), index,
                       base::kGamma0);
  }
  return sum;
}

}  // namespace

BlockHash hash_block(const std::uint8_t* exponents, std::uint64_t count) {
  const auto* bytes = reinterpret_cast<const std::byte*>(exponents);
  std::uint64_t low = count;
  std::uint64_t high = count;
  const auto add = [&](std::uint64_t word, std::uint64_t index) {
    low += base::keyed(word, index, base::kGamma0);
    high += base::keyed(word, index, base::kGamma1);
  };
  for (std::uint64_t i = 0; i < count / 8; ++i) {
    add(base::load_le<std::uint64_t>(bytes + 8 * i), i);
  }
  if (count % 8 != 0) {
    add(tail_word(bytes + count / 8 * 8, count % 8), count / 8);
  }
  return {base::mix(low), base::mix(high)};
}

std::uint64_t frame_checksum(std::span<const std::byte> frame, ThreadPool* pool) {
  constexpr std::uint64_t kChunkWords = 1 << 16;
  const std::uint64_t words = (frame.size() + 7) / 8;
  const std::uint64_t chunks = (words + kChunkWords - 1) / kChunkWords;
  std::atomic<std::uint64_t> sum = frame.size();
  parallel_for(pool, chunks, [&](std::size_t c) {
    sum += sum_words(frame, c * kChunkWords, std::min(words, (c + 1) * kChunkWords));
  });
  constexpr std::uint64_t kField = wire::kChecksumOffset / 8;
  const auto field = base::load_le<std::uint64_t>(frame.data() + wire::kChecksumOffset);
  const std::uint64_t checksum = base::mix(sum - base::keyed(field, kField, base::kGamma0) +
                                           base::keyed(0, kField, base::kGamma0));
  return checksum == 0 ? 1 : checksum;
}

}  // namespace ciera::codec::host
