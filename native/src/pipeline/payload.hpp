// The payload of a call: parts, behind a directory when there are several (docs/wire-format.md,
// section 1).
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace ciera::pipeline {

constexpr std::uint64_t align16(std::uint64_t bytes) { return (bytes + 15) & ~std::uint64_t{15}; }

// Bytes before the first part.
constexpr std::uint64_t directory_bytes(std::size_t segments) {
  return segments > 1 ? align16(8 * segments) : 0;
}

// Writes the directory for parts of these sizes.
void write_directory(std::span<const std::uint64_t> part_bytes, std::span<std::byte> payload);

// The parts of a payload, or nothing when its directory and its length do not fit together.
std::optional<std::vector<std::span<const std::byte>>> split_payload(
    std::span<const std::byte> payload, std::size_t segments);

}  // namespace ciera::pipeline
