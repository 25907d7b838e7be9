#include "codec/host/split_host.hpp"

#include <algorithm>
#include <cstring>

#include "codec/split.hpp"

// The plain loops below vectorise; a clone for AVX2 is chosen when the program loads. Sanitizers
// run before the loader can choose, so their builds do without.
#if defined(__x86_64__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define CIERA_CLONES __attribute__((target_clones("avx2", "default")))
#else
#define CIERA_CLONES
#endif

namespace ciera::codec::host {
namespace {

// A caller's words may lie at any address.
using Word16 [[gnu::aligned(1), gnu::may_alias]] = std::uint16_t;
using Word32 [[gnu::aligned(1), gnu::may_alias]] = std::uint32_t;

constexpr std::uint64_t ceil8(std::uint64_t n) { return n / 8 + (n % 8 != 0 ? 1 : 0); }

CIERA_CLONES void split_bf16(const Word16* words, std::size_t count, std::uint8_t* exponents,
                             std::uint8_t* sign_mantissa) {
  for (std::size_t i = 0; i < count; ++i) {
    const std::uint16_t word = words[i];
    exponents[i] = exponent_of<Bf16>(word);
    sign_mantissa[i] = static_cast<std::uint8_t>(sign_mantissa_of<Bf16>(word));
  }
}

CIERA_CLONES void merge_bf16(const std::uint8_t* exponents, const std::uint8_t* sign_mantissa,
                             std::size_t count, Word16* words) {
  for (std::size_t i = 0; i < count; ++i) {
    words[i] = merge_word<Bf16>(exponents[i], sign_mantissa[i]);
  }
}

CIERA_CLONES void exponents_16(const Word16* words, std::size_t count, std::uint32_t shift,
                               std::uint32_t mask, std::uint8_t* exponents) {
  for (std::size_t i = 0; i < count; ++i) {
    exponents[i] = static_cast<std::uint8_t>(words[i] >> shift & mask);
  }
}

CIERA_CLONES void split_fp32(const Word32* words, std::size_t count, std::uint8_t* exponents,
                             std::uint8_t* sign_mantissa) {
  for (std::size_t i = 0; i < count; ++i) {
    const std::uint32_t word = words[i];
    const std::uint32_t rest = sign_mantissa_of<Fp32>(word);
    exponents[i] = exponent_of<Fp32>(word);
    sign_mantissa[3 * i] = static_cast<std::uint8_t>(rest);
    sign_mantissa[3 * i + 1] = static_cast<std::uint8_t>(rest >> 8);
    sign_mantissa[3 * i + 2] = static_cast<std::uint8_t>(rest >> 16);
  }
}

CIERA_CLONES void merge_fp32(const std::uint8_t* exponents, const std::uint8_t* sign_mantissa,
                             std::size_t count, Word32* words) {
  for (std::size_t i = 0; i < count; ++i) {
    const std::uint32_t rest = sign_mantissa[3 * i] |
                               static_cast<std::uint32_t>(sign_mantissa[3 * i + 1]) << 8 |
                               static_cast<std::uint32_t>(sign_mantissa[3 * i + 2]) << 16;
    words[i] = merge_word<Fp32>(exponents[i], rest);
  }
}

// Eight fields of `bits` bits each, one a byte of `fields`, to and from `bits` bytes: an 8 x 8 bit
// transposition.
std::uint64_t transpose8(std::uint64_t x) {
  std::uint64_t t = (x ^ x >> 7) & 0x00AA00AA00AA00AAULL;
  x ^= t ^ t << 7;
  t = (x ^ x >> 14) & 0x0000CCCC0000CCCCULL;
  x ^= t ^ t << 14;
  t = (x ^ x >> 28) & 0x00000000F0F0F0F0ULL;
  return x ^ t ^ t << 28;
}

void pack(const std::uint8_t* fields, std::uint64_t count, std::uint32_t bits, std::uint8_t* to) {
  for (std::uint64_t i = 0; i < count; i += 8, to += bits) {
    std::uint64_t group = 0;
    std::memcpy(&group, fields + i, std::min<std::uint64_t>(8, count - i));
    group = transpose8(group);
    std::memcpy(to, &group, bits);
  }
}

void unpack(const std::uint8_t* from, std::uint64_t count, std::uint32_t bits,
            std::uint8_t* fields) {
  for (std::uint64_t i = 0; i < count; i += 8, from += bits) {
    std::uint64_t group = 0;
    std::memcpy(&group, from, bits);
    group = transpose8(group);
    std::memcpy(fields + i, &group, std::min<std::uint64_t>(8, count - i));
  }
}

constexpr std::size_t kTile = 512;  // values handled at once, so that the high bits stay in cache

void split_fp16(const Word16* words, std::size_t count, std::uint8_t* exponents, std::uint8_t* low,
                std::uint8_t* high) {
  std::uint8_t tops[kTile];
  for (std::size_t start = 0; start < count; start += kTile) {
    const std::size_t tile = std::min(kTile, count - start);
    for (std::size_t i = 0; i < tile; ++i) {
      const std::uint16_t word = words[start + i];
      const std::uint16_t rest = sign_mantissa_of<Fp16>(word);
      exponents[start + i] = exponent_of<Fp16>(word);
      low[start + i] = static_cast<std::uint8_t>(rest);
      tops[i] = static_cast<std::uint8_t>(rest >> 8);
    }
    pack(tops, tile, 3, high + start / 8 * 3);
  }
}

void merge_fp16(const std::uint8_t* exponents, const std::uint8_t* low, const std::uint8_t* high,
                std::size_t count, Word16* words) {
  std::uint8_t tops[kTile];
  for (std::size_t start = 0; start < count; start += kTile) {
    const std::size_t tile = std::min(kTile, count - start);
    unpack(high + start / 8 * 3, tile, 3, tops);
    for (std::size_t i = 0; i < tile; ++i) {
      const auto rest = static_cast<std::uint16_t>(low[start + i] | tops[i] << 8);
      words[start + i] = merge_word<Fp16>(exponents[start + i], rest);
    }
  }
}

template <class T>
T* at(std::byte* base, std::uint64_t index) {
  return reinterpret_cast<T*>(base + index * sizeof(T));
}
template <class T>
const T* at(const std::byte* base, std::uint64_t index) {
  return reinterpret_cast<const T*>(base + index * sizeof(T));
}

}  // namespace

void split(DType dtype, Range range, const std::byte* words, std::uint8_t* exponents,
           std::byte* sign_mantissa) {
  const std::uint64_t count = range.to - range.from;
  auto* rest = reinterpret_cast<std::uint8_t*>(sign_mantissa);
  exponents += range.from;
  if (dtype == DType::kBf16) {
    split_bf16(at<Word16>(words, range.from), count, exponents, rest + range.from);
  } else if (dtype == DType::kFp16) {
    split_fp16(at<Word16>(words, range.from), count, exponents, rest + range.from,
               rest + range.numel + range.from / 8 * 3);
  } else {
    split_fp32(at<Word32>(words, range.from), count, exponents, rest + 3 * range.from);
  }
}

void merge(DType dtype, Range range, const std::uint8_t* exponents, const std::byte* sign_mantissa,
           std::byte* words) {
  const std::uint64_t count = range.to - range.from;
  const auto* rest = reinterpret_cast<const std::uint8_t*>(sign_mantissa);
  exponents += range.from;
  if (dtype == DType::kBf16) {
    merge_bf16(exponents, rest + range.from, count, at<Word16>(words, range.from));
  } else if (dtype == DType::kFp16) {
    merge_fp16(exponents, rest + range.from, rest + range.numel + range.from / 8 * 3, count,
               at<Word16>(words, range.from));
  } else {
    merge_fp32(exponents, rest + 3 * range.from, count, at<Word32>(words, range.from));
  }
}

void extract_exponents(DType dtype, Range range, const std::byte* words, std::uint8_t* exponents) {
  const std::uint64_t count = range.to - range.from;
  exponents += range.from;
  if (dtype == DType::kBf16) {
    exponents_16(at<Word16>(words, range.from), count, Bf16::kMantissaBits, 0xFF, exponents);
  } else if (dtype == DType::kFp16) {
    exponents_16(at<Word16>(words, range.from), count, Fp16::kMantissaBits, 0x1F, exponents);
  } else {
    const Word32* from = at<Word32>(words, range.from);
    for (std::size_t i = 0; i < count; ++i) {
      exponents[i] = exponent_of<Fp32>(from[i]);
    }
  }
}

void store_exponents(DType dtype, const std::uint8_t* exponents, std::uint64_t count,
                     std::byte* to) {
  if (dtype == DType::kFp16) {
    pack(exponents, count, Fp16::kExponentBits, reinterpret_cast<std::uint8_t*>(to));
  } else if (count != 0) {
    std::memcpy(to, exponents, count);
  }
}

void load_exponents(DType dtype, const std::byte* from, std::uint64_t count,
                    std::uint8_t* exponents) {
  if (dtype == DType::kFp16) {
    unpack(reinterpret_cast<const std::uint8_t*>(from), count, Fp16::kExponentBits, exponents);
  } else if (count != 0) {
    std::memcpy(exponents, from, count);
  }
}

}  // namespace ciera::codec::host
