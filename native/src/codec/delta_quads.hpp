// Quads in registers: the order of their levels, their t, and the moves these stand for
// (docs/wire-format.md, section 11). Shared by host and GPU, so that what a GPU's lane does can be
// tested without one.
#pragma once

#include <cstdint>

#include "base/host_device.hpp"
#include "codec/delta_model.hpp"

namespace ciera::codec {

// Byte i of the result is the byte of b:a, eight of them, that nibble i of `selector` names.
CIERA_HD inline std::uint32_t pick_bytes(std::uint32_t a, std::uint32_t b, std::uint32_t selector) {
#if defined(__CUDA_ARCH__)
  return __byte_perm(a, b, selector);
#else
  const std::uint64_t both = a | static_cast<std::uint64_t>(b) << 32;
  std::uint32_t picked = 0;
  for (std::uint32_t i = 0; i < 4; ++i) {
    picked |= static_cast<std::uint32_t>(both >> (8 * (selector >> (4 * i) & 7)) & 0xFF) << (8 * i);
  }
  return picked;
#endif
}

// Bit 0 of each byte as bits 0 to 3.
CIERA_HD constexpr std::uint32_t gather_bits(std::uint32_t bytes) {
  return (bytes & 0x01010101U) * 0x01020408U >> 24;
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

// Of a quad's levels: the smallest, and in nibble i where value i comes in ascending order.
struct QuadOrder {
  std::uint32_t least;
  std::uint32_t places;
};
CIERA_HD constexpr QuadOrder order_quad(std::uint32_t l0, std::uint32_t l1, std::uint32_t l2,
                                        std::uint32_t l3) {
  // Every pair out of order moves one of them up by a place and the other down.
  std::uint32_t places = 0x3210;
  places += l1 < l0 ? 0x0001U - 0x0010U : 0;
  places += l2 < l0 ? 0x0001U - 0x0100U : 0;
  places += l3 < l0 ? 0x0001U - 0x1000U : 0;
  places += l2 < l1 ? 0x0010U - 0x0100U : 0;
  places += l3 < l1 ? 0x0010U - 0x1000U : 0;
  places += l3 < l2 ? 0x0100U - 0x1000U : 0;
  const std::uint32_t low = l0 < l1 ? l0 : l1;
  const std::uint32_t high = l2 < l3 ? l2 : l3;
  return {low < high ? low : high, places};
}
// Of the first `count` values of a quad, the last of a shard, which fills it.
template <class Kind>
CIERA_HD QuadOrder order_quad(const Quad<Kind>& quad, std::uint32_t count = 4) {
  return order_quad(Kind::level(quad.get(0)), count > 1 ? Kind::level(quad.get(1)) : kFillLevel,
                    count > 2 ? Kind::level(quad.get(2)) : kFillLevel,
                    count > 3 ? Kind::level(quad.get(3)) : kFillLevel);
}

// The t of value i as byte i, from the quad's symbol and the places of its values.
CIERA_HD inline std::uint32_t quad_moves(std::uint32_t symbol, std::uint32_t places) {
  const std::uint32_t halves = (symbol | symbol << 12) & 0x000F000FU;
  const std::uint32_t ordered = (halves | halves << 6) & 0x03030303U;
  return pick_bytes(ordered, 0, places);
}
// Bit i: value i is an escape.
CIERA_HD constexpr std::uint32_t quad_escapes(std::uint32_t moves) {
  return gather_bits(moves & moves >> 1);
}

// All bits of each of the words in a register (of 8 or 16 bits) as its highest bit is.
template <class Word>
CIERA_HD inline std::uint32_t spread_signs(std::uint32_t words) {
  static_assert(sizeof(Word) == 2, "sign-magnitude words of other sizes stand alone");
#if defined(__CUDA_ARCH__)
  std::uint32_t signs;  // a selector with its highest bit set takes the sign of the byte
  asm("prmt.b32 %0, %1, %1, 0xBB99;" : "=r"(signs) : "r"(words));
  return signs;
#else
  return (words >> 15 & 0x00010001U) * 0xFFFFU;
#endif
}

// Adds words of a register to those of another, no carry between them.
template <class Word>
CIERA_HD constexpr std::uint32_t add_words(std::uint32_t a, std::uint32_t b) {
  constexpr std::uint32_t kSigns = sizeof(Word) == 1 ? 0x80808080U : 0x80008000U;
  return ((a & ~kSigns) + (b & ~kSigns)) ^ ((a ^ b) & kSigns);
}

// The words of a register, moved by as many of `by`, modulo their size.
template <class Kind>
CIERA_HD inline std::uint32_t move_words(std::uint32_t words, std::uint32_t by) {
  using Word = typename Kind::Word;
  if constexpr (Kind::kSignMagnitude) {
    constexpr std::uint32_t kSigns = 0x80008000U;
    const std::uint32_t moved = add_words<Word>(words ^ (spread_signs<Word>(words) | kSigns), by);
    return moved ^ (~spread_signs<Word>(moved) | kSigns);
  } else {
    return add_words<Word>(words, by);
  }
}

// The quad after `moves` (quad_moves); escapes stay as they are.
template <class Kind>
CIERA_HD Quad<Kind> move_quad(const Quad<Kind>& quad, std::uint32_t moves) {
  using Word = typename Kind::Word;
  Quad<Kind> moved = quad;
  if constexpr (sizeof(Word) <= 2) {
    const std::uint32_t up = moves >> 1 & ~moves & 0x01010101U;
    const std::uint32_t down = moves & ~(moves >> 1) & 0x01010101U;
    for (std::uint32_t r = 0; r < Quad<Kind>::kRegisters; ++r) {
      if constexpr (sizeof(Word) == 1) {
        moved.reg[r] = move_words<Kind>(quad.reg[r], up + down * 0xFFU);
      } else {
        const std::uint32_t halves = r == 0 ? 0x4140 : 0x4342;  // two bytes as halves of a register
        moved.reg[r] = move_words<Kind>(
            quad.reg[r], pick_bytes(up, 0, halves) + pick_bytes(down, 0, halves) * 0xFFFFU);
      }
    }
  } else {
    for (std::uint32_t i = 0; i < 4; ++i) {
      const std::uint32_t t = moves >> (8 * i) & 3;
      moved.set(i, apply_difference<Kind>(quad.get(i), t == kEscape ? 0 : t));
    }
  }
  return moved;
}

}  // namespace ciera::codec
