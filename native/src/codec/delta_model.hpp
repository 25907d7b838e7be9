// Differences between consecutive values and the model they are coded with: order, levels, quads,
// tables (docs/wire-format.md, section 11). Shared by host and GPU; integer arithmetic only, so
// that both build the same tables.
#pragma once

#include <cstdint>

#include "base/host_device.hpp"
#include "ciera/types.hpp"
#include "codec/rans_table.hpp"
#include "codec/split.hpp"

namespace ciera::codec {

inline constexpr std::uint32_t kDeltaProbBits = 11;  // what encoders write
inline constexpr std::uint32_t kMaxQuadContexts = 8;
inline constexpr std::uint32_t kMaxValueContexts = 12;
inline constexpr std::uint32_t kQuadParameters = 12;  // of one context
inline constexpr std::uint32_t kMark = 0x66;          // "the quad's byte follows"
inline constexpr std::uint32_t kEscape = 3;           // the t of differences the quad does not hold
inline constexpr std::uint32_t kFillLevel = 255;      // of what fills the last quad
inline constexpr std::int8_t kNever = 127;
inline constexpr std::int32_t kMaxScore = 120;

// What a differences section codes: exponent bytes, or the words of a dtype.
struct ExponentByte {
  using Word = std::uint8_t;
  static constexpr bool kSignMagnitude = false;
  static CIERA_HD constexpr std::uint8_t level(Word old) { return old; }
};
template <class Format>
struct FloatWord {
  using Word = typename Format::Word;
  static constexpr bool kSignMagnitude = true;
  static CIERA_HD constexpr std::uint8_t level(Word old) { return exponent_of<Format>(old); }
};
template <class T>
struct OpaqueWord {
  using Word = T;
  static constexpr bool kSignMagnitude = false;
  static CIERA_HD constexpr std::uint8_t level(Word) { return 0; }
};

template <class Kind>
inline constexpr std::uint32_t kWordBits = 8 * sizeof(typename Kind::Word);

// Sign-magnitude words as integers of the same order, and back.
template <class Kind>
CIERA_HD constexpr typename Kind::Word to_ordered(typename Kind::Word word) {
  using Word = typename Kind::Word;
  if constexpr (Kind::kSignMagnitude) {
    constexpr Word kSign = static_cast<Word>(Word{1} << (kWordBits<Kind> - 1));
    const Word negative = static_cast<Word>(0 - (word >> (kWordBits<Kind> - 1)));
    return static_cast<Word>(word ^ (negative | kSign));
  } else {
    return word;
  }
}
template <class Kind>
CIERA_HD constexpr typename Kind::Word from_ordered(typename Kind::Word ordered) {
  using Word = typename Kind::Word;
  if constexpr (Kind::kSignMagnitude) {
    constexpr Word kSign = static_cast<Word>(Word{1} << (kWordBits<Kind> - 1));
    const Word positive = static_cast<Word>(0 - (ordered >> (kWordBits<Kind> - 1)));
    return static_cast<Word>(ordered ^ (static_cast<Word>(~positive) | kSign));
  } else {
    return ordered;
  }
}

// u of the document: 0 unchanged, odd numbers down, even numbers up.
template <class Kind>
CIERA_HD constexpr typename Kind::Word difference(typename Kind::Word old,
                                                  typename Kind::Word now) {
  using Word = typename Kind::Word;
  const Word d = static_cast<Word>(to_ordered<Kind>(now) - to_ordered<Kind>(old));
  const Word negative = static_cast<Word>(0 - (d >> (kWordBits<Kind> - 1)));
  return static_cast<Word>(static_cast<Word>(d << 1) ^ negative);
}
template <class Kind>
CIERA_HD constexpr typename Kind::Word apply_difference(typename Kind::Word old,
                                                        typename Kind::Word u) {
  using Word = typename Kind::Word;
  const Word d = static_cast<Word>((u >> 1) ^ static_cast<Word>(0 - (u & 1)));
  return from_ordered<Kind>(static_cast<Word>(to_ordered<Kind>(old) + d));
}

// The value coder: a symbol and its extra bits.
struct ValueSymbol {
  std::uint32_t symbol = 0;
  std::uint32_t extra_bits = 0;
};
CIERA_HD constexpr std::uint32_t bit_width(std::uint64_t u) {
#if defined(__CUDA_ARCH__)
  return 64 - static_cast<std::uint32_t>(__clzll(static_cast<long long>(u)));
#else
  return u == 0 ? 0 : 64 - static_cast<std::uint32_t>(__builtin_clzll(u));
#endif
}
CIERA_HD constexpr ValueSymbol value_symbol(std::uint64_t u) {
  if (u < 16) {
    return {static_cast<std::uint32_t>(u), 0};
  }
  const std::uint32_t bits = bit_width(u);
  return {16 + 4 * (bits - 5) + static_cast<std::uint32_t>(u >> (bits - 3) & 3), bits - 3};
}
CIERA_HD constexpr std::uint32_t extra_bits_of(std::uint32_t symbol) {
  return symbol < 16 ? 0 : symbol / 4 - 2;
}
// U holds every u of the values at hand.
template <class U>
CIERA_HD constexpr U value_of(std::uint32_t symbol, U extra) {
  return symbol < 16 ? symbol : U{4 | (symbol & 3)} << extra_bits_of(symbol) | extra;
}
CIERA_HD constexpr std::uint32_t value_symbols(std::uint32_t word_bits) { return 4 * word_bits; }
// Steps of raw bits after a step of value symbols, and the bits that one of them takes: no more
// than keep a state in its range.
inline constexpr std::uint32_t kRawBits = 15;
CIERA_HD constexpr std::uint32_t raw_steps(std::uint32_t word_bits) {
  return (word_bits - 3 + kRawBits - 1) / kRawBits;
}
CIERA_HD constexpr std::uint32_t raw_step_bits(std::uint32_t extra_bits, std::uint32_t step) {
  return extra_bits <= kRawBits * step              ? 0
         : extra_bits - kRawBits * step >= kRawBits ? kRawBits
                                                    : extra_bits - kRawBits * step;
}

CIERA_HD constexpr std::uint32_t context_of(std::uint32_t level, std::uint32_t top,
                                            std::uint32_t contexts) {
  const std::uint32_t below = (level > top ? level : top) - level;
  const std::uint32_t last = contexts - 1;
  return below < last ? below : last;
}

// Of the four levels of a quad: where value i comes in ascending order.
CIERA_HD constexpr std::uint32_t quad_rank(const std::uint8_t* levels, std::uint32_t i) {
  std::uint32_t rank = 0;
  for (std::uint32_t j = 0; j < 4; ++j) {
    rank += levels[j] < levels[i] || (levels[j] == levels[i] && j < i) ? 1 : 0;
  }
  return rank;
}

// A value of a quad as a number that sorts by level, then by position; its t in the lowest bits.
CIERA_HD constexpr std::uint32_t quad_key(std::uint32_t level, std::uint32_t i, std::uint32_t t) {
  return level << 4 | i << 2 | t;
}
// What a quad codes: the keys of its four values, sorted here by a network.
struct QuadSymbol {
  std::uint32_t byte = 0;
  std::uint32_t level = 0;  // the smallest
};
CIERA_HD constexpr QuadSymbol quad_of_keys(std::uint32_t a, std::uint32_t b, std::uint32_t c,
                                           std::uint32_t d) {
  const auto sort = [](std::uint32_t& low, std::uint32_t& high) {
    const std::uint32_t least = low < high ? low : high;
    high = low < high ? high : low;
    low = least;
  };
  sort(a, b);
  sort(c, d);
  sort(a, c);
  sort(b, d);
  sort(b, c);
  return {(a & 3) | (b & 3) << 2 | (c & 3) << 4 | (d & 3) << 6, a >> 4};
}

// 8 log2(count), rounded; of 0 as of 1.
CIERA_HD constexpr std::int32_t log_eighths(std::uint64_t count) {
  constexpr std::uint32_t kSteps[8] = {17520007, 19105703, 20834917, 22720638,
                                       24777031, 27019544, 29465022, 32131834};
  if (count < 2) {
    return 0;
  }
  const std::uint32_t k = bit_width(count) - 1;
  const std::uint64_t fraction = k >= 24 ? count >> (k - 24) : count << (24 - k);
  std::int32_t eighths = 0;
  for (const std::uint32_t step : kSteps) {
    eighths += fraction >= step ? 1 : 0;
  }
  return static_cast<std::int32_t>(8 * k) + eighths;
}

// 2^(40 - score / 8), rounded down.
CIERA_HD constexpr std::uint64_t weight_of_score(std::uint32_t score) {
  constexpr std::uint64_t kFractions[8] = {1099511627776, 1008256608221, 924575386327,
                                           847839367509,  777472127994,  712945084849,
                                           653773525390,  599512966123};
  return score / 8 > 40 ? 0 : kFractions[score % 8] >> (score / 8);
}

// The parameters of one quad context: a_j and e_j of each position, then z_1 to z_4.
struct QuadModel {
  std::int8_t parameters[kQuadParameters] = {};
};

inline constexpr std::int32_t kImpossible = 1 << 20;  // its weight is 0, also five of them added

// How many t of a byte, or of half a byte, are not 0.
CIERA_HD constexpr std::uint32_t moved_in(std::uint32_t byte) {
  const std::uint32_t moved = (byte | byte >> 1) & 0x55;
  return (moved & 1) + (moved >> 2 & 1) + (moved >> 4 & 1) + (moved >> 6 & 1);
}

// The score of the t at positions 2 `half` and 2 `half` + 1, kImpossible for never.
CIERA_HD constexpr std::int32_t half_score(const QuadModel& model, std::uint32_t half,
                                           std::uint32_t pair) {
  std::int32_t score = 0;
  for (std::uint32_t j = 0; j < 2; ++j) {
    const std::uint32_t t = pair >> (2 * j) & 3;
    const std::int8_t parameter =
        t == 0 ? std::int8_t{0} : model.parameters[4 * half + 2 * j + (t == kEscape ? 1 : 0)];
    score += parameter == kNever ? kImpossible : parameter;
  }
  return score;
}

// What the number of t that are not 0 adds to a byte's score.
CIERA_HD constexpr std::int32_t moved_score(const QuadModel& model, std::uint32_t byte) {
  const std::uint32_t moved = moved_in(byte);
  const std::int32_t z = moved == 0 ? 0 : model.parameters[7 + moved];
  return z == kNever ? kImpossible : z;
}

// Scores of all bytes as weights, the likeliest 2^40; without z when `inflated` is false.
CIERA_HD inline void quad_weights(const QuadModel& model, bool inflated,
                                  std::uint64_t (&weights)[256]) {
  std::int32_t halves[2][16];
  for (std::uint32_t i = 0; i < 32; ++i) {
    halves[i / 16][i % 16] = half_score(model, i / 16, i % 16);
  }
  const auto score_of = [&](std::uint32_t byte) {
    return halves[0][byte & 15] + halves[1][byte >> 4] + (inflated ? moved_score(model, byte) : 0);
  };
  std::int32_t least = kImpossible;
  for (std::uint32_t b = 0; b < 256; ++b) {
    const std::int32_t score = score_of(b);
    least = score < least ? score : least;
  }
  for (std::uint32_t b = 0; b < 256; ++b) {
    weights[b] = weight_of_score(static_cast<std::uint32_t>(score_of(b) - least));
  }
}

// Whether a byte with that weight, of all weights' sum, is left to the mark.
CIERA_HD constexpr bool is_rare_quad(std::uint32_t byte, std::uint64_t weight, std::uint64_t sum,
                                     std::uint32_t prob_bits) {
  return weight << (prob_bits + 1) < sum || byte == kMark;
}

// The frequencies both ends use. Every byte can be coded: one without a frequency by the mark.
CIERA_HD inline void quad_frequencies(const QuadModel& model, std::uint32_t prob_bits,
                                      std::uint32_t (&frequencies)[256]) {
  std::uint64_t weights[256];
  quad_weights(model, true, weights);
  std::uint64_t sum = 0;
  for (const std::uint64_t weight : weights) {
    sum += weight;
  }
  std::uint64_t rare = 0;
  std::uint64_t kept = 0;
  for (std::uint32_t b = 0; b < 256; ++b) {
    if (is_rare_quad(b, weights[b], sum, prob_bits)) {
      rare += weights[b];
      weights[b] = 0;
    }
    kept += weights[b];
  }
  weights[kMark] = rare == 0 ? 1 : rare;
  normalise_counts(weights, kept + weights[kMark], prob_bits, frequencies);
}

CIERA_HD constexpr std::int8_t limited_score(std::int32_t score) {
  return static_cast<std::int8_t>(score > kMaxScore    ? kMaxScore
                                  : score < -kMaxScore ? -kMaxScore
                                                       : score);
}

// The encoder's parameters, from how often each byte occurs in the context.
CIERA_HD inline QuadModel make_quad_model(const std::uint64_t (&counts)[256]) {
  std::uint64_t by_position[4][4] = {};
  std::uint64_t by_moved[5] = {};
  for (std::uint32_t b = 0; b < 256; ++b) {
    for (std::uint32_t j = 0; j < 4; ++j) {
      by_position[j][b >> (2 * j) & 3] += counts[b];
    }
    by_moved[moved_in(b)] += counts[b];
  }
  QuadModel model;
  for (std::uint32_t j = 0; j < 4; ++j) {
    const std::uint64_t* n = by_position[j];
    const std::uint64_t small = n[1] + n[2];
    model.parameters[2 * j] =
        small == 0 ? kNever : limited_score(log_eighths(2 * n[0]) - log_eighths(small));
    model.parameters[2 * j + 1] =
        n[3] == 0 ? kNever : limited_score(log_eighths(n[0]) - log_eighths(n[3]));
  }
  std::uint64_t weights[256];
  quad_weights(model, false, weights);
  std::uint64_t expected[5] = {};
  for (std::uint32_t b = 0; b < 256; ++b) {
    expected[moved_in(b)] += weights[b];
  }
  for (std::uint32_t q = 1; q <= 4; ++q) {
    model.parameters[7 + q] =
        by_moved[q] == 0 || expected[q] == 0
            ? kNever
            : limited_score(log_eighths(by_moved[0]) + log_eighths(expected[q]) -
                            log_eighths(by_moved[q]) - log_eighths(expected[0]));
  }
  return model;
}

// Codes of value tables: 4 bits a symbol.
CIERA_HD constexpr std::uint32_t code_weight(std::uint32_t code) {
  constexpr std::uint32_t kWeights[16] = {0,   16,   28,   48,   82,   141,   244,   420,
                                          724, 1248, 2152, 3710, 6396, 11026, 19008, 32768};
  return kWeights[code];
}
CIERA_HD constexpr std::uint32_t code_of_count(std::uint64_t count, std::uint64_t total) {
  constexpr std::uint32_t kSteps[14] = {21,  36,   62,   108,  186,  320,   551,
                                        951, 1639, 2825, 4871, 8397, 14477, 24957};
  if (count == 0) {
    return 0;
  }
  std::uint32_t code = 1;
  for (const std::uint32_t step : kSteps) {
    code += count * 32768 >= step * total ? 1 : 0;
  }
  return code;
}
CIERA_HD inline void value_frequencies(const std::uint8_t (&codes)[256], std::uint32_t prob_bits,
                                       std::uint32_t (&frequencies)[256]) {
  std::uint64_t weights[256];
  std::uint64_t sum = 0;
  for (std::uint32_t s = 0; s < 256; ++s) {
    weights[s] = code_weight(codes[s]);
    sum += weights[s];
  }
  if (sum != 0) {
    normalise_counts(weights, sum, prob_bits, frequencies);
    return;
  }
  for (std::uint32_t& frequency : frequencies) {
    frequency = 0;
  }
}

// The encoder's choice of contexts.
struct ContextChoice {
  std::uint32_t contexts = 0;
  std::uint32_t top = 0;
};
CIERA_HD constexpr std::uint32_t quad_contexts_for(std::uint64_t moved_quads) {
  return moved_quads < 128 ? 1 : moved_quads < 1024 ? 4 : kMaxQuadContexts;
}
CIERA_HD constexpr std::uint32_t value_contexts_for(std::uint64_t values, Effort effort) {
  return values < 256 ? 1 : effort == Effort::kHigh && values >= 4096 ? kMaxValueContexts : 4;
}
// `levels`: how many items have each level, at least one; `share`: 64 or 16.
CIERA_HD inline ContextChoice choose_contexts(const std::uint64_t (&levels)[256],
                                              std::uint32_t wanted, std::uint32_t share) {
  std::uint64_t all = 0;
  std::uint32_t least = 256;
  for (std::uint32_t level = 0; level < 256; ++level) {
    all += levels[level];
    least = levels[level] != 0 && level < least ? level : least;
  }
  std::uint32_t top = 255;
  for (std::uint64_t reached = levels[255]; reached * share < all; reached += levels[top]) {
    --top;
  }
  const std::uint32_t most = top - least + 1;
  return {wanted < most ? wanted : most, top};
}

}  // namespace ciera::codec
