// What the delta modes code: kinds of values by mode and dtype, and quads of them in memory.
#pragma once

#include "codec/delta_quads.hpp"
#include "codec/frame.hpp"

namespace ciera::codec::cuda {

// Calls body(kind) with the kind of value that a float dtype, or exponent-delta, codes.
template <class Body>
void with_float_kind(const FrameParams& params, const Body& body) {
  if (!is_word_delta(params)) {
    return body(ExponentByte{});
  }
  switch (params.dtype) {
    case DType::kBf16:
      return body(FloatWord<Bf16>{});
    case DType::kFp16:
      return body(FloatWord<Fp16>{});
    default:
      return body(FloatWord<Fp32>{});
  }
}
// The same of an opaque dtype.
template <class Body>
void with_opaque_kind(const FrameParams& params, const Body& body) {
  switch (params.dtype) {
    case DType::kOpaque8:
      return body(OpaqueWord<std::uint8_t>{});
    case DType::kOpaque16:
      return body(OpaqueWord<std::uint16_t>{});
    case DType::kOpaque32:
      return body(OpaqueWord<std::uint32_t>{});
    default:
      return body(OpaqueWord<std::uint64_t>{});
  }
}

// A quad that is aligned to its size, or to 16 bytes when it is larger, in one load or two.
template <class Kind>
__device__ Quad<Kind> load_quad(const typename Kind::Word* from) {
  Quad<Kind> quad;
  if constexpr (Quad<Kind>::kRegisters == 1) {
    quad.reg[0] = *reinterpret_cast<const std::uint32_t*>(from);
  } else if constexpr (Quad<Kind>::kRegisters == 2) {
    const uint2 pair = *reinterpret_cast<const uint2*>(from);
    quad.reg[0] = pair.x;
    quad.reg[1] = pair.y;
  } else {
#pragma unroll
    for (std::uint32_t v = 0; v < Quad<Kind>::kRegisters / 4; ++v) {
      const uint4 four = reinterpret_cast<const uint4*>(from)[v];
      quad.reg[4 * v] = four.x;
      quad.reg[4 * v + 1] = four.y;
      quad.reg[4 * v + 2] = four.z;
      quad.reg[4 * v + 3] = four.w;
    }
  }
  return quad;
}
template <class Kind>
__device__ void store_quad(const Quad<Kind>& quad, typename Kind::Word* to) {
  if constexpr (Quad<Kind>::kRegisters == 1) {
    *reinterpret_cast<std::uint32_t*>(to) = quad.reg[0];
  } else if constexpr (Quad<Kind>::kRegisters == 2) {
    *reinterpret_cast<uint2*>(to) = uint2{quad.reg[0], quad.reg[1]};
  } else {
#pragma unroll
    for (std::uint32_t v = 0; v < Quad<Kind>::kRegisters / 4; ++v) {
      reinterpret_cast<uint4*>(to)[v] =
          uint4{quad.reg[4 * v], quad.reg[4 * v + 1], quad.reg[4 * v + 2], quad.reg[4 * v + 3]};
    }
  }
}

// The first `count` words of a quad, at any alignment; the others are zero.
template <class Kind>
__device__ Quad<Kind> load_quad(const typename Kind::Word* from, std::uint32_t count) {
  Quad<Kind> quad{};
#pragma unroll
  for (std::uint32_t i = 0; i < 4; ++i) {
    if (i < count) {
      quad.set(i, from[i]);
    }
  }
  return quad;
}
template <class Kind>
__device__ void store_quad(const Quad<Kind>& quad, typename Kind::Word* to, std::uint32_t count) {
#pragma unroll
  for (std::uint32_t i = 0; i < 4; ++i) {
    if (i < count) {
      to[i] = quad.get(i);
    }
  }
}

template <class Kind>
inline constexpr std::uint32_t kQuadAlign = sizeof(Quad<Kind>) < 16 ? sizeof(Quad<Kind>) : 16;

}  // namespace ciera::codec::cuda
