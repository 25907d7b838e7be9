// What buffers that the library owns do for the state of their shards.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "pipeline/engine.hpp"

namespace ciera::pipeline {

// CompressedAllgather::buffer. No call is under way.
std::shared_ptr<ShardBuffer> make_buffer(Engine& engine, const ShardId& shard_id, DType dtype,
                                         std::vector<std::uint64_t> numels);
std::shared_ptr<ShardBuffer> find_buffer(Engine& engine, const ShardId& shard_id);

// The WordCache of a shard in word-delta moves into its buffer, or out of it because something else
// is about to be written there. Neither changes what it holds. Moving out may throw Error
// (kOutOfMemory), with everything as it was.
void move_words_in(Engine& engine, cache::ShardState& state);
void move_words_out(Engine& engine, cache::ShardState& state);

// Digests of every part of the shard's buffer as they are now; blocks.
std::vector<std::uint64_t> digest_parts(Engine& engine, const cache::ShardState& state);

}  // namespace ciera::pipeline
