// The seam between CIERA and whatever moves bytes between ranks.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string_view>

#include "ciera/types.hpp"

namespace ciera {

// Whether a transport can move a different number of bytes from each rank in one call.
enum class CountSupport { kEqualOnly, kPerRank };

// One rank's end of a group, for one communicator at a time. All ranks issue the same calls in the
// same order; every call blocks until this rank's `recv` is complete and its `send` may be reused.
// A failure throws Error (kTransport or kDeadline) and leaves the transport unusable. Calls come
// from one thread at a time, not always the same one.
class Transport {
 public:
  virtual ~Transport() = default;

  virtual Rank rank() const = 0;
  virtual WorldSize world_size() const = 0;
  virtual std::string_view name() const = 0;
  // Ranks of the group that share this host, for dividing its cores.
  virtual std::uint32_t local_world_size() const = 0;
  virtual CountSupport count_support() const = 0;

  // Equal sizes: recv holds world_size * send.size() bytes, rank-major. `send` may be this rank's
  // slot of `recv`.
  virtual void allgather(std::span<const std::byte> send, std::span<std::byte> recv) = 0;

  // counts[r] bytes of rank r go to recv[offsets[r]]; send.size() == counts[rank]. The same counts
  // on every rank (offsets may differ). `send` may be this rank's slot of `recv`. Only with
  // CountSupport::kPerRank.
  virtual void allgatherv(std::span<const std::byte> send, std::span<std::byte> recv,
                          std::span<const std::uint64_t> counts,
                          std::span<const std::uint64_t> offsets) = 0;

  // Whether small calls are bound by the way between the ranks, so that it pays to measure from
  // which size on compressing is quicker.
  virtual bool is_network() const { return false; }

  // Whether the three calls below work: `send` and `recv` are then memory of this rank's GPU.
  virtual bool moves_device_memory() const { return false; }

  // As allgather and allgatherv, but only enqueued: they run in the order of `stream`, after what
  // is on it and before what follows. `send`, `recv`, `counts`, `offsets` as above; counts and
  // offsets are host memory and may be reused on return.
  virtual void allgather_on(DeviceStream stream, std::span<const std::byte> send,
                            std::span<std::byte> recv);
  virtual void allgatherv_on(DeviceStream stream, std::span<const std::byte> send,
                             std::span<std::byte> recv, std::span<const std::uint64_t> counts,
                             std::span<const std::uint64_t> offsets);
  // Blocks until everything on `stream` has run. Throws Error (kDeadline) when that outlasts the
  // transport's deadline, Error (kTransport) when the transport found an error meanwhile.
  virtual void wait_stream(DeviceStream stream);

  // `check` is what a blocked thread owes its program (signals); empty takes it back. A transport
  // that returns true asks it about every 50 ms, on the thread of a call that waits for peers, and
  // lets through what it throws; abort() follows then. False: it cannot, so that calls of threads
  // with signals are made on another thread.
  virtual bool ask_while_waiting(std::function<void()> check);

  // Makes pending and later calls of this group throw. Any thread.
  virtual void abort(std::string_view reason) = 0;

  // Communicators take a transport when they are made and give it back when they are closed, so
  // that the calls of two never meet on it. False when it is taken.
  bool take() { return !taken_.exchange(true); }
  void give_back() { taken_ = false; }

 private:
  std::atomic<bool> taken_ = false;
};

}  // namespace ciera
