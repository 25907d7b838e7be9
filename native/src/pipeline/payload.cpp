#include "pipeline/payload.hpp"

#include <algorithm>
#include <cstring>

#include "base/bytes.hpp"

namespace ciera::pipeline {
namespace {

bool all_zero(std::span<const std::byte> bytes) {
  return std::ranges::all_of(bytes, [](std::byte b) { return b == std::byte{0}; });
}

}  // namespace

void write_directory(std::span<const std::uint64_t> part_bytes, std::span<std::byte> payload) {
  if (part_bytes.size() < 2) {
    return;
  }
  std::memset(payload.data(), 0, directory_bytes(part_bytes.size()));
  for (std::size_t s = 0; s < part_bytes.size(); ++s) {
    base::store_le<std::uint64_t>(payload.data() + 8 * s, part_bytes[s]);
  }
}

std::optional<std::vector<std::span<const std::byte>>> split_payload(
    std::span<const std::byte> payload, std::size_t segments) {
  std::vector<std::span<const std::byte>> parts;
  if (segments == 1) {
    parts.push_back(payload);
    return parts;
  }
  const std::uint64_t directory = directory_bytes(segments);
  if (payload.size() < directory ||
      !all_zero(payload.subspan(8 * segments, directory - 8 * segments))) {
    return std::nullopt;
  }
  std::uint64_t end = directory;
  for (std::size_t s = 0; s < segments; ++s) {
    const std::uint64_t start = align16(end);
    const auto bytes = base::load_le<std::uint64_t>(payload.data() + 8 * s);
    // Gaps exist only before a part, so the payload ends with the last part even when that is
    // empty.
    if (start > payload.size() || bytes > payload.size() - start ||
        !all_zero(payload.subspan(end, start - end))) {
      return std::nullopt;
    }
    parts.push_back(payload.subspan(start, bytes));
    end = start + bytes;
  }
  if (end != payload.size()) {
    return std::nullopt;
  }
  return parts;
}

}  // namespace ciera::pipeline
