// What keeps the WordCache and the output alike in word-delta, besides coded changes: words of raw
// and key frames, of stored changes, and of blocks and shards that did not change.
#pragma once

#include "codec/cuda/changed_list.cuh"
#include "codec/cuda/decode_state.hpp"

namespace ciera::codec::cuda {

inline constexpr std::uint32_t kPieceBytes = 4096;  // what a warp copies at a time

// The lanes of a warp copy `bytes` from one place to one other, or two. All are aligned to V.
template <class V>
__device__ void copy_in_warp(const std::byte* from, std::byte* to, std::byte* also,
                             std::uint32_t bytes) {
  constexpr std::uint32_t kAtOnce = 4;  // loads under way before the first is stored
  const std::uint32_t vectors = bytes / sizeof(V);
  for (std::uint32_t first = lane_id(); first < vectors; first += 32 * kAtOnce) {
    V loaded[kAtOnce];
#pragma unroll
    for (std::uint32_t k = 0; k < kAtOnce; ++k) {
      if (first + 32 * k < vectors) {
        loaded[k] = reinterpret_cast<const V*>(from)[first + 32 * k];
      }
    }
#pragma unroll
    for (std::uint32_t k = 0; k < kAtOnce; ++k) {
      if (first + 32 * k < vectors) {
        reinterpret_cast<V*>(to)[first + 32 * k] = loaded[k];
        if (also != nullptr) {
          reinterpret_cast<V*>(also)[first + 32 * k] = loaded[k];
        }
      }
    }
  }
  const std::uint32_t at = static_cast<std::uint32_t>(vectors * sizeof(V)) + lane_id();
  if (at < bytes) {  // fewer than a V, at the shard's end
    to[at] = from[at];
    if (also != nullptr) {
      also[at] = from[at];
    }
  }
}

template <class V>
struct WordCopy {
  const DecodeCall& call;
  std::uint64_t width;
  std::uint64_t block_bytes;
  std::uint64_t parts;  // pieces of a block
  std::uint64_t warp;   // this one of all
  std::uint64_t warps;
  std::byte* cache;
  bool in_place;

  __device__ explicit WordCopy(const DecodeCall& from)
      : call(from),
        width(element_bytes(from.expected.dtype)),
        block_bytes(from.expected.block_size * width),
        parts(ceil_div(block_bytes, kPieceBytes)),
        warp(static_cast<std::uint64_t>(blockIdx.x) * kWarps + warp_id()),
        warps(static_cast<std::uint64_t>(gridDim.x) * kWarps),
        cache(reinterpret_cast<std::byte*>(from.exponents)),
        in_place(from.dst == cache) {}

  // The whole shard.
  __device__ void copy_all(const std::byte* from, std::byte* to, std::byte* also) const {
    const std::uint64_t bytes = call.expected.numel * width;
    for (std::uint64_t at = warp * kPieceBytes; at < bytes; at += warps * kPieceBytes) {
      const std::uint64_t rest = bytes - at;
      copy_in_warp<V>(from + at, to + at, also == nullptr ? nullptr : also + at,
                      static_cast<std::uint32_t>(rest < kPieceBytes ? rest : kPieceBytes));
    }
  }

  // One piece of a block, which stands at `from`.
  __device__ void copy_piece(std::uint64_t block, std::uint64_t part, const std::byte* from,
                             std::byte* to, std::byte* also) const {
    const std::uint64_t begin = part * kPieceBytes;
    const std::uint64_t end =
        block_values(block, call.expected.numel, call.expected.block_size) * width;
    if (begin < end) {
      const std::uint64_t at = block * block_bytes + begin;
      const std::uint64_t rest = end - begin;
      copy_in_warp<V>(from + begin, to + at, also == nullptr ? nullptr : also + at,
                      static_cast<std::uint32_t>(rest < kPieceBytes ? rest : kPieceBytes));
    }
  }

  // From the cache to dst. A warp looks at the bits of up to 32 pieces at once, of fewer when there
  // are not enough for all warps.
  __device__ void copy_unchanged(const std::byte* bitmap) const {
    const std::uint64_t pieces = block_count(call.expected.numel, call.expected.block_size) * parts;
    const std::uint64_t share = ceil_div(pieces, warps);
    const std::uint64_t at_once = share < 1 ? 1 : share < 32 ? share : 32;
    for (std::uint64_t first = warp * at_once; first < pieces; first += warps * at_once) {
      const std::uint64_t own = first + lane_id();
      const bool unchanged = lane_id() < at_once && own < pieces && !is_set(bitmap, own / parts);
      for (unsigned left = __ballot_sync(kFullWarp, unchanged); left != 0; left &= left - 1) {
        const std::uint64_t piece = first + static_cast<std::uint32_t>(__ffs(left)) - 1;
        const std::uint64_t block = piece / parts;
        copy_piece(block, piece - block * parts, cache + block * block_bytes, call.dst, nullptr);
      }
    }
  }

  // Words of changed blocks that stand one after another, to their places.
  __device__ void copy_stored(const std::byte* from, std::uint64_t blocks) const {
    for (std::uint64_t piece = warp; piece < blocks * parts; piece += warps) {
      const std::uint64_t i = piece / parts;
      copy_piece(call.list[i], piece - i * parts, from + i * block_bytes, cache,
                 in_place ? nullptr : call.dst);
    }
  }
};

// V divides the addresses of cache and dst and the bytes of a block.
template <class V>
__global__ void __launch_bounds__(kThreads) words_kernel(const __grid_constant__ DecodeCall call) {
  if (*call.refused != 0) {
    return;
  }
  const WordCopy<V> copy(call);
  const wire::FrameHeader& header = call.state->header;
  switch (header.kind) {
    case wire::Kind::kRaw:
      copy.copy_all(call.frame + header.last().offset, call.dst,
                    copy.in_place ? nullptr : copy.cache);
      break;
    case wire::Kind::kKey:  // its words are in dst by now
      if (!copy.in_place) {
        copy.copy_all(call.dst, copy.cache, nullptr);
      }
      break;
    case wire::Kind::kDelta:
      if (header.last().coder == Coder::kRaw) {
        copy.copy_stored(call.frame + header.last().offset,
                         ceil_div(call.state->symbols, call.expected.block_size));
      }
      if (!copy.in_place) {
        copy.copy_unchanged(call.frame + header.sections[0].offset);
      }
      break;
    case wire::Kind::kSame:
      if (!copy.in_place) {
        copy.copy_all(copy.cache, call.dst, nullptr);
      }
      break;
  }
}

}  // namespace ciera::codec::cuda
