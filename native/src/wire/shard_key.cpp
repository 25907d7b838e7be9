#include "wire/shard_key.hpp"

#include <algorithm>
#include <cstring>

#include "base/splitmix64.hpp"

namespace ciera::wire {
namespace {

std::uint64_t digest(std::uint64_t tag, const char* bytes, std::size_t size) {
  std::uint64_t sum = 8 * (tag + 2 * size);
  for (std::size_t i = 0; i * 8 < size; ++i) {
    std::uint64_t word = 0;
    std::memcpy(&word, bytes + 8 * i, std::min<std::size_t>(8, size - 8 * i));
    sum += base::keyed(word, i, base::kGamma0);
  }
  const std::uint64_t key = base::mix(sum);
  return key == 0 ? 1 : key;
}

}  // namespace

std::uint64_t shard_key(std::string_view id) { return digest(0, id.data(), id.size()); }

std::uint64_t shard_key(std::int64_t id) {
  return digest(1, reinterpret_cast<const char*>(&id), sizeof id);
}

}  // namespace ciera::wire
