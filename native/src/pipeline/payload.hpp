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

// The directory for parts of these sizes; empty for a single part.
std::vector<std::byte> make_directory(std::span<const std::uint64_t> part_bytes);

// A payload's parts, and what lies between them and must be zero.
struct PayloadParts {
  std::vector<std::span<const std::byte>> parts;
  std::vector<std::span<const std::byte>> gaps;
};

// Nothing when directory and length do not fit together. `directory` is the payload's start in host
// memory; the payload itself is not read.
std::optional<PayloadParts> split_payload(std::span<const std::byte> directory,
                                          std::span<const std::byte> payload, std::size_t segments);

}  // namespace ciera::pipeline
