// Quads in registers: the order of their levels, their t, and the moves these stand for
// (docs/wire-format.md, section 11). Shared by host and GPU, so that what a GPU's lane does can be
// tested without one.
#pragma once

#include <cstdint>

#include "base/host_device.hpp"
#include "codec/delta_model.hpp"

namespace ciera::codec {

// Byte i of the result is the byte of b:a, eight of them, that nibble i of `selector` names in its
// lower three bits; with the fourth set, that byte's sign in all bits.
CIERA_HD inline std::uint32_t pick_bytes(std::uint32_t a, std::uint32_t b, std::uint32_t selector) {
#if defined(__CUDA_ARCH__)
  std::uint32_t picked;
  asm("prmt.b32 %0, %1, %2, %3;" : "=r"(picked) : "r"(a), "r"(b), "r"(selector));
  return picked;
#else
  const std::uint64_t both = a | static_cast<std::uint64_t>(b) << 32;
  std::uint32_t picked = 0;
  for (std::uint32_t i = 0; i < 4; ++i) {
    const std::uint32_t nibble = selector >> (4 * i) & 15;
    const auto byte = static_cast<std::uint32_t>(both >> (8 * (nibble & 7)) & 0xFF);
    picked |= (nibble < 8 ? byte : byte >> 7 != 0 ? 0xFF : 0) << (8 * i);
  }
  return picked;
#endif
}

// Operations on the halves of a register, each by itself.
CIERA_HD inline std::uint32_t add_halves(std::uint32_t a, std::uint32_t b) {
#if defined(__CUDA_ARCH__)
  return __vadd2(a, b);
#else
  return (a & 0xFFFF0000U) + (b & 0xFFFF0000U) + ((a + b) & 0xFFFFU);
#endif
}
CIERA_HD inline std::uint32_t min_halves(std::uint32_t a, std::uint32_t b) {
#if defined(__CUDA_ARCH__)
  return __vminu2(a, b);
#else
  const std::uint32_t low = (a & 0xFFFFU) < (b & 0xFFFFU) ? a & 0xFFFFU : b & 0xFFFFU;
  return ((a >> 16) < (b >> 16) ? a >> 16 : b >> 16) << 16 | low;
#endif
}

// Bit 0 of each byte as bits 0 to 3.
CIERA_HD constexpr std::uint32_t gather_bits(std::uint32_t bytes) {
  return (bytes & 0x01010101U) * 0x01020408U >> 24;
}

// The same of bytes that are 0 or 1; of four bytes 16, bits 4 to 7.
CIERA_HD inline std::uint32_t gather_bytes(std::uint32_t bytes) {
#if defined(__CUDA_ARCH__)
  return __dp4a(bytes, 0x08040201U, 0U);
#else
  return (bytes * 0x01020408U) >> 24;
#endif
}

// The four words of a quad, as they lie in memory.
template <class Kind>
struct Quad {
  using Word = typename Kind::Word;
  static constexpr std::uint32_t kRegisters = sizeof(Word);
  std::uint32_t reg[kRegisters];

  CIERA_HD Word get(std::uint32_t i) const {
    if constexpr (sizeof(Word) == 8) {
      return reg[2 * i] | static_cast<std::uint64_t>(reg[2 * i + 1]) << 32;
    } else if constexpr (sizeof(Word) == 4) {
      return reg[i];
    } else {
      constexpr std::uint32_t kPerRegister = 4 / sizeof(Word);
      return static_cast<Word>(reg[i / kPerRegister] >> (kWordBits<Kind> * (i % kPerRegister)));
    }
  }
  CIERA_HD void set(std::uint32_t i, Word word) {
    if constexpr (sizeof(Word) == 8) {
      reg[2 * i] = static_cast<std::uint32_t>(word);
      reg[2 * i + 1] = static_cast<std::uint32_t>(word >> 32);
    } else if constexpr (sizeof(Word) == 4) {
      reg[i] = word;
    } else {
      constexpr std::uint32_t kPerRegister = 4 / sizeof(Word);
      const std::uint32_t shift = kWordBits<Kind> * (i % kPerRegister);
      constexpr std::uint32_t kMask = (1U << kWordBits<Kind>)-1;
      std::uint32_t& target = reg[i / kPerRegister];
      target = (target & ~(kMask << shift)) | static_cast<std::uint32_t>(word) << shift;
    }
  }
};

// The levels of a quad, one to a half: values 0 and 1, values 2 and 3. They stand below bit 15,
// where the words of their kind have them.
struct QuadLevels {
  std::uint32_t low;
  std::uint32_t high;
};
// Where: by what a level is shifted.
template <class Kind>
inline constexpr std::uint32_t kLevelShift = 0;
template <class Format>
inline constexpr std::uint32_t kLevelShift<FloatWord<Format>> =
    Format::kMantissaBits - (sizeof(typename Format::Word) == 4 ? 16 : 0);

template <class Kind>
CIERA_HD QuadLevels levels_of(const Quad<Kind>& quad) {
  constexpr std::uint32_t kField = 0x7FFFU >> kLevelShift<Kind> << kLevelShift<Kind>;
  constexpr std::uint32_t kFields = kField | kField << 16;
  if constexpr (!Kind::kSignMagnitude) {
    return sizeof(typename Kind::Word) == 1 && Kind::level(1) == 1
               ? QuadLevels{pick_bytes(quad.reg[0], 0, 0x4140), pick_bytes(quad.reg[0], 0, 0x4342)}
               : QuadLevels{0, 0};
  } else if constexpr (sizeof(typename Kind::Word) == 2) {
    return {quad.reg[0] & kFields, quad.reg[1] & kFields};
  } else {
    return {pick_bytes(quad.reg[0], quad.reg[1], 0x7632) & kFields,
            pick_bytes(quad.reg[2], quad.reg[3], 0x7632) & kFields};
  }
}
// Of the first `count` values of the shard's last quad: what fills it comes after them, as
// kFillLevel does.
template <class Kind>
CIERA_HD QuadLevels levels_of(const Quad<Kind>& quad, std::uint32_t count) {
  constexpr std::uint32_t kFill = 0x7FFF;
  QuadLevels levels = levels_of(quad);
  levels.low |= (count > 0 ? 0 : kFill) | (count > 1 ? 0 : kFill << 16);
  levels.high |= (count > 2 ? 0 : kFill) | (count > 3 ? 0 : kFill << 16);
  return levels;
}

// The smallest level of a quad, as the model has it, and in nibble i, for i from 0 to 3, where
// value i comes in ascending order; what stands above has no meaning.
struct QuadOrder {
  std::uint32_t least;
  std::uint32_t places;
};
template <class Kind>
CIERA_HD QuadOrder order_quad(QuadLevels levels) {
  if constexpr (!Kind::kSignMagnitude && Kind::level(1) == 0) {
    return {0, 0x3210};  // of equal levels, before what fills the quad
  }
  // Two pairs at once: bits 15 and 31 of a difference stay set where the pair is in order.
  constexpr std::uint32_t kGuards = 0x80008000U;
  const auto in_order = [](std::uint32_t first, std::uint32_t second) {
    return (second + kGuards - first) >> 15 & 0x00010001U;
  };
  const std::uint32_t l1_l2 = pick_bytes(levels.low, levels.high, 0x5432);
  const std::uint32_t l0_l2 = pick_bytes(levels.low, levels.high, 0x5410);
  const std::uint32_t l3_l3 = pick_bytes(levels.high, 0, 0x3232);
  const std::uint32_t pairs_02_13 = in_order(levels.low, levels.high);
  const std::uint32_t pairs_01_12 = in_order(levels.low, l1_l2);
  const std::uint32_t pairs_03_23 = in_order(l0_l2, l3_l3);
  // From the reverse order on, a pair i, j in order moves value j up by a place, and i down: adds
  // 16^j - 16^i. In the upper half everything counts 16 times as much.
  const std::uint32_t sums = 0x0123 + 255 * pairs_02_13 + 15 * pairs_01_12 + 240 * pairs_03_23 +
                             (4095 - 240) * (pairs_03_23 & 1);
  const std::uint32_t least = min_halves(levels.low, levels.high);
  const std::uint32_t left = least & 0xFFFFU;
  const std::uint32_t right = least >> 16;
  return {(left < right ? left : right) >> kLevelShift<Kind>, sums + (sums >> 16) * 16};
}

// Bit i: value i is an escape.
CIERA_HD constexpr std::uint32_t quad_escapes(std::uint32_t moves) {
  return gather_bits(moves & moves >> 1);
}

// Adds bytes, no carry between them.
CIERA_HD constexpr std::uint32_t add_bytes(std::uint32_t a, std::uint32_t b) {
  constexpr std::uint32_t kSigns = 0x80808080U;
  return ((a & ~kSigns) + (b & ~kSigns)) ^ ((a ^ b) & kSigns);
}

// The two words of a register, moved by as many of the halves of `by`.
template <class Kind>
CIERA_HD std::uint32_t move_halves(std::uint32_t words, std::uint32_t by) {
  if constexpr (Kind::kSignMagnitude) {
    // As to_ordered and from_ordered; 0xBB99: the sign of each half in all its bits.
    const std::uint32_t negative = pick_bytes(words, 0, 0xBB99);
    const std::uint32_t moved = add_halves(words ^ (negative | 0x80008000U), by);
    const std::uint32_t positive = pick_bytes(moved, 0, 0xBB99);
    return ~(moved ^ (positive & 0x7FFF7FFFU));
  } else {
    return add_halves(words, by);
  }
}

// A t as the signed byte that is added to a value; escapes stay as they are. Four at once.
CIERA_HD constexpr std::uint32_t steps_of(std::uint32_t moves) {
  const std::uint32_t up = moves >> 1 & ~moves & 0x01010101U;
  const std::uint32_t down = moves & ~(moves >> 1) & 0x01010101U;
  return up + down * 0xFFU;
}

// The quad whose value i has moved by the signed byte i of `steps`.
template <class Kind>
CIERA_HD Quad<Kind> shift_quad(const Quad<Kind>& quad, std::uint32_t steps) {
  using Word = typename Kind::Word;
  Quad<Kind> moved = quad;
  if constexpr (sizeof(Word) == 1) {
    moved.reg[0] = add_bytes(quad.reg[0], steps);
  } else if constexpr (sizeof(Word) == 2) {  // bytes as halves, with their signs
    moved.reg[0] = move_halves<Kind>(quad.reg[0], pick_bytes(steps, 0, 0x9180));
    moved.reg[1] = move_halves<Kind>(quad.reg[1], pick_bytes(steps, 0, 0xB3A2));
  } else {
    for (std::uint32_t i = 0; i < 4; ++i) {
      const auto step = static_cast<std::int8_t>(steps >> (8 * i));
      moved.set(i, from_ordered<Kind>(
                       static_cast<Word>(to_ordered<Kind>(quad.get(i)) + static_cast<Word>(step))));
    }
  }
  return moved;
}

// The quad after `moves` (quad_moves); escapes stay as they are.
template <class Kind>
CIERA_HD Quad<Kind> move_quad(const Quad<Kind>& quad, std::uint32_t moves) {
  return shift_quad<Kind>(quad, steps_of(moves));
}

// The four t of a symbol, a byte each, in ascending order of levels.
CIERA_HD constexpr std::uint32_t spread_symbol(std::uint32_t symbol) {
  const std::uint32_t halves = (symbol | symbol << 12) & 0x000F000FU;
  return (halves | halves << 6) & 0x03030303U;
}

// The t of value i as byte i, from the quad's symbol and the places of its values.
CIERA_HD inline std::uint32_t quad_moves(std::uint32_t symbol, std::uint32_t places) {
  return pick_bytes(spread_symbol(symbol), 0, places);
}

}  // namespace ciera::codec
