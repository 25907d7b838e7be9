// How a thread reads and writes eight consecutive values: words, their exponents, their signs and
// mantissas (docs/wire-format.md, section 3). Eight, because packed fields and the words of the
// block hash come in groups of eight.
#pragma once

#include <cstddef>
#include <cstdint>

#include "codec/split.hpp"

namespace ciera::codec::cuda {

inline constexpr unsigned kFullWarp = 0xFFFFFFFFU;

template <class Format>
struct Words8 {
  typename Format::Word w[8];
};

// Values [first, first + count) of `src`, count from 1 to 8; the rest is zero. `wide`: src is
// aligned to 16 bytes, so that a whole group is one or two loads.
template <class Format>
__device__ Words8<Format> load_words(const typename Format::Word* src, std::uint64_t first,
                                     std::uint32_t count, bool wide) {
  Words8<Format> words;
  if (wide && count == 8) {
    constexpr int kVectors = sizeof(words) / sizeof(uint4);
    uint4 vectors[kVectors];
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      vectors[v] = reinterpret_cast<const uint4*>(src + first)[v];
    }
    memcpy(&words, vectors, sizeof words);
    return words;
  }
#pragma unroll
  for (std::uint32_t i = 0; i < 8; ++i) {
    words.w[i] = i < count ? src[first + i] : 0;
  }
  return words;
}

template <class Format>
__device__ void store_words(const Words8<Format>& words, typename Format::Word* dst,
                            std::uint64_t first, std::uint32_t count, bool wide) {
  if (wide && count == 8) {
    constexpr int kVectors = sizeof(words) / sizeof(uint4);
    uint4 vectors[kVectors];
    memcpy(vectors, &words, sizeof words);
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      reinterpret_cast<uint4*>(dst + first)[v] = vectors[v];
    }
    return;
  }
#pragma unroll
  for (std::uint32_t i = 0; i < 8; ++i) {
    if (i < count) {
      dst[first + i] = words.w[i];
    }
  }
}

// Exponents of a group as one word, value 0 in the lowest byte: a word of the block hash.
template <class Format>
__device__ std::uint64_t exponents_of(const Words8<Format>& words) {
  std::uint64_t packed = 0;
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    packed |= static_cast<std::uint64_t>(exponent_of<Format>(words.w[i])) << (8 * i);
  }
  return packed;
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

__device__ inline std::uint64_t load_bytes(const std::uint8_t* from, std::uint32_t count) {
  if (count == 8 && reinterpret_cast<std::uintptr_t>(from) % 8 == 0) {
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
  if (count == 8 && reinterpret_cast<std::uintptr_t>(to) % 8 == 0) {
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
template <class Format>
struct SignMantissa;

template <>
struct SignMantissa<Bf16> {
  __device__ static void store(const Words8<Bf16>& words, std::uint8_t* section,
                               std::uint64_t first, std::uint32_t count, std::uint64_t) {
    std::uint64_t packed = 0;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      packed |= static_cast<std::uint64_t>(sign_mantissa_of<Bf16>(words.w[i])) << (8 * i);
    }
    store_bytes(packed, section + first, count);
  }
  __device__ static void load(const std::uint8_t* section, std::uint64_t first, std::uint32_t count,
                              std::uint64_t, std::uint32_t (&rest)[8]) {
    const std::uint64_t packed = load_bytes(section + first, count);
#pragma unroll
    for (std::uint32_t i = 0; i < 8; ++i) {
      rest[i] = byte_of(packed, i);
    }
  }
};

template <>
struct SignMantissa<Fp16> {
  __device__ static void store(const Words8<Fp16>& words, std::uint8_t* section,
                               std::uint64_t first, std::uint32_t count, std::uint64_t numel) {
    std::uint64_t low = 0;
    std::uint64_t high = 0;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const std::uint64_t rest = sign_mantissa_of<Fp16>(words.w[i]);
      low |= (rest & 0xFF) << (8 * i);
      high |= (rest >> 8) << (8 * i);
    }
    store_bytes(low, section + first, count);
    std::uint8_t* planes = section + numel + 3 * (first / 8);
#pragma unroll
    for (int plane = 0; plane < 3; ++plane) {
      planes[plane] = plane_of(high, plane);
    }
  }
  __device__ static void load(const std::uint8_t* section, std::uint64_t first, std::uint32_t count,
                              std::uint64_t numel, std::uint32_t (&rest)[8]) {
    const std::uint64_t low = load_bytes(section + first, count);
    const std::uint8_t* planes = section + numel + 3 * (first / 8);
    std::uint64_t high = 0;
#pragma unroll
    for (int plane = 0; plane < 3; ++plane) {
      high |= spread_plane(planes[plane], plane);
    }
#pragma unroll
    for (std::uint32_t i = 0; i < 8; ++i) {
      rest[i] = byte_of(low, i) | static_cast<std::uint32_t>(byte_of(high, i)) << 8;
    }
  }
};

template <>
struct SignMantissa<Fp32> {
  __device__ static void store(const Words8<Fp32>& words, std::uint8_t* section,
                               std::uint64_t first, std::uint32_t count, std::uint64_t) {
    std::uint64_t packed[3] = {};
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const std::uint32_t rest = sign_mantissa_of<Fp32>(words.w[i]);
#pragma unroll
      for (int k = 0; k < 3; ++k) {
        const int at = 3 * i + k;
        packed[at / 8] |= static_cast<std::uint64_t>(rest >> (8 * k) & 0xFF) << (8 * (at % 8));
      }
    }
    for_parts(count, [&](std::uint32_t part, std::uint32_t bytes) {
      store_bytes(packed[part], section + 3 * first + 8 * part, bytes);
    });
  }
  __device__ static void load(const std::uint8_t* section, std::uint64_t first, std::uint32_t count,
                              std::uint64_t, std::uint32_t (&rest)[8]) {
    std::uint64_t packed[3] = {};
    for_parts(count, [&](std::uint32_t part, std::uint32_t bytes) {
      packed[part] = load_bytes(section + 3 * first + 8 * part, bytes);
    });
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      rest[i] = 0;
#pragma unroll
      for (int k = 0; k < 3; ++k) {
        const int at = 3 * i + k;
        rest[i] |= static_cast<std::uint32_t>(byte_of(packed[at / 8], at % 8)) << (8 * k);
      }
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

template <class Format>
__device__ Words8<Format> merge_words(std::uint64_t exponents, const std::uint32_t (&rest)[8]) {
  Words8<Format> words;
#pragma unroll
  for (std::uint32_t i = 0; i < 8; ++i) {
    words.w[i] =
        merge_word<Format>(byte_of(exponents, i), static_cast<typename Format::Word>(rest[i]));
  }
  return words;
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
