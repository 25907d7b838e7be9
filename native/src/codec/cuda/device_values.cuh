// How a thread reads and writes eight consecutive values: words, their exponents, their signs and
// mantissas (docs/wire-format.md, section 3). Eight, because packed fields and the words of the
// block hash come in groups of eight.
#pragma once

#include <cstddef>
#include <cstdint>

#include "codec/split.hpp"

namespace ciera::codec::cuda {

inline constexpr unsigned kFullWarp = 0xFFFFFFFFU;

// Eight values in registers: for 16-bit formats two to a register.
template <class Format>
struct Words8 {
  static constexpr int kRegisters = 8 * sizeof(typename Format::Word) / 4;
  std::uint32_t reg[kRegisters];

  __device__ void set(std::uint32_t i, typename Format::Word word) {
    if constexpr (kRegisters == 4) {
      reg[i / 2] |= static_cast<std::uint32_t>(word) << (16 * (i % 2));
    } else {
      reg[i] = word;
    }
  }
  __device__ typename Format::Word get(std::uint32_t i) const {
    if constexpr (kRegisters == 4) {
      return static_cast<typename Format::Word>(reg[i / 2] >> (16 * (i % 2)));
    } else {
      return reg[i];
    }
  }
};

// Values [first, first + count) of `src`, count from 1 to 8; the rest is zero. `wide`: src is
// aligned to 16 bytes, so that a whole group is one or two loads.
template <class Format>
__device__ Words8<Format> load_words(const typename Format::Word* src, std::uint64_t first,
                                     std::uint32_t count, bool wide) {
  Words8<Format> words{};
  if (wide && count == 8) {
    constexpr int kVectors = sizeof(words) / sizeof(uint4);
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      const uint4 vector = reinterpret_cast<const uint4*>(src + first)[v];
      words.reg[4 * v] = vector.x;
      words.reg[4 * v + 1] = vector.y;
      words.reg[4 * v + 2] = vector.z;
      words.reg[4 * v + 3] = vector.w;
    }
    return words;
  }
#pragma unroll
  for (std::uint32_t i = 0; i < 8; ++i) {
    if (i < count) {
      words.set(i, src[first + i]);
    }
  }
  return words;
}

template <class Format>
__device__ void store_words(const Words8<Format>& words, typename Format::Word* dst,
                            std::uint64_t first, std::uint32_t count, bool wide) {
  if (wide && count == 8) {
    constexpr int kVectors = sizeof(words) / sizeof(uint4);
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      reinterpret_cast<uint4*>(dst + first)[v] =
          uint4{words.reg[4 * v], words.reg[4 * v + 1], words.reg[4 * v + 2], words.reg[4 * v + 3]};
    }
    return;
  }
#pragma unroll
  for (std::uint32_t i = 0; i < 8; ++i) {
    if (i < count) {
      dst[first + i] = words.get(i);
    }
  }
}

__device__ inline std::uint64_t join(std::uint32_t low, std::uint32_t high) {
  return low | static_cast<std::uint64_t>(high) << 32;
}

// One byte of each half of four registers, the lower byte of a half where `selector` says so.
inline constexpr unsigned kLowBytes = 0x6420;  // of the halves of two registers
inline constexpr unsigned kHighBytes = 0x7531;
__device__ inline std::uint64_t bytes_of_halves(const std::uint32_t (&pairs)[4],
                                                unsigned selector) {
  return join(__byte_perm(pairs[0], pairs[1], selector), __byte_perm(pairs[2], pairs[3], selector));
}

// The reverse: byte 2k and 2k + 1 of `bytes` as the halves of a register.
__device__ inline std::uint32_t halves_of_bytes(std::uint64_t bytes, int k) {
  const auto half = static_cast<std::uint32_t>(k < 2 ? bytes : bytes >> 32);
  return __byte_perm(half, 0, k % 2 == 0 ? 0x4140 : 0x4342);
}

// Exponents of a group as one word, value 0 in the lowest byte: a word of the block hash.
template <class Format>
__device__ std::uint64_t exponents_of(const Words8<Format>& words) {
  if constexpr (sizeof(typename Format::Word) == 2) {
    // The exponent into the upper (8 bits) or the lower byte (5 bits) of each half.
    constexpr bool kWhole = Format::kExponentBits == 8;
    std::uint32_t pairs[4];
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      pairs[k] = kWhole ? words.reg[k] << 1 : words.reg[k] >> Format::kMantissaBits & 0x001F001F;
    }
    return bytes_of_halves(pairs, kWhole ? kHighBytes : kLowBytes);
  } else {
    std::uint64_t packed = 0;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      packed |= static_cast<std::uint64_t>(exponent_of<Format>(words.reg[i])) << (8 * i);
    }
    return packed;
  }
}

__device__ inline std::uint8_t byte_of(std::uint64_t packed, std::uint32_t i) {
  return static_cast<std::uint8_t>(packed >> (8 * i));
}

// Bit `plane` of each of the 8 bytes of `values`, as one byte.
__device__ inline std::uint8_t plane_of(std::uint64_t values, int plane) {
  // The multiplication gathers bit 0 of every byte in the highest byte.
  return static_cast<std::uint8_t>(
      ((values >> plane & 0x0101010101010101ULL) * 0x0102040810204080ULL) >> 56);
}

// The reverse: bit i of `bits` becomes bit `plane` of byte i.
__device__ inline std::uint64_t spread_plane(std::uint8_t bits, int plane) {
  const std::uint64_t copies = bits * 0x0101010101010101ULL & 0x8040201008040201ULL;
  return ((copies + 0x00406070787C7E7FULL) >> 7 & 0x0101010101010101ULL) << plane;
}

// Bytes of a group; `from` and `to` are aligned to 8, as everything is that groups are stored in.
__device__ inline std::uint64_t load_bytes(const std::uint8_t* from, std::uint32_t count) {
  if (count == 8) {
    return *reinterpret_cast<const std::uint64_t*>(from);
  }
  std::uint64_t packed = 0;
#pragma unroll
  for (std::uint32_t i = 0; i < 8; ++i) {
    packed |= i < count ? static_cast<std::uint64_t>(from[i]) << (8 * i) : 0;
  }
  return packed;
}

__device__ inline void store_bytes(std::uint64_t packed, std::uint8_t* to, std::uint32_t count) {
  if (count == 8) {
    *reinterpret_cast<std::uint64_t*>(to) = packed;
    return;
  }
#pragma unroll
  for (std::uint32_t i = 0; i < 8; ++i) {
    if (i < count) {
      to[i] = byte_of(packed, i);
    }
  }
}

// The sign_mantissa section of a shard of `numel` values: group at value `first`, a multiple of 8.
// `store` hands every whole 8-byte word it writes to add(word, offset in the section): those of
// whole groups, in the first kSummedBytes bytes a value.
template <class Format>
struct SignMantissa;

template <>
struct SignMantissa<Bf16> {
  static constexpr std::uint32_t kSummedBytes = 1;
  template <class Add>
  __device__ static void store(const Words8<Bf16>& words, std::uint8_t* section,
                               std::uint64_t first, std::uint32_t count, std::uint64_t,
                               const Add& add) {
    std::uint32_t pairs[4];
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      pairs[k] = (words.reg[k] & 0x007F007F) | (words.reg[k] >> 8 & 0x00800080);
    }
    const std::uint64_t packed = bytes_of_halves(pairs, kLowBytes);
    store_bytes(packed, section + first, count);
    if (count == 8) {
      add(packed, first);
    }
  }
  // Sign and mantissa where they stand in a word, the exponent zero.
  __device__ static void load(const std::uint8_t* section, std::uint64_t first, std::uint32_t count,
                              std::uint64_t, Words8<Bf16>& words) {
    const std::uint64_t packed = load_bytes(section + first, count);
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      const std::uint32_t pair = halves_of_bytes(packed, k);
      words.reg[k] = (pair & 0x007F007F) | (pair & 0x00800080) << 8;
    }
  }
};

template <>
struct SignMantissa<Fp16> {
  static constexpr std::uint32_t kSummedBytes = 1;  // the packed bits stand at any offset
  template <class Add>
  __device__ static void store(const Words8<Fp16>& words, std::uint8_t* section,
                               std::uint64_t first, std::uint32_t count, std::uint64_t numel,
                               const Add& add) {
    std::uint32_t high[4];
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      high[k] = (words.reg[k] >> 8 & 0x00030003) | (words.reg[k] >> 13 & 0x00040004);
    }
    const std::uint64_t low = bytes_of_halves(words.reg, kLowBytes);
    store_bytes(low, section + first, count);
    if (count == 8) {
      add(low, first);
    }
    std::uint8_t* planes = section + numel + 3 * (first / 8);
    const std::uint64_t packed = bytes_of_halves(high, kLowBytes);
#pragma unroll
    for (int plane = 0; plane < 3; ++plane) {
      planes[plane] = plane_of(packed, plane);
    }
  }
  __device__ static void load(const std::uint8_t* section, std::uint64_t first, std::uint32_t count,
                              std::uint64_t numel, Words8<Fp16>& words) {
    const std::uint64_t low = load_bytes(section + first, count);
    const std::uint8_t* planes = section + numel + 3 * (first / 8);
    std::uint64_t high = 0;
#pragma unroll
    for (int plane = 0; plane < 3; ++plane) {
      high |= spread_plane(planes[plane], plane);
    }
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      const std::uint32_t top = halves_of_bytes(high, k);
      words.reg[k] = halves_of_bytes(low, k) | (top & 0x00030003) << 8 | (top & 0x00040004) << 13;
    }
  }
};

template <>
struct SignMantissa<Fp32> {
  static constexpr std::uint32_t kSummedBytes = 3;
  template <class Add>
  __device__ static void store(const Words8<Fp32>& words, std::uint8_t* section,
                               std::uint64_t first, std::uint32_t count, std::uint64_t,
                               const Add& add) {
    std::uint64_t packed[3] = {};
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const std::uint32_t rest = sign_mantissa_of<Fp32>(words.reg[i]);
#pragma unroll
      for (int k = 0; k < 3; ++k) {
        const int at = 3 * i + k;
        packed[at / 8] |= static_cast<std::uint64_t>(rest >> (8 * k) & 0xFF) << (8 * (at % 8));
      }
    }
    for_parts(count, [&](std::uint32_t part, std::uint32_t bytes) {
      store_bytes(packed[part], section + 3 * first + 8 * part, bytes);
      if (count == 8) {
        add(packed[part], 3 * first + 8 * part);
      }
    });
  }
  __device__ static void load(const std::uint8_t* section, std::uint64_t first, std::uint32_t count,
                              std::uint64_t, Words8<Fp32>& words) {
    std::uint64_t packed[3] = {};
    for_parts(count, [&](std::uint32_t part, std::uint32_t bytes) {
      packed[part] = load_bytes(section + 3 * first + 8 * part, bytes);
    });
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      std::uint32_t rest = 0;
#pragma unroll
      for (int k = 0; k < 3; ++k) {
        const int at = 3 * i + k;
        rest |= static_cast<std::uint32_t>(byte_of(packed[at / 8], at % 8)) << (8 * k);
      }
      words.reg[i] = merge_word<Fp32>(0, rest);
    }
  }

 private:
  // The 3 * count bytes of a group, 8 at a time.
  template <class Body>
  __device__ static void for_parts(std::uint32_t count, Body body) {
#pragma unroll
    for (std::uint32_t part = 0; part < 3; ++part) {
      const std::uint32_t bytes = 3 * count > 8 * part ? 3 * count - 8 * part : 0;
      if (bytes > 0) {
        body(part, bytes < 8 ? bytes : 8);
      }
    }
  }
};

// Puts exponents into words whose sign and mantissa are there.
template <class Format>
__device__ void merge_exponents(std::uint64_t exponents, Words8<Format>& words) {
  if constexpr (sizeof(typename Format::Word) == 2) {
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      words.reg[k] |= halves_of_bytes(exponents, k) << Format::kMantissaBits;
    }
  } else {
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      words.reg[i] |= static_cast<std::uint32_t>(byte_of(exponents, i)) << Format::kMantissaBits;
    }
  }
}

// Stored exponents (coder raw): bytes, or for FP16 groups of 8 in 5 packed bytes.
template <class Format>
__device__ void store_exponents8(std::uint64_t exponents, std::uint8_t* section,
                                 std::uint64_t first, std::uint32_t count) {
  if constexpr (Format::kExponentBits == 8) {
    store_bytes(exponents, section + first, count);
  } else {
    const std::uint64_t known = count == 8 ? exponents : exponents & ((1ULL << (8 * count)) - 1);
#pragma unroll
    for (int plane = 0; plane < 5; ++plane) {
      section[5 * (first / 8) + plane] = plane_of(known, plane);
    }
  }
}

template <class Format>
__device__ std::uint64_t load_exponents8(const std::uint8_t* section, std::uint64_t first,
                                         std::uint32_t count) {
  if constexpr (Format::kExponentBits == 8) {
    return load_bytes(section + first, count);
  } else {
    std::uint64_t exponents = 0;
#pragma unroll
    for (int plane = 0; plane < 5; ++plane) {
      exponents |= spread_plane(section[5 * (first / 8) + plane], plane);
    }
    return exponents;
  }
}

}  // namespace ciera::codec::cuda
