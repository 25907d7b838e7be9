// What frames of all modes are made with on the host.
#pragma once

#include <cstdint>
#include <functional>
#include <span>

#include "codec/frame.hpp"
#include "codec/host/split_host.hpp"
#include "wire/frame_header.hpp"

namespace ciera {
class ThreadPool;
}

namespace ciera::codec::host {

// Shards are cut in chunks of whole blocks near 65536 values: a thread's share, in cache.
void for_chunks(const FrameParams& params, ThreadPool* pool,
                const std::function<void(Range)>& body);

inline bool is_set(const std::byte* bitmap, std::uint64_t block) {
  return (bitmap[block / 8] >> (block % 8) & std::byte{1}) != std::byte{0};
}

inline std::uint64_t values_in(std::uint64_t block, const FrameParams& params) {
  return block_values(block, params.numel, params.block_size);
}

// Writes header and checksum, and zeroes the gaps between header and sections.
void write_frame(wire::FrameHeader& header, std::span<std::byte> frame, ThreadPool* pool);

// The changed blocks and the values in them; bad_bitmap when spare bits are set.
Verdict read_bitmap(const FrameParams& expected, const std::byte* bitmap, std::uint64_t* changed,
                    std::uint64_t* values);

}  // namespace ciera::codec::host
