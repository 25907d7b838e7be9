#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <vector>

#include "steps.hpp"

namespace ciera_perf {
namespace {

constexpr float kSigma = 0.02F;

std::uint16_t bf16_bits(float x) {
  const auto bits = std::bit_cast<std::uint32_t>(x);
  return static_cast<std::uint16_t>((bits + 0x7fffU + (bits >> 16 & 1U)) >> 16);
}

// For |x| below half's largest value, which weights are.
std::uint16_t half_bits(float x) {
  const auto bits = std::bit_cast<std::uint32_t>(x);
  const auto sign = static_cast<std::uint16_t>(bits >> 16 & 0x8000U);
  const float magnitude = std::fabs(x);
  if (magnitude < 0x1p-14F) {  // subnormal: multiples of 2^-24
    return static_cast<std::uint16_t>(sign |
                                      static_cast<std::uint16_t>(std::lrint(magnitude * 0x1p24F)));
  }
  const std::uint32_t rebased = (bits & 0x7fffffffU) - (112U << 23);
  const std::uint32_t rounded = rebased + 0xfffU + (rebased >> 13 & 1U);
  return static_cast<std::uint16_t>(sign | static_cast<std::uint16_t>(rounded >> 13));
}

template <typename Word>
class SyntheticSteps final : public Steps {
 public:
  SyntheticSteps(ciera::DType dtype, double change_rate, std::uint64_t seed, std::size_t numel)
      : change_rate_(change_rate), random_(seed), words_(numel) {
    std::normal_distribution<float> normal(0.0F, kSigma);
    for (Word& word : words_) {
      const float weight = normal(random_);
      if constexpr (sizeof(Word) == 4) {
        word = std::bit_cast<std::uint32_t>(weight);
      } else {
        word = dtype == ciera::DType::kBf16 ? bf16_bits(weight) : half_bits(weight);
      }
    }
  }

  std::span<const std::byte> words() const override { return std::as_bytes(std::span(words_)); }

  void advance() override {
    if (change_rate_ <= 0) {
      return;
    }
    for (std::size_t i = gap(); i < words_.size(); i += 1 + gap()) {
      words_[i] = moved(words_[i], (random_() >> 63) != 0);
    }
  }

 private:
  // Words before the next that moves: geometric, so that only those that move cost a draw.
  std::size_t gap() {
    if (change_rate_ >= 1) {
      return 0;
    }
    const double uniform = (static_cast<double>(random_() >> 11) + 0.5) * 0x1p-53;
    const double skipped = std::log(uniform) / std::log1p(-change_rate_);
    const auto most = static_cast<double>(words_.size());
    return skipped < most ? static_cast<std::size_t>(skipped) : words_.size();
  }

  // One unit in the last place away from zero or towards it; zero has no smaller neighbour.
  static Word moved(Word word, bool away) {
    constexpr Word kMagnitude = std::numeric_limits<Word>::max() >> 1;
    return static_cast<Word>(away || (word & kMagnitude) == 0 ? word + 1 : word - 1);
  }

  double change_rate_;
  std::mt19937_64 random_;
  std::vector<Word> words_;
};

class SyntheticSource final : public StepsSource {
 public:
  SyntheticSource(ciera::DType dtype, double change_rate, std::uint64_t seed)
      : dtype_(dtype), change_rate_(change_rate), seed_(seed) {}

  std::unique_ptr<Steps> make(std::size_t rank, std::size_t numel) const override {
    const std::uint64_t own = mixed(seed_) ^ mixed(rank + 1);
    if (ciera::element_bytes(dtype_) == 4) {
      return std::make_unique<SyntheticSteps<std::uint32_t>>(dtype_, change_rate_, own, numel);
    }
    return std::make_unique<SyntheticSteps<std::uint16_t>>(dtype_, change_rate_, own, numel);
  }

 private:
  ciera::DType dtype_;
  double change_rate_;
  std::uint64_t seed_;
};

}  // namespace

std::unique_ptr<StepsSource> make_synthetic(ciera::DType dtype, double change_rate,
                                            std::uint64_t seed) {
  return std::make_unique<SyntheticSource>(dtype, change_rate, seed);
}

}  // namespace ciera_perf
