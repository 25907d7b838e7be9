#include "cache/shard_table.hpp"

#include <algorithm>
#include <limits>
#include <utility>

namespace ciera::cache {
namespace {

constexpr std::uint64_t kMax = std::numeric_limits<std::uint64_t>::max();

std::uint64_t saturating_add(std::uint64_t a, std::uint64_t b) {
  return a > kMax - b ? kMax : a + b;
}

}  // namespace

void ShardState::commit(const std::vector<std::uint64_t>& frame_digests) {
  std::swap(hash_cache, staged_hashes);
  digests = frame_digests;
  ++epoch;
}

void ShardState::drop() { epoch = 0; }

std::uint64_t state_bytes(const std::vector<std::uint64_t>& numels, std::uint32_t block_size) {
  std::uint64_t all = 0;
  for (const std::uint64_t numel : numels) {
    all = saturating_add(all, numel);
  }
  std::uint64_t most = 0;
  for (const std::uint64_t numel : numels) {
    const std::uint64_t blocks = codec::block_count(numel, block_size);
    // HashCache and the staged hashes.
    const std::uint64_t hash_bytes = blocks > kMax / 32 ? kMax : 32 * blocks;
    most = std::max(most, saturating_add(all - numel, hash_bytes));
  }
  return most;
}

ShardState* ShardTable::find(const ShardId& shard_id) {
  const auto found = shards_.find(shard_id);
  return found == shards_.end() ? nullptr : &found->second;
}

const ShardState* ShardTable::find(const ShardId& shard_id) const {
  const auto found = shards_.find(shard_id);
  return found == shards_.end() ? nullptr : &found->second;
}

ShardState& ShardTable::add(const ShardId& shard_id, std::uint64_t shard_key, DType dtype,
                            std::vector<std::uint64_t> numels, std::size_t own_rank,
                            const Options& options) {
  ShardState state;
  state.shard_key = shard_key;
  state.dtype = dtype;
  state.numels = std::move(numels);
  state.digests.assign(state.numels.size(), 0);
  if (options.reuse == ReuseMode::kExponentBlock && has_exponent(dtype)) {
    state.state_bytes = state_bytes(state.numels, options.block_size);
    const std::uint64_t budget = options.cache_budget_bytes.value_or(kMax);
    const bool fits = reserved_bytes_ <= budget && state.state_bytes <= budget - reserved_bytes_;
    state.residence = fits ? Residence::kStateful : Residence::kStatelessByBudget;
  }
  if (state.residence == Residence::kStateful) {
    const std::uint64_t hash_bytes =
        codec::block_count(state.numels[own_rank], options.block_size) * sizeof(codec::BlockHash);
    state.hash_cache = Buffer(memory_, hash_bytes);
    state.staged_hashes = Buffer(memory_, hash_bytes);
    state.exp_cache.resize(state.numels.size());
    for (std::size_t r = 0; r < state.numels.size(); ++r) {
      if (r != own_rank) {
        state.exp_cache[r] = Buffer(memory_, state.numels[r]);
      }
    }
  }
  auto& added = shards_.insert_or_assign(shard_id, std::move(state)).first->second;
  reserved_bytes_ += added.residence == Residence::kStateful ? added.state_bytes : 0;
  return added;
}

void ShardTable::erase(const ShardId& shard_id) {
  const auto found = shards_.find(shard_id);
  if (found == shards_.end()) {
    return;
  }
  if (found->second.residence == Residence::kStateful) {
    reserved_bytes_ -= found->second.state_bytes;
  }
  shards_.erase(found);
}

void ShardTable::clear() {
  shards_.clear();
  reserved_bytes_ = 0;
}

std::uint64_t ShardTable::hash_cache_bytes() const {
  std::uint64_t bytes = 0;
  for (const auto& [id, state] : shards_) {
    bytes += state.hash_cache.size();
  }
  return bytes;
}

std::uint64_t ShardTable::exp_cache_bytes() const {
  std::uint64_t bytes = 0;
  for (const auto& [id, state] : shards_) {
    for (const auto& peer : state.exp_cache) {
      bytes += peer.size();
    }
  }
  return bytes;
}

}  // namespace ciera::cache
