// The wire identity of a shard (docs/wire-format.md, section 7).
#pragma once

#include <cstdint>
#include <string_view>

namespace ciera::wire {

std::uint64_t shard_key(std::string_view id);
std::uint64_t shard_key(std::int64_t id);

}  // namespace ciera::wire
