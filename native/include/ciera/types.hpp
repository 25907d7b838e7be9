// Vocabulary types of the public interface: no CUDA, NCCL, MPI, Python or torch header here.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace ciera {

// Index of a process (or thread) in a group, and the number of them. Distinct types, so that they
// cannot be swapped.
enum class Rank : std::uint32_t {};
enum class WorldSize : std::uint32_t {};

constexpr std::uint32_t value(Rank rank) { return static_cast<std::uint32_t>(rank); }
constexpr std::uint32_t value(WorldSize size) { return static_cast<std::uint32_t>(size); }

// Element types. The first three have an exponent that is coded (docs/wire-format.md, section 3);
// the others are opaque elements of a width, which word-delta codes up to 64 bits and the other
// modes send bare. The numbers are wire numbers.
enum class DType : std::uint8_t {
  kBf16 = 1,
  kFp16 = 2,
  kFp32 = 3,
  kOpaque8 = 16,
  kOpaque16 = 17,
  kOpaque32 = 18,
  kOpaque64 = 19,
  kOpaque128 = 20,
};

// Bytes of one element.
constexpr std::size_t element_bytes(DType dtype) {
  switch (dtype) {
    case DType::kBf16:
    case DType::kFp16:
    case DType::kOpaque16:
      return 2;
    case DType::kFp32:
    case DType::kOpaque32:
      return 4;
    case DType::kOpaque8:
      return 1;
    case DType::kOpaque64:
      return 8;
    case DType::kOpaque128:
      return 16;
  }
  return 0;
}

constexpr bool has_exponent(DType dtype) {
  return dtype == DType::kBf16 || dtype == DType::kFp16 || dtype == DType::kFp32;
}

// Where shards, caches and outputs lie and the codec runs.
enum class Backend : std::uint8_t { kHost, kCuda };

// A cudaStream_t and the ordinal of its GPU, so that no CUDA header is needed here; a null handle
// is the GPU's default stream.
struct DeviceStream {
  void* handle = nullptr;
  int device = 0;
};

// How a shard is sent. The numbers are wire numbers.
enum class ReuseMode : std::uint8_t {
  kOff = 0,            // bare bytes
  kExponentOnly = 1,   // stateless: exponents coded
  kExponentBlock = 2,  // the paper: unchanged exponent blocks are not sent
  kExponentDelta = 3,  // differences of exponents are coded
  kWordDelta = 4,      // differences of whole words are coded
};

// How much work the delta modes put into a frame: kDefault codes four values as one symbol, kHigh
// each on its own, smaller and slower. The numbers are wire numbers.
enum class Effort : std::uint8_t { kDefault = 0, kHigh = 1 };

// How a section is coded. The numbers are wire numbers.
enum class Coder : std::uint8_t {
  kRaw = 0,
  kRans = 1,
  kNvcompAns = 2,  // between GPUs only, with nvCOMP (nvcomp.hpp)
};

// Whether the mode keeps a reference between calls.
constexpr bool is_stateful(ReuseMode mode) { return mode >= ReuseMode::kExponentBlock; }
// Whether the mode makes frames of this dtype; what it cannot code travels bare.
constexpr bool codes(ReuseMode mode, DType dtype) {
  return mode != ReuseMode::kOff &&
         (has_exponent(dtype) || (mode == ReuseMode::kWordDelta && dtype != DType::kOpaque128));
}

std::string_view name(DType dtype);
std::string_view name(ReuseMode mode);
std::string_view name(Coder coder);
std::string_view name(Effort effort);

// The value with that name ("exponent-block", "rans", "bf16"), or nothing.
std::optional<ReuseMode> reuse_mode_from_name(std::string_view text);
std::optional<Coder> coder_from_name(std::string_view text);
std::optional<Effort> effort_from_name(std::string_view text);
std::optional<DType> dtype_from_name(std::string_view text);

// Why a frame was refused (docs/wire-format.md, section 8). Data from a peer never throws: it gets
// a verdict.
enum class Verdict : std::uint8_t {
  kOk,
  kTruncated,
  kBadMagic,
  kBadVersion,
  kBadFlags,
  kBadKind,
  kBadMode,
  kBadDtype,
  kBadBlockSize,
  kBadSections,
  kBadSizes,
  kBadPadding,
  kBadChecksum,
  kWrongShard,
  kWrongNumel,
  kWrongBase,
  kBadBitmap,
  kBadTable,
  kBadStream,
};
std::string_view name(Verdict verdict);

}  // namespace ciera
