// What the calls of one communicator share.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "cache/shard_table.hpp"
#include "ciera/compressed_allgather.hpp"
#include "codec/backend.hpp"
#include "exec/memory.hpp"

namespace ciera::pipeline {

// The right to use a transport, which only one communicator has at a time.
class TransportClaim {
 public:
  explicit TransportClaim(std::shared_ptr<Transport> transport);  // Error (kArgument) when taken
  ~TransportClaim() { release(); }
  TransportClaim(const TransportClaim&) = delete;
  TransportClaim& operator=(const TransportClaim&) = delete;
  void release();

 private:
  std::shared_ptr<Transport> transport_;
};

struct Engine {
  Engine(std::shared_ptr<Transport> transport_in, const Options& options_in);

  std::shared_ptr<Transport> transport;
  TransportClaim claim;
  Options options;
  std::size_t rank;
  std::size_t world;
  std::uint64_t config_digest;
  std::shared_ptr<codec::CodecBackend> backend;  // results of calls keep its memory alive
  cache::ShardTable table;
  Stats total;
  Arena frame_arena;    // frames of a call of several segments, before they are packed
  Arena send_arena;     // the payload
  Arena recv_arena;     // every rank's payload
  Arena staging_arena;  // host memory for a transport that cannot move the backend's
  std::optional<std::uint64_t> plain_below_bytes;  // nothing until it is measured
  std::uint32_t sequence = 0;
  std::string broken;  // why only close() remains; empty while usable
  std::string unusable() const {
    return "the communicator is unusable since an earlier failure (" + broken +
           "); close it and make a new one on every rank";
  }
};

// "shard 'layers.0.up', rank 1: TEXT"
std::string describe(const ShardId& shard_id, std::size_t rank, const std::string& text);
std::string to_string(const ShardId& shard_id);
std::uint64_t key_of(const ShardId& shard_id);

}  // namespace ciera::pipeline
