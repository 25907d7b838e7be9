// A stateful, lossless all-gather: the result is bit for bit what a plain all-gather delivers.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "ciera/error.hpp"
#include "ciera/transport.hpp"
#include "ciera/types.hpp"

namespace ciera {

// A caller's stable name for a shard. The state of a shard_id belongs to one communicator, so to
// one group and its rank order.
using ShardId = std::variant<std::string, std::int64_t>;

// A caller's token for the contents of a shard.
using Version = std::variant<std::string, std::int64_t>;

// What becomes of the versions of a request: kTrust skips the comparison of a shard whose version
// is that of its last committed frame; kCheck compares and refuses a call whose shard differs.
enum class VersionPolicy : std::uint8_t { kTrust, kCheck };

// What becomes of buffers that the library owns: kTrust takes it that nobody wrote to them between
// two calls; kCheck takes digests after each call, through host memory, and refuses the next call
// of a shard whose buffer was written to. For debugging: it reads the whole buffer twice a call.
enum class BufferPolicy : std::uint8_t { kTrust, kCheck };

// Equal on all ranks, except `threads`, `device`, `versions` and `buffers`; compared in the first
// row of every call.
struct Options {
  ReuseMode reuse = ReuseMode::kExponentBlock;
  Coder coder = Coder::kRans;
  Effort effort = Effort::kDefault;                   // of exponent-delta and word-delta
  std::uint32_t block_size = 512;                     // values; a multiple of 8 from 8 to 65536
  std::optional<std::uint64_t> cache_budget_bytes{};  // for all reuse state; nothing = no limit
  // Calls whose largest rank has fewer bytes are handed over to a plain all-gather. Nothing:
  // measured in the first call over a network (Transport::is_network), 0 elsewhere.
  std::optional<std::uint64_t> plain_below_bytes{};
  std::size_t threads = 0;  // host codec threads; 0 = cores / ranks on this host
  VersionPolicy versions = VersionPolicy::kTrust;
  BufferPolicy buffers = BufferPolicy::kTrust;
  Backend backend = Backend::kHost;  // the space of src and out
  int device = 0;                    // ordinal of this rank's GPU, with kCuda
};

struct Segment {
  ShardId shard_id;
  std::uint64_t numel = 0;  // this rank's values; may differ between ranks
};

// kFlat: one buffer, rank-major, each rank's segments one after the other (what a plain all-gather
// of `src` gives). kPerSegment: one rank-major buffer a segment.
enum class OutputLayout { kFlat, kPerSegment };

// Borrowed until the call is complete.
struct GatherRequest {
  std::vector<Segment> segments{};   // at least one, no shard_id twice
  DType dtype = DType::kBf16;        // of all segments
  std::span<const std::byte> src{};  // the segments, one after the other
  std::vector<std::span<std::byte>>
      out{};  // empty: the library allocates; else one (kFlat) or one a segment
  OutputLayout layout = OutputLayout::kFlat;
  // With kCuda: src is read and out written after what is on this stream now, and what is put on it
  // after the call is complete sees the result.
  DeviceStream stream{};
  // Empty, or one a segment. Equal to that of the shard's last committed call: src has not changed
  // since. Used where same frames are possible: in word-delta, and in the other stateful modes when
  // every rank owns a buffer of the shard. This rank's own affair: ranks need not agree.
  std::vector<std::optional<Version>> versions{};
  // What the elements are where `dtype` only says how wide ("int64"). Ranks must agree on it; empty
  // says nothing.
  std::string element_type{};
  // Keeps the memory of src and out; let go by the time the call is complete.
  std::shared_ptr<void> owner{};
};

// Counted since creation or reset, for one shard or for all. Bytes are what this rank sent,
// everything included; control_bytes is the part of wire_bytes that is rows. Rows of a call are
// attributed to its first segment.
struct Stats {
  std::uint64_t calls = 0;
  std::uint64_t values = 0;
  std::uint64_t raw_bytes = 0;
  std::uint64_t wire_bytes = 0;
  std::uint64_t control_bytes = 0;
  std::uint64_t key_frames = 0;
  std::uint64_t delta_frames = 0;
  std::uint64_t same_frames = 0;
  std::uint64_t raw_frames = 0;
  std::uint64_t bare_segments = 0;
  std::uint64_t blocks = 0;
  std::uint64_t changed_blocks = 0;
  std::uint64_t encode_ns = 0;
  std::uint64_t exchange_ns = 0;
  std::uint64_t decode_ns = 0;
  std::uint64_t stateless_by_budget =
      0;  // calls in which the shard had no state because the budget was spent

  Stats& operator+=(const Stats& other);
};

// Bytes held now. exp_cache: 1 byte a remote value; word_cache: a word a remote value (word-delta);
// own_reference: the same of the own shard (delta modes); hash_cache and staged_hashes: 16 bytes a
// block of the own shard each (exponent-block). The budget bounds the sum of these five. buffers:
// what buffer() made and reset has not let go; in word-delta word_cache and own_reference of such a
// shard are 0, because the buffer serves as them (docs/state.md has the exceptions).
struct Memory {
  std::uint64_t hash_cache = 0;
  std::uint64_t staged_hashes = 0;
  std::uint64_t exp_cache = 0;
  std::uint64_t word_cache = 0;
  std::uint64_t own_reference = 0;
  std::uint64_t buffers = 0;
  std::uint64_t send_arena = 0;
  std::uint64_t recv_arena = 0;
  std::uint64_t scratch_arena = 0;
  std::uint64_t total() const {
    return hash_cache + staged_hashes + exp_cache + word_cache + own_reference + buffers +
           send_arena + recv_arena + scratch_arena;
  }
};

// A shard's gathered buffer that the library owns: every rank's part, rank-major without gaps, as
// `out` of a call of this shard. In the communicator's space, aligned to 256 bytes. Its memory
// lives as long as this object, also beyond reset and the communicator.
//
// The library reads between calls what it wrote here. The caller reads everything, and writes to
// its own part only, which it then gathers in place (src = that part). Anything else written makes
// later results wrong on this rank, or (own part, src elsewhere) on the others; Options::buffers
// finds it.
class ShardBuffer {
 public:
  virtual ~ShardBuffer() = default;
  virtual std::span<std::byte> bytes() const = 0;
  virtual std::span<std::byte> part(Rank rank) const = 0;
  virtual DType dtype() const = 0;
  virtual const std::vector<std::uint64_t>& numels() const = 0;  // values of each rank
  // False after reset or close: then it is plain memory, and no state lies in it.
  virtual bool attached() const = 0;
};

// A call under way or complete.
class Call {
 public:
  virtual ~Call() = default;
  virtual bool done() const = 0;
  // Blocks until complete; throws the call's Error. With a timeout: Error (kDeadline) when it is
  // not complete by then; the call goes on and may be waited for again.
  virtual void wait(std::optional<std::chrono::nanoseconds> timeout) = 0;
  // After wait(): the result buffers, those of the request or the library's own (which live as long
  // as this object).
  virtual const std::vector<std::span<std::byte>>& outputs() const = 0;
};

// Lets a program break off what its threads wait for here (Ctrl-C).
class Interrupt {
 public:
  virtual ~Interrupt() = default;
  // Whether the calling thread may be interrupted. Its blocking calls run on the communicator's own
  // thread, so that it can wait in slices.
  virtual bool watches() const = 0;
  // Asked about every 50 ms on such a thread while it waits. What it throws leaves the function
  // that waits; if that waited for calls, they are abandoned (as by abandon()).
  virtual void check() = 0;
};

// One rank's end. Calls are collective: all ranks make the same calls in the same order. From one
// thread at a time; a second thread inside at the same moment gets Error (kConcurrentCall), which
// the peers are not told: if they make that call, they wait for it until their deadline. An error
// in the arguments of one rank is told to the others, so that each rank throws and none waits;
// nothing has changed then. After a refused frame (kFrame) every rank has dropped the state of the
// call's shards, the contents of `out` are unspecified, and the call may be repeated. After
// kTransport or kDeadline only close() remains. In a process forked from the one that made it,
// every use throws Error (kClosed) and destruction does nothing.
class CompressedAllgather {
 public:
  // Not collective. Throws Error: kArgument for options out of range, for coder nvcomp-ans on the
  // host, or when `transport` serves another communicator that is not closed; kNoDevice without a
  // usable GPU; kLibrary for coder nvcomp-ans without nvCOMP.
  CompressedAllgather(std::shared_ptr<Transport> transport, const Options& options,
                      std::shared_ptr<Interrupt> interrupt = nullptr);
  // Waits for calls under way, unless they were abandoned.
  ~CompressedAllgather();
  CompressedAllgather(const CompressedAllgather&) = delete;
  CompressedAllgather& operator=(const CompressedAllgather&) = delete;

  Rank rank() const;
  WorldSize world_size() const;

  // Blocking.
  std::shared_ptr<Call> allgather(GatherRequest request);
  // Returns at once; calls run in the order they were started.
  std::shared_ptr<Call> allgather_async(GatherRequest request);
  // Takes part in the call that the peers make for these shards, as a rank whose arguments are
  // wrong: they get Error (kPeerFailed) with this message. For language bindings that find errors
  // before a request exists.
  void reject(const std::vector<Segment>& segments, const std::string& message);

  // The gathered buffer of a shard, made by the first call of this function for it, of zeros or,
  // when the shard has been gathered before in word-delta, of what was gathered last. `numels`: the
  // values of every rank. Given as `out` (of a call of this shard alone, or kPerSegment), frames
  // are decoded in place: in word-delta the buffer is the WordCache, and unless it is gathered in
  // place its own part is the own reference, so the shard is not in memory twice. A call with
  // another out decodes here and copies. In the exponent modes same frames become possible once
  // every rank has a buffer. Not collective: whether a rank has one is its own affair. Waits for
  // calls under way. Throws Error: kArgument when dtype or numels are not those of the shard or of
  // its buffer, or overflow; kOutOfMemory. Nothing has changed then.
  std::shared_ptr<ShardBuffer> buffer(const ShardId& shard_id, DType dtype,
                                      std::vector<std::uint64_t> numels);
  // Of a shard that has a buffer or has been gathered before; else Error (kArgument).
  std::shared_ptr<ShardBuffer> buffer(const ShardId& shard_id);

  // Forgets one shard, or all: the next frame is a key frame and dtype and lengths may change;
  // their buffers are the caller's then. All ranks must do it between the same two calls; otherwise
  // the next call throws kRankMismatch on every rank. Waits for calls under way.
  void reset(const ShardId& shard_id);
  void reset();

  Stats stats() const;
  Stats stats(const ShardId& shard_id) const;  // zeros for an unknown shard
  Memory memory() const;
  // From which bytes of the largest rank on calls are not handed over to a plain all-gather;
  // nothing before it is measured.
  std::optional<std::uint64_t> plain_below_bytes() const;

  // Gives up the calls under way: aborts the transport, so that no peer waits for this rank. Later
  // calls throw Error (kTransport) with the reason; what waits here stops waiting. A call that the
  // transport cannot break off goes on by itself, on a thread that keeps what it needs. Any thread.
  void abandon(const std::string& reason);

  // Whether no call is under way any more, not even one that was abandoned; waits up to `patience`.
  bool idle_within(std::chrono::nanoseconds patience);

  // Waits for calls under way and frees everything. Not collective. Idempotent. With `patience`
  // calls that take longer are abandoned.
  void close(std::optional<std::chrono::nanoseconds> patience = {});

 private:
  class Impl;
  std::shared_ptr<Impl> impl_;
};

}  // namespace ciera
