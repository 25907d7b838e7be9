// Everything a communicator remembers about its shards: HashCache, ExpCache, WordCache, own
// references, epochs, digests.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "cache/gathered_buffer.hpp"
#include "ciera/compressed_allgather.hpp"
#include "codec/frame.hpp"
#include "exec/memory.hpp"

namespace ciera::cache {

// Whether a shard keeps state between calls. The same on every rank.
enum class Residence : std::uint8_t { kStateful, kStatelessByBudget, kStateless };

// Where this rank finds its own words as of the last committed frame.
enum class OwnWords : std::uint8_t { kNowhere, kOwnReference, kBuffer };

// One shard as this rank sees it. Exists from the first agreed call on.
struct ShardState {
  std::uint64_t shard_key = 0;
  DType dtype = DType::kBf16;
  std::vector<std::uint64_t> numels;  // of every rank, own included
  ReuseMode mode = ReuseMode::kOff;   // what the caches are for; kOff without state
  Residence residence = Residence::kStateless;
  std::uint64_t state_bytes = 0;  // against the budget; the largest of any rank

  std::uint64_t epoch = 0;  // committed frames since the last key frame's start; 0 = no reference
  Buffer hash_cache;        // sender, exponent-block: BlockHash of each own block
  Buffer staged_hashes;     // those of the frame under way
  Buffer own_reference;     // sender, delta modes: own exponents or words of the last frame
  // Receiver: ExpCache, in word-delta WordCache, of each peer; own entry empty. Empty where the
  // WordCache is the buffer.
  std::vector<Buffer> peer_caches;
  std::shared_ptr<GatheredBuffer> buffer;  // the caller asked for one
  bool words_in_buffer = false;            // word-delta: its peers' parts are the WordCache
  OwnWords own_words = OwnWords::kNowhere;
  bool gathered_in_place = false;  // from the buffer itself at least once
  // Exponent modes: every rank's buffer holds all words of the last committed frames. The same on
  // every rank.
  bool words_everywhere = false;
  std::vector<std::uint64_t> guards;   // digests of the buffer's parts since then; or none
  std::optional<Version> version;      // the caller's token of the last committed frame
  std::vector<std::uint64_t> digests;  // of each rank's last committed frame
  Stats stats;

  // Whether frames of the shard may be delta and same frames at times.
  bool stateful() const { return residence == Residence::kStateful; }
  bool in_words() const { return mode == ReuseMode::kWordDelta; }
  // ExpCache or WordCache of a peer, wherever it lies.
  std::span<std::byte> peer_cache(std::size_t rank) const {
    return words_in_buffer ? buffer->part(rank) : peer_caches[rank].span();
  }

  // Takes the digests of the frames just decoded, and the staged hashes when the own frame changed
  // anything, as the new reference.
  void commit(const std::vector<std::uint64_t>& frame_digests, codec::FrameKind own_kind,
              const std::optional<Version>& frame_version);
  // Forgets the reference: the next frame is a key frame.
  void drop();
};

// Bytes of HashCache, staged hashes, own reference and peer caches that the shard needs on the rank
// that needs most. Pure, so that every rank decides alike. `numels` are the shard's lengths on all
// ranks. Saturates instead of overflowing.
std::uint64_t state_bytes(const std::vector<std::uint64_t>& numels, ReuseMode mode, DType dtype,
                          std::uint32_t block_size);

class ShardTable {
 public:
  // Caches are taken from `memory`, which must outlive the table.
  explicit ShardTable(MemoryResource& memory) : memory_(memory) {}

  ShardState* find(const ShardId& shard_id);
  const ShardState* find(const ShardId& shard_id) const;

  // Adds a shard. It is stateful when `mode` wants state and the budget has room, which does not
  // depend on its buffer; allocates its caches then. A buffer has these lengths and this dtype.
  ShardState& add(const ShardId& shard_id, std::uint64_t shard_key, DType dtype,
                  std::vector<std::uint64_t> numels, std::size_t own_rank, const Options& options);
  void erase(const ShardId& shard_id);  // its buffer stays
  void clear();                         // buffers included

  // The caller's gathered buffers. Not of a shard that has one.
  std::shared_ptr<GatheredBuffer> buffer(const ShardId& shard_id) const;
  void add_buffer(const ShardId& shard_id, std::shared_ptr<GatheredBuffer> buffer);
  void erase_buffer(const ShardId& shard_id);
  struct Overlap {
    ShardId shard_id;
    std::shared_ptr<GatheredBuffer> buffer;
  };
  // What this rank last sent is in no buffer any more.
  void forget_own_words();
  // The first buffer that holds some of these bytes.
  std::optional<Overlap> overlapping(std::span<const std::byte> bytes) const;

  // Caches of a stateful shard that are apart from its buffer.
  void allocate_peer_caches(ShardState& state, std::size_t own_rank);
  void allocate_own_reference(ShardState& state, std::size_t own_rank);

  std::uint64_t hash_cache_bytes() const;
  std::uint64_t own_reference_bytes() const;
  // Of shards in word-delta, and of the others.
  std::uint64_t word_cache_bytes() const;
  std::uint64_t exp_cache_bytes() const;
  std::uint64_t buffer_bytes() const;
  const std::map<ShardId, ShardState>& shards() const { return shards_; }

 private:
  void allocate(ShardState& state, std::size_t own_rank, const Options& options);
  std::uint64_t peer_cache_bytes(bool words) const;

  MemoryResource& memory_;
  std::map<ShardId, ShardState> shards_;
  std::map<ShardId, std::shared_ptr<GatheredBuffer>> buffers_;
  std::map<const std::byte*, ShardId, std::less<>> buffers_by_address_;  // that hold anything
  std::uint64_t reserved_bytes_ = 0;  // sum of state_bytes of stateful shards
};

}  // namespace ciera::cache
