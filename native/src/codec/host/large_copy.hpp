// Copies that are longer than the caches.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

#if defined(__x86_64__)
#include <emmintrin.h>
#endif

namespace ciera::codec::host {

// From this size on, what is written is not expected to be read while it is in cache.
inline constexpr std::size_t kLargeCopyBytes = std::size_t{16} << 20;

// memcpy past the caches: saves reading the lines that are overwritten. Good for parts of a large
// copy.
inline void copy_past_caches(std::byte* to, const std::byte* from, std::size_t bytes) {
#if defined(__x86_64__)
  const std::size_t misaligned = reinterpret_cast<std::uintptr_t>(to) % 64;
  const std::size_t head = misaligned == 0 ? 0 : std::min(bytes, 64 - misaligned);
  std::memcpy(to, from, head);
  std::size_t i = head;
  for (; i + 64 <= bytes; i += 64) {
    const auto* line = reinterpret_cast<const __m128i*>(from + i);
    auto* stream = reinterpret_cast<__m128i*>(to + i);
    const __m128i a = _mm_loadu_si128(line);
    const __m128i b = _mm_loadu_si128(line + 1);
    const __m128i c = _mm_loadu_si128(line + 2);
    const __m128i d = _mm_loadu_si128(line + 3);
    _mm_stream_si128(stream, a);
    _mm_stream_si128(stream + 1, b);
    _mm_stream_si128(stream + 2, c);
    _mm_stream_si128(stream + 3, d);
  }
  std::memcpy(to + i, from + i, bytes - i);
  _mm_sfence();  // before another thread is told
#else
  std::memcpy(to, from, bytes);
#endif
}

// A part of a copy of `whole_bytes`.
inline void copy_part(std::byte* to, const std::byte* from, std::size_t bytes,
                      std::size_t whole_bytes) {
  if (whole_bytes >= kLargeCopyBytes) {
    copy_past_caches(to, from, bytes);
  } else if (bytes != 0) {
    std::memcpy(to, from, bytes);
  }
}

}  // namespace ciera::codec::host
