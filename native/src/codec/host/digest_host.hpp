// The 128-bit block hash and the frame checksum (docs/wire-format.md, sections 5 and 6).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "codec/host/frame_codec.hpp"

namespace ciera::codec::host {

BlockHash hash_block(const std::uint8_t* exponents, std::uint64_t count);

// Of a whole frame; its own checksum field counts as zero.
std::uint64_t frame_checksum(std::span<const std::byte> frame, ThreadPool* pool);

}  // namespace ciera::codec::host
