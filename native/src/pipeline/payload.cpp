#include "pipeline/payload.hpp"

#include "base/bytes.hpp"

namespace ciera::pipeline {

std::vector<std::byte> make_directory(std::span<const std::uint64_t> part_bytes) {
  std::vector<std::byte> directory(directory_bytes(part_bytes.size()));
  for (std::size_t s = 0; s < part_bytes.size() && !directory.empty(); ++s) {
    base::store_le(directory.data() + 8 * s, part_bytes[s]);
  }
  return directory;
}

std::optional<PayloadParts> split_payload(std::span<const std::byte> directory,
                                          std::span<const std::byte> payload,
                                          std::size_t segments) {
  PayloadParts split;
  if (segments == 1) {
    split.parts.push_back(payload);
    return split;
  }
  if (payload.size() < directory_bytes(segments)) {
    return std::nullopt;
  }
  std::uint64_t end = 8 * segments;
  for (std::size_t s = 0; s < segments; ++s) {
    const std::uint64_t start = align16(end);
    const auto bytes = base::load_le<std::uint64_t>(directory.data() + 8 * s);
    // Gaps exist only before a part, so the payload ends with the last part even when that is
    // empty.
    if (start > payload.size() || bytes > payload.size() - start) {
      return std::nullopt;
    }
    split.gaps.push_back(payload.subspan(end, start - end));
    split.parts.push_back(payload.subspan(start, bytes));
    end = start + bytes;
  }
  if (end != payload.size()) {
    return std::nullopt;
  }
  return split;
}

}  // namespace ciera::pipeline
