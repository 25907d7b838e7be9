#include "base/bytes.hpp"
#include "codec/host/rans_kernels.hpp"

namespace ciera::codec::host {

std::uint16_t* encode_segment_scalar(const RansEncodeTable& table,
                                     std::span<const std::uint8_t> symbols,
                                     std::span<std::uint16_t> region,
                                     std::uint32_t (&states)[kRansLanes]) {
  std::uint16_t* top = region.data() + region.size();
  for (std::uint32_t& state : states) {
    state = kRansLow;
  }
  for (std::size_t i = symbols.size(); i-- > 0;) {
    std::uint32_t& state = states[i % kRansLanes];
    state = encode_symbol(table, symbols[i], state, top);
  }
  return top;
}

bool decode_steps(const RansDecodeTable& table, std::size_t from, std::span<const std::byte> words,
                  std::size_t& next_word, std::uint32_t (&states)[kRansLanes],
                  std::span<std::uint8_t> symbols) {
  const std::uint32_t mask = (1U << table.prob_bits) - 1;
  const std::size_t word_count = words.size() / 2;
  for (std::size_t i = from; i < symbols.size(); ++i) {
    std::uint32_t& x = states[i % kRansLanes];
    const std::uint32_t slot = table.slots[x & mask];
    symbols[i] = static_cast<std::uint8_t>(slot);
    x = ((slot >> 8 & 0xFFF) + 1) * (x >> table.prob_bits) + (slot >> 20);
    if (x < kRansLow) {
      if (next_word == word_count) {
        return false;
      }
      x = x << 16 | base::load_le<std::uint16_t>(words.data() + 2 * next_word);
      ++next_word;
    }
  }
  return true;
}

bool finished(std::span<const std::byte> words, std::size_t next_word,
              const std::uint32_t (&states)[kRansLanes]) {
  bool home = next_word == words.size() / 2;
  for (const std::uint32_t state : states) {
    home = home && state == kRansLow;
  }
  return home;
}

bool decode_segment_scalar(const RansDecodeTable& table, std::span<const std::byte> words,
                           std::uint32_t (&states)[kRansLanes], std::span<std::uint8_t> symbols) {
  std::size_t next_word = 0;
  return decode_steps(table, 0, words, next_word, states, symbols) &&
         finished(words, next_word, states);
}

}  // namespace ciera::codec::host
