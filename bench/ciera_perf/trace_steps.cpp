#include <algorithm>
#include <cstdint>
#include <cstring>
#include <stdexcept>
#include <vector>

#include "npz_reader.hpp"
#include "steps.hpp"

namespace ciera_perf {
namespace {

class TraceSteps final : public Steps {
 public:
  TraceSteps(const Matrix& patterns, std::size_t word_bytes, std::size_t numel, std::uint64_t seed)
      : patterns_(patterns), word_bytes_(word_bytes), seed_(seed), words_(numel * word_bytes) {
    fill();
  }

  std::span<const std::byte> words() const override { return words_; }

  void advance() override {
    if (row_ + 1 == patterns_.rows) {
      forth_ = false;
    } else if (row_ == 0) {
      forth_ = true;
    }
    row_ += forth_ ? 1 : std::size_t(-1);
    fill();
  }

 private:
  void fill() {
    const std::size_t row_bytes = patterns_.columns * word_bytes_;
    const std::byte* row = patterns_.words.data() + row_ * row_bytes;
    std::size_t at = 0;
    for (std::uint64_t tile = 0; at < words_.size(); ++tile) {
      const std::size_t first = mixed(seed_ ^ mixed(tile)) % patterns_.columns * word_bytes_;
      const std::size_t head = std::min(row_bytes - first, words_.size() - at);
      std::memcpy(words_.data() + at, row + first, head);
      const std::size_t tail = std::min(first, words_.size() - at - head);
      std::memcpy(words_.data() + at + head, row, tail);
      at += head + tail;
    }
  }

  const Matrix& patterns_;
  std::size_t word_bytes_;
  std::uint64_t seed_;
  std::vector<std::byte> words_;
  std::size_t row_ = 0;
  bool forth_ = true;
};

class TraceSource final : public StepsSource {
 public:
  TraceSource(Matrix patterns, std::size_t word_bytes, std::uint64_t seed)
      : patterns_(std::move(patterns)), word_bytes_(word_bytes), seed_(seed) {
    const std::size_t row_bytes = patterns_.columns * word_bytes_;
    for (std::size_t i = row_bytes; i < patterns_.words.size(); ++i) {
      patterns_.words[i] ^= patterns_.words[i - row_bytes];
    }
  }

  std::unique_ptr<Steps> make(std::size_t rank, std::size_t numel) const override {
    const std::uint64_t own = mixed(seed_) ^ mixed(rank + 1);
    return std::make_unique<TraceSteps>(patterns_, word_bytes_, numel, own);
  }

 private:
  Matrix patterns_;
  std::size_t word_bytes_;
  std::uint64_t seed_;
};

}  // namespace

std::unique_ptr<StepsSource> make_traced(const std::string& path, const std::string& shard,
                                         ciera::DType dtype, std::uint64_t seed) {
  const std::size_t word_bytes = ciera::element_bytes(dtype);
  Matrix steps = read_npz(path, shard, word_bytes);
  if (steps.rows < 2) {
    throw std::runtime_error(path + ": shard " + shard + " has one step, need two or more");
  }
  return std::make_unique<TraceSource>(std::move(steps), word_bytes, seed);
}

}  // namespace ciera_perf
