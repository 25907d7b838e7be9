// How a thread reads eight consecutive values that are differenced: words of 1, 2, 4 or 8 bytes.
#pragma once

#include <type_traits>

#include "codec/cuda/device_values.cuh"
#include "codec/delta_quads.hpp"

namespace ciera::codec::cuda {

// Eight values in registers, as they lie in memory.
template <class Word>
struct Group {
  static constexpr int kRegisters = 2 * sizeof(Word);
  std::uint32_t reg[kRegisters];

  __device__ Word get(std::uint32_t i) const {
    if constexpr (sizeof(Word) == 8) {
      return join(reg[2 * i], reg[2 * i + 1]);
    } else {
      constexpr std::uint32_t kEach = 4 / sizeof(Word);
      return static_cast<Word>(reg[i / kEach] >> (8 * sizeof(Word) * (i % kEach)));
    }
  }
  __device__ void set(std::uint32_t i, Word word) {  // where zero stands
    if constexpr (sizeof(Word) == 8) {
      reg[2 * i] = static_cast<std::uint32_t>(word);
      reg[2 * i + 1] = static_cast<std::uint32_t>(word >> 32);
    } else {
      constexpr std::uint32_t kEach = 4 / sizeof(Word);
      reg[i / kEach] |= static_cast<std::uint32_t>(word) << (8 * sizeof(Word) * (i % kEach));
    }
  }
};

// Values [first, first + count) of `from`, count from 0 to 8; the rest is zero. `wide`: `from` is
// aligned to 16 bytes; `first` is a multiple of 8.
template <class Word>
__device__ Group<Word> load_group(const Word* from, std::uint64_t first, std::uint32_t count,
                                  bool wide) {
  Group<Word> group{};
  if (wide && count == 8) {
    if constexpr (sizeof(Word) == 1) {
      const uint2 pair = *reinterpret_cast<const uint2*>(from + first);
      group.reg[0] = pair.x;
      group.reg[1] = pair.y;
    } else {
#pragma unroll
      for (int v = 0; v < Group<Word>::kRegisters / 4; ++v) {
        const uint4 vector = reinterpret_cast<const uint4*>(from + first)[v];
        group.reg[4 * v] = vector.x;
        group.reg[4 * v + 1] = vector.y;
        group.reg[4 * v + 2] = vector.z;
        group.reg[4 * v + 3] = vector.w;
      }
    }
    return group;
  }
#pragma unroll
  for (std::uint32_t i = 0; i < 8; ++i) {
    if (i < count) {
      group.set(i, from[first + i]);
    }
  }
  return group;
}

// kWhole: whole groups at aligned addresses, as nearly all are.
enum class Extent { kWhole, kAny };

// A group of eight values against their old ones: u of each, and the two quads.
template <class Word>
struct GroupDifference {
  Group<Word> u;
  std::uint32_t escapes = 0;  // bit i: value i is one
  std::uint32_t quads = 0;    // bytes in bits 0 to 7 and 16 to 23, their levels above
};

// What fills a quad beyond the shard's end, as quad_key has it.
inline constexpr std::uint32_t kFillKey = kFillLevel << 4;

// `count` of the eight values exist.
template <class Kind>
__device__ GroupDifference<typename Kind::Word> compare_one_by_one(
    const Group<typename Kind::Word>& old, const Group<typename Kind::Word>& now,
    std::uint32_t count) {
  using Word = typename Kind::Word;
  GroupDifference<Word> result{};
  std::uint32_t keys[8];
#pragma unroll
  for (std::uint32_t i = 0; i < 8; ++i) {
    const Word u = difference<Kind>(old.get(i), now.get(i));
    const std::uint32_t t = u < kEscape ? static_cast<std::uint32_t>(u) : kEscape;
    result.u.set(i, u);
    result.escapes |= (t == kEscape ? 1U : 0U) << i;
    keys[i] = i < count ? quad_key(Kind::level(old.get(i)), i % 4, t) : kFillKey | i % 4 << 2;
  }
  const QuadSymbol low = quad_of_keys(keys[0], keys[1], keys[2], keys[3]);
  const QuadSymbol high = quad_of_keys(keys[4], keys[5], keys[6], keys[7]);
  result.quads = low.byte | low.level << 8 | high.byte << 16 | high.level << 24;
  return result;
}

// The same for 16-bit words, two to a register throughout: a difference of halves is made without
// borrow between them, and a network sorts both quads at once.
template <class Kind>
struct PairedWords {
  static constexpr std::uint32_t kOnes = 0x00010001;
  static constexpr std::uint32_t kTops = 0x80008000;

  // The sign of each half in all its bits.
  __device__ static std::uint32_t spread_signs(std::uint32_t halves) {
    return pick_bytes(halves, 0, 0xBB99);
  }
  __device__ static std::uint32_t to_ordered(std::uint32_t words) {
    return Kind::kSignMagnitude ? words ^ (spread_signs(words) | kTops) : words;
  }
  __device__ static std::uint32_t differences(std::uint32_t old, std::uint32_t now) {
    const std::uint32_t a = to_ordered(now);
    const std::uint32_t b = to_ordered(old);
    const std::uint32_t d = ((a | kTops) - (b & ~kTops)) ^ ((a ^ ~b) & kTops);
    return (d << 1 & ~kOnes) ^ spread_signs(d);
  }
  // Levels where quad_key has them.
  __device__ static std::uint32_t levels(std::uint32_t old) {
    if constexpr (std::is_same_v<Kind, FloatWord<Bf16>>) {
      return old >> 3 & 0x0FF00FF0;
    } else if constexpr (std::is_same_v<Kind, FloatWord<Fp16>>) {
      return old >> 6 & 0x01F001F0;
    } else {
      return 0;
    }
  }
  __device__ static void sort(std::uint32_t& low, std::uint32_t& high) {
    const std::uint32_t least = __vminu2(low, high);
    high = __vmaxu2(low, high);
    low = least;
  }

  template <Extent kExtent>
  __device__ static GroupDifference<std::uint16_t> compare(const Group<std::uint16_t>& old,
                                                           const Group<std::uint16_t>& now,
                                                           std::uint32_t count) {
    GroupDifference<std::uint16_t> result{};
    std::uint32_t keys[4];
    std::uint32_t escapes = 0;
#pragma unroll
    for (std::uint32_t r = 0; r < 4; ++r) {
      result.u.reg[r] = differences(old.reg[r], now.reg[r]);
      const std::uint32_t t = __vminu2(result.u.reg[r], kEscape * kOnes);
      escapes |= (t & t >> 1 & kOnes) << (2 * r);
      const std::uint32_t places = r % 2 == 0 ? 0x00040000 : 0x000C0008;
      keys[r] = levels(old.reg[r]) | t | places;
      if (kExtent == Extent::kAny && count < 8) {  // halves beyond the end
        keys[r] = count <= 2 * r       ? kFillKey * kOnes | places
                  : count == 2 * r + 1 ? (keys[r] & 0xFFFF) | kFillKey << 16 | (places & 0xFFFF0000)
                                       : keys[r];
      }
    }
    result.escapes = (escapes | escapes >> 15) & 0xFF;
    // Value i of both quads into one register.
    std::uint32_t a = pick_bytes(keys[0], keys[2], 0x5410);
    std::uint32_t b = pick_bytes(keys[0], keys[2], 0x7632);
    std::uint32_t c = pick_bytes(keys[1], keys[3], 0x5410);
    std::uint32_t d = pick_bytes(keys[1], keys[3], 0x7632);
    sort(a, b);
    sort(c, d);
    sort(a, c);
    sort(b, d);
    sort(b, c);
    constexpr std::uint32_t kT = 3 * kOnes;
    result.quads = (a & kT) | (b & kT) << 2 | (c & kT) << 4 | (d & kT) << 6 | (a << 4 & 0xFF00FF00);
    return result;
  }
};

template <class Kind, Extent kExtent>
__device__ GroupDifference<typename Kind::Word> compare_group(const Group<typename Kind::Word>& old,
                                                              const Group<typename Kind::Word>& now,
                                                              std::uint32_t count) {
  if constexpr (sizeof(typename Kind::Word) == 2) {
    return PairedWords<Kind>::template compare<kExtent>(old, now, count);
  } else {
    return compare_one_by_one<Kind>(old, now, count);
  }
}

}  // namespace ciera::codec::cuda
