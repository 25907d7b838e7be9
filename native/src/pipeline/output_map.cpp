#include "pipeline/output_map.hpp"

#include <algorithm>
#include <functional>

namespace ciera::pipeline {

bool overlap(std::span<const std::byte> a, std::span<const std::byte> b) {
  const std::less<> before;
  return !a.empty() && !b.empty() && before(a.data(), b.data() + b.size()) &&
         before(b.data(), a.data() + a.size());
}

std::optional<OutputMap> OutputMap::make(OutputLayout layout, DType dtype,
                                         const std::vector<std::vector<std::uint64_t>>& numels) {
  OutputMap map;
  const std::size_t segments = numels.size();
  const std::size_t world = numels.front().size();
  map.slots_.assign(segments, std::vector<Slot>(world));
  map.buffer_bytes_.assign(layout == OutputLayout::kFlat ? 1 : segments, 0);
  for (std::size_t r = 0; r < world; ++r) {
    for (std::size_t s = 0; s < segments; ++s) {
      const std::size_t buffer = layout == OutputLayout::kFlat ? 0 : s;
      std::uint64_t bytes = 0;
      std::uint64_t& end = map.buffer_bytes_[buffer];
      if (__builtin_mul_overflow(numels[s][r], element_bytes(dtype), &bytes)) {
        return std::nullopt;
      }
      map.slots_[s][r] = {buffer, end, bytes};
      if (__builtin_add_overflow(end, bytes, &end)) {
        return std::nullopt;
      }
    }
  }
  return map;
}

std::span<std::byte> OutputMap::slot(const std::vector<std::span<std::byte>>& outputs,
                                     std::size_t segment, std::size_t rank) const {
  const Slot& slot = slots_[segment][rank];
  return outputs[slot.buffer].subspan(slot.offset, slot.bytes);
}

std::optional<std::string> OutputMap::misfit(const std::vector<std::span<std::byte>>& outputs,
                                             std::span<const std::byte> src,
                                             std::size_t own_rank) const {
  if (outputs.size() != buffers()) {
    return "out has " + std::to_string(outputs.size()) + " buffers where " +
           std::to_string(buffers()) + " are needed";
  }
  std::vector<std::size_t> order;  // of the outputs that hold anything, by address
  for (std::size_t b = 0; b < outputs.size(); ++b) {
    if (outputs[b].size() != buffer_bytes_[b]) {
      return "out holds " + std::to_string(outputs[b].size()) +
             " bytes where the gathered shards need " + std::to_string(buffer_bytes_[b]) +
             "; give a buffer of exactly that size";
    }
    if (!outputs[b].empty()) {
      order.push_back(b);
    }
  }
  const std::less<> before;
  std::ranges::sort(order, before, [&](std::size_t b) { return outputs[b].data(); });
  for (std::size_t i = 1; i < order.size(); ++i) {
    if (overlap(outputs[order[i - 1]], outputs[order[i]])) {
      const auto [first, second] = std::minmax(order[i - 1], order[i]);
      return "out buffers " + std::to_string(first) + " and " + std::to_string(second) + " overlap";
    }
  }
  return misplaced(outputs, order, src, own_rank);
}

// The outputs are apart from each other: sorted by address, those that a part meets are neighbours.
std::optional<std::string> OutputMap::misplaced(const std::vector<std::span<std::byte>>& outputs,
                                                const std::vector<std::size_t>& order,
                                                std::span<const std::byte> src,
                                                std::size_t own_rank) const {
  const std::less<> before;
  std::uint64_t offset = 0;
  for (std::size_t s = 0; s < slots_.size(); ++s) {
    const auto own = slot(outputs, s, own_rank);
    const auto part = src.subspan(offset, own.size());
    offset += own.size();
    // The first output that ends behind the start of the part.
    const auto met = std::ranges::partition_point(order, [&](std::size_t b) {
      return !before(part.data(), outputs[b].data() + outputs[b].size());
    });
    if (met != order.end() && overlap(part, outputs[*met]) && part.data() != own.data()) {
      return "the shard overlaps out but is not its own slot there; gather in place "
             "(shard = this rank's part of out) or into separate memory";
    }
  }
  return std::nullopt;
}

}  // namespace ciera::pipeline
