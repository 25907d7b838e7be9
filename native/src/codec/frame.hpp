// One frame: what both ends agree on, sizes of its parts, and the checks of its header. Shared by
// host and GPU, so that both accept and refuse the same frames (docs/wire-format.md).
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/host_device.hpp"
#include "ciera/types.hpp"
#include "wire/frame_header.hpp"

namespace ciera::codec {

// 128-bit hash of one block's exponents.
struct BlockHash {
  std::uint64_t low = 0;
  std::uint64_t high = 0;
  friend bool operator==(const BlockHash&, const BlockHash&) = default;
};

// What both ends agree on before a frame is made.
struct FrameParams {
  ReuseMode mode = ReuseMode::kExponentBlock;
  Coder coder = Coder::kRans;
  DType dtype = DType::kBf16;
  std::uint32_t block_size = 512;
  std::uint64_t numel = 0;
  std::uint64_t shard_key = 0;
  std::uint64_t base_epoch = 0;      // 0: no reference, a key frame
  std::uint64_t base_digest = 0;     // 0 with base_epoch 0
  std::uint32_t segment_log2 = 16;   // of rans sections, for the encoder; a decoder reads it
  Effort effort = Effort::kDefault;  // of the delta modes, for the encoder; a decoder reads it
  std::uint32_t nvcomp_major = 0;    // of the library at hand; 0: coder nvcomp-ans is refused
  // exponent-block, exponent-delta: all receivers hold the words of the reference, in the very
  // place that is decoded to. In word-delta they do anyhow.
  bool words_held = false;
};

// What an encoder is told about src and the reference; kUnchanged, that they are equal, by the
// caller's word.
enum class Claim : std::uint8_t { kCompare, kUnchanged };

// A frame's kind as statistics name it.
enum class FrameKind : std::uint8_t { kRaw = 0, kKey = 1, kDelta = 2, kSame = 3 };

struct EncodeResult {
  std::uint64_t frame_bytes = 0;
  std::uint64_t checksum = 0;  // the digest of the state after this frame
  FrameKind kind = FrameKind::kRaw;
  std::uint64_t blocks = 0;          // ceil(numel / block_size)
  std::uint64_t changed_blocks = 0;  // all of them in raw and key frames
};

// What a check found in a valid frame.
struct FrameInfo {
  FrameKind kind = FrameKind::kRaw;
  std::uint64_t frame_bytes = 0;
  std::uint64_t checksum = 0;
  std::uint64_t changed_blocks = 0;
};

inline constexpr std::uint64_t kMaxNumel = std::uint64_t{1} << 44;  // sizes then fit 48 bits

CIERA_HD constexpr std::uint64_t ceil_div(std::uint64_t n, std::uint64_t d) {
  return n / d + (n % d != 0 ? 1 : 0);
}

CIERA_HD constexpr std::uint64_t block_count(std::uint64_t numel, std::uint32_t block_size) {
  return ceil_div(numel, block_size);
}
CIERA_HD constexpr std::uint64_t block_values(std::uint64_t block, std::uint64_t numel,
                                              std::uint32_t block_size) {
  const std::uint64_t rest = numel - block * block_size;
  return rest < block_size ? rest : block_size;
}
CIERA_HD constexpr std::uint64_t bitmap_bytes(std::uint64_t blocks) { return ceil_div(blocks, 8); }

CIERA_HD constexpr std::uint64_t sign_mantissa_bytes(DType dtype, std::uint64_t numel) {
  return dtype == DType::kFp32   ? 3 * numel
         : dtype == DType::kFp16 ? numel + 3 * ceil_div(numel, 8)
                                 : numel;
}
CIERA_HD constexpr std::uint64_t stored_exponent_bytes(DType dtype, std::uint64_t numel) {
  return dtype == DType::kFp16 ? 5 * ceil_div(numel, 8) : numel;
}

// The header of a frame of this kind, its exponents or changes section still empty.
CIERA_HD inline wire::FrameHeader make_header(const FrameParams& params, wire::Kind kind) {
  wire::FrameHeader header;
  header.kind = kind;
  header.mode = params.mode;
  header.dtype = params.dtype;
  header.block_size = params.block_size;
  header.numel = params.numel;
  header.shard_key = params.shard_key;
  header.section_count = wire::section_count_of(kind, params.mode);
  for (std::uint32_t i = 0; i < header.section_count; ++i) {
    wire::Section& section = header.sections[i];
    section.kind = wire::section_of(kind, params.mode, i);
    section.bytes = section.kind == wire::SectionKind::kWords
                        ? params.numel * element_bytes(params.dtype)
                    : section.kind == wire::SectionKind::kBitmap
                        ? bitmap_bytes(block_count(params.numel, params.block_size))
                    : section.kind == wire::SectionKind::kSignMantissa
                        ? sign_mantissa_bytes(params.dtype, params.numel)
                        : 0;
  }
  if (wire::names_base(kind)) {
    header.base_epoch = params.base_epoch;
    header.base_digest = params.base_digest;
  }
  wire::lay_out(header);
  return header;
}

CIERA_HD constexpr bool is_delta(const FrameParams& params) {
  return is_stateful(params.mode) && params.base_epoch != 0;
}
CIERA_HD constexpr bool is_word_delta(const FrameParams& params) {
  return params.mode == ReuseMode::kWordDelta;
}
// Whether a same frame is one that receivers can make use of.
CIERA_HD constexpr bool may_be_same(const FrameParams& params) {
  return is_delta(params) && (is_word_delta(params) || params.words_held);
}

// The caches of a shard: bytes a value that receivers keep of each peer, and that the sender keeps
// of its own (exponent-block keeps hashes instead).
CIERA_HD constexpr std::uint64_t reference_bytes(ReuseMode mode, DType dtype) {
  return mode == ReuseMode::kWordDelta ? element_bytes(dtype) : is_stateful(mode) ? 1 : 0;
}
CIERA_HD constexpr std::uint64_t own_reference_bytes(ReuseMode mode, DType dtype) {
  return mode == ReuseMode::kExponentBlock ? 0 : reference_bytes(mode, dtype);
}

// A stored changes section of `values` values.
CIERA_HD constexpr std::uint64_t stored_change_bytes(const FrameParams& params,
                                                     std::uint64_t values) {
  return is_word_delta(params) ? values * element_bytes(params.dtype)
                               : stored_exponent_bytes(params.dtype, values);
}

// A delta frame of the delta modes up to this length is sent without looking at the key frame.
CIERA_HD inline std::uint64_t delta_quick_bytes(const FrameParams& params) {
  return !has_exponent(params.dtype) ? 0
                                     : make_header(params, wire::Kind::kKey).frame_bytes +
                                           (is_word_delta(params) ? 0 : params.numel / 16);
}

// Bytes that an encoder may write at most: while it is being made a frame may be longer than raw,
// by what stored exponents, or a bitmap before stored words, take.
CIERA_HD inline std::uint64_t max_frame_bytes(const FrameParams& params) {
  const std::uint64_t delta = make_header(params, wire::Kind::kDelta).frame_bytes +
                              stored_change_bytes(params, params.numel) + 16;
  const std::uint64_t key = make_header(params, wire::Kind::kKey).frame_bytes +
                            stored_exponent_bytes(params.dtype, params.numel) + 16;
  return delta > key ? delta : key;  // a raw frame is shorter than either
}

// Header, sizes and identity of a frame; everything that can be said without its payload. In the
// order of docs/wire-format.md, section 8: what a checksum failure hides comes in the second part.
CIERA_HD inline Verdict check_header(const FrameParams& expected, const std::byte* frame,
                                     std::uint64_t frame_bytes, wire::FrameHeader* header) {
  if (frame_bytes < wire::kFixedBytes) {
    return Verdict::kTruncated;
  }
  Verdict verdict = wire::read_fixed(frame, header, expected.words_held);
  if (verdict != Verdict::kOk) {
    return verdict;
  }
  if (header->mode != expected.mode) {
    return Verdict::kBadMode;
  }
  if (header->dtype != expected.dtype) {
    return Verdict::kBadDtype;
  }
  if (header->block_size != expected.block_size) {
    return Verdict::kBadBlockSize;
  }
  const Coder last_coder = expected.nvcomp_major != 0 ? Coder::kNvcompAns : Coder::kRans;
  verdict = wire::read_rest(frame, frame_bytes, last_coder, header);
  if (verdict != Verdict::kOk) {
    return verdict;
  }
  if (header->numel > kMaxNumel) {
    return Verdict::kBadSizes;
  }
  FrameParams claimed = expected;
  claimed.numel = header->numel;
  const wire::FrameHeader sized = make_header(claimed, header->kind);
  for (std::uint32_t i = 0; i < header->section_count; ++i) {
    if (header->sections[i].kind != wire::SectionKind::kExponents &&
        header->sections[i].kind != wire::SectionKind::kChanges &&
        header->sections[i].bytes != sized.sections[i].bytes) {
      return Verdict::kBadSizes;
    }
  }
  return Verdict::kOk;
}

CIERA_HD inline Verdict check_identity(const FrameParams& expected,
                                       const wire::FrameHeader& header) {
  if (header.shard_key != expected.shard_key) {
    return Verdict::kWrongShard;
  }
  if (header.numel != expected.numel) {
    return Verdict::kWrongNumel;
  }
  const bool delta = wire::names_base(header.kind);
  const std::uint64_t epoch = delta ? expected.base_epoch : 0;
  const std::uint64_t digest = delta ? expected.base_digest : 0;
  if (header.base_epoch != epoch || header.base_digest != digest || (delta && epoch == 0)) {
    return Verdict::kWrongBase;
  }
  return Verdict::kOk;
}

}  // namespace ciera::codec
