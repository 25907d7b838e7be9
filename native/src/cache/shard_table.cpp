#include "cache/shard_table.hpp"

#include <algorithm>
#include <iterator>
#include <limits>
#include <utility>

namespace ciera::cache {
namespace {

constexpr std::uint64_t kMax = std::numeric_limits<std::uint64_t>::max();

std::uint64_t saturating_add(std::uint64_t a, std::uint64_t b) {
  return a > kMax - b ? kMax : a + b;
}
std::uint64_t saturating_multiply(std::uint64_t factor, std::uint64_t n) {
  return factor != 0 && n > kMax / factor ? kMax : factor * n;
}

}  // namespace

void ShardState::commit(const std::vector<std::uint64_t>& frame_digests, codec::FrameKind own_kind,
                        const std::optional<Version>& frame_version) {
  if (own_kind != codec::FrameKind::kSame) {
    std::swap(hash_cache, staged_hashes);
  }
  digests = frame_digests;
  version = frame_version;
  ++epoch;
}

void ShardState::drop() {
  epoch = 0;
  version.reset();
  own_words = OwnWords::kNowhere;
  words_everywhere = false;
  guards.clear();
}

std::uint64_t state_bytes(const std::vector<std::uint64_t>& numels, ReuseMode mode, DType dtype,
                          std::uint32_t block_size) {
  const std::uint64_t peer_unit = codec::reference_bytes(mode, dtype);
  const std::uint64_t own_unit = codec::own_reference_bytes(mode, dtype);
  std::uint64_t all = 0;
  for (const std::uint64_t numel : numels) {
    all = saturating_add(all, numel);
  }
  std::uint64_t most = 0;
  for (const std::uint64_t numel : numels) {
    const std::uint64_t blocks = codec::block_count(numel, block_size);
    // HashCache and the staged hashes.
    const std::uint64_t hash_bytes =
        mode == ReuseMode::kExponentBlock ? saturating_multiply(32, blocks) : 0;
    const std::uint64_t peer_bytes = saturating_multiply(peer_unit, all - numel);
    const std::uint64_t own_bytes = saturating_multiply(own_unit, numel);
    most = std::max(most, saturating_add(peer_bytes, saturating_add(own_bytes, hash_bytes)));
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
  if (is_stateful(options.reuse) && codes(options.reuse, dtype)) {
    state.state_bytes = state_bytes(state.numels, options.reuse, dtype, options.block_size);
    const std::uint64_t budget = options.cache_budget_bytes.value_or(kMax);
    const bool fits = reserved_bytes_ <= budget && state.state_bytes <= budget - reserved_bytes_;
    state.residence = fits ? Residence::kStateful : Residence::kStatelessByBudget;
  }
  state.buffer = buffer(shard_id);
  if (state.residence == Residence::kStateful) {
    allocate(state, own_rank, options);
  }
  auto& added = shards_.insert_or_assign(shard_id, std::move(state)).first->second;
  reserved_bytes_ += added.residence == Residence::kStateful ? added.state_bytes : 0;
  return added;
}

void ShardTable::allocate(ShardState& state, std::size_t own_rank, const Options& options) {
  state.mode = options.reuse;
  const std::uint64_t own = state.numels[own_rank];
  if (state.mode == ReuseMode::kExponentBlock) {
    const std::uint64_t hash_bytes =
        codec::block_count(own, options.block_size) * sizeof(codec::BlockHash);
    state.hash_cache = Buffer(memory_, hash_bytes);
    state.staged_hashes = Buffer(memory_, hash_bytes);
  }
  state.peer_caches.resize(state.numels.size());
  state.words_in_buffer = state.buffer != nullptr && state.in_words();
  if (!state.words_in_buffer) {
    allocate_own_reference(state, own_rank);
    allocate_peer_caches(state, own_rank);
  }
}

void ShardTable::allocate_own_reference(ShardState& state, std::size_t own_rank) {
  state.own_reference =
      Buffer(memory_, state.numels[own_rank] * codec::own_reference_bytes(state.mode, state.dtype));
}

void ShardTable::allocate_peer_caches(ShardState& state, std::size_t own_rank) {
  std::vector<Buffer> caches(state.numels.size());
  for (std::size_t r = 0; r < state.numels.size(); ++r) {
    if (r != own_rank) {
      caches[r] =
          Buffer(memory_, state.numels[r] * codec::reference_bytes(state.mode, state.dtype));
    }
  }
  state.peer_caches = std::move(caches);
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
  for (const auto& [id, buffer] : buffers_) {
    buffer->detach();
  }
  buffers_.clear();
  buffers_by_address_.clear();
  shards_.clear();
  reserved_bytes_ = 0;
}

std::shared_ptr<GatheredBuffer> ShardTable::buffer(const ShardId& shard_id) const {
  const auto found = buffers_.find(shard_id);
  return found == buffers_.end() ? nullptr : found->second;
}

void ShardTable::add_buffer(const ShardId& shard_id, std::shared_ptr<GatheredBuffer> buffer) {
  if (!buffer->bytes().empty()) {
    buffers_by_address_.emplace(buffer->bytes().data(), shard_id);
  }
  buffers_.emplace(shard_id, std::move(buffer));
}

void ShardTable::erase_buffer(const ShardId& shard_id) {
  const auto found = buffers_.find(shard_id);
  if (found == buffers_.end()) {
    return;
  }
  found->second->detach();
  if (!found->second->bytes().empty()) {
    buffers_by_address_.erase(found->second->bytes().data());
  }
  buffers_.erase(found);
}

// Buffers are apart from each other: the only candidates are the last one that starts at or before
// the bytes and the first one that starts behind that.
void ShardTable::forget_own_words() {
  for (auto& [shard_id, state] : shards_) {
    if (state.own_words == OwnWords::kBuffer) {
      state.own_words = OwnWords::kNowhere;
    }
  }
}

std::optional<ShardTable::Overlap> ShardTable::overlapping(std::span<const std::byte> bytes) const {
  if (bytes.empty() || buffers_by_address_.empty()) {
    return std::nullopt;
  }
  const std::less<> before;
  auto next = buffers_by_address_.upper_bound(bytes.data());
  if (next != buffers_by_address_.begin()) {
    const auto& [id, buffer] = *buffers_.find(std::prev(next)->second);
    if (before(bytes.data(), buffer->bytes().data() + buffer->bytes().size())) {
      return Overlap{id, buffer};
    }
  }
  if (next != buffers_by_address_.end() && before(next->first, bytes.data() + bytes.size())) {
    const auto& [id, buffer] = *buffers_.find(next->second);
    return Overlap{id, buffer};
  }
  return std::nullopt;
}

std::uint64_t ShardTable::buffer_bytes() const {
  std::uint64_t bytes = 0;
  for (const auto& [id, buffer] : buffers_) {
    bytes += buffer->bytes().size();
  }
  return bytes;
}

std::uint64_t ShardTable::hash_cache_bytes() const {
  std::uint64_t bytes = 0;
  for (const auto& [id, state] : shards_) {
    bytes += state.hash_cache.size();
  }
  return bytes;
}

std::uint64_t ShardTable::own_reference_bytes() const {
  std::uint64_t bytes = 0;
  for (const auto& [id, state] : shards_) {
    bytes += state.own_reference.size();
  }
  return bytes;
}

std::uint64_t ShardTable::peer_cache_bytes(bool words) const {
  std::uint64_t bytes = 0;
  for (const auto& [id, state] : shards_) {
    for (const auto& peer : state.peer_caches) {
      bytes += (state.mode == ReuseMode::kWordDelta) == words ? peer.size() : 0;
    }
  }
  return bytes;
}
std::uint64_t ShardTable::word_cache_bytes() const { return peer_cache_bytes(true); }
std::uint64_t ShardTable::exp_cache_bytes() const { return peer_cache_bytes(false); }

}  // namespace ciera::cache
