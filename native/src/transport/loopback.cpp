#include "ciera/loopback.hpp"

#include <unistd.h>

#include <algorithm>
#include <condition_variable>
#include <cstring>
#include <functional>
#include <mutex>
#include <string>

#include "ciera/error.hpp"
#include "exec/stream_ops.hpp"

namespace ciera {
namespace {

// What a rank shows to the others between the two barriers of a call.
struct Offer {
  std::span<const std::byte> send;
  std::shared_ptr<void> point;  // on a stream: where `send` is complete, then where it was read
};

// The meeting point of all ranks. A rank may only read another's `send` between `arrive` and
// `leave`.
class Hub {
 public:
  Hub(std::uint32_t world, std::chrono::nanoseconds timeout) : timeout_(timeout), offers_(world) {}

  using Check = std::function<void()>;

  void arrive(std::uint32_t rank, Offer offer, const Check& check) {
    if (process_ != getpid()) {
      throw Error(ErrorCode::kClosed, "loopback transport: made in another process (pid " +
                                          std::to_string(process_) +
                                          "); make a new one after fork");
    }
    std::unique_lock lock(mutex_);
    throw_if_poisoned();
    offers_[rank] = std::move(offer);
    barrier(lock, rank, check);
  }

  void leave(std::uint32_t rank, const Check& check) {
    std::unique_lock lock(mutex_);
    throw_if_poisoned();
    barrier(lock, rank, check);
  }

  const Offer& offer(std::uint32_t rank) const { return offers_[rank]; }
  std::uint32_t world() const { return static_cast<std::uint32_t>(offers_.size()); }

  void poison(ErrorCode code, const std::string& reason) {
    if (process_ != getpid()) {
      return;  // whoever held the mutex at the fork is not here to give it back
    }
    const std::lock_guard lock(mutex_);
    poison_locked(code, reason);
  }

 private:
  void poison_locked(ErrorCode code, const std::string& reason) {
    if (reason_.empty()) {
      code_ = code;
      reason_ = reason;
    }
    changed_.notify_all();
  }

  void throw_if_poisoned() const {
    if (!reason_.empty()) {
      throw Error(code_, "loopback transport: " + reason_);
    }
  }

  void barrier(std::unique_lock<std::mutex>& lock, std::uint32_t rank, const Check& check) {
    waiting_.resize(offers_.size());
    waiting_[rank] = true;
    if (++arrived_ == offers_.size()) {
      arrived_ = 0;
      waiting_.assign(offers_.size(), false);
      ++generation_;
      changed_.notify_all();
      return;
    }
    const std::uint64_t generation = generation_;
    const auto is_over = [&] { return generation_ != generation || !reason_.empty(); };
    const auto start = std::chrono::steady_clock::now();
    bool met = false;
    while (!met) {
      const auto left = timeout_ - (std::chrono::steady_clock::now() - start);
      met = changed_.wait_for(lock, std::min<std::chrono::nanoseconds>(left, kSlice), is_over);
      if (met || left <= kSlice) {
        break;
      }
      if (check) {
        lock.unlock();
        check();
        lock.lock();
      }
    }
    if (!met) {
      poison_locked(ErrorCode::kDeadline, "deadline passed while waiting for rank(s) " + missing());
    }
    if (generation_ == generation) {
      throw_if_poisoned();
    }
  }

  std::string missing() const {
    std::string text;
    for (std::size_t r = 0; r < waiting_.size(); ++r) {
      if (!waiting_[r]) {
        text += (text.empty() ? "" : ", ") + std::to_string(r);
      }
    }
    return text;
  }

  static constexpr std::chrono::milliseconds kSlice{50};
  const pid_t process_ = getpid();
  const std::chrono::nanoseconds timeout_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Offer> offers_;
  std::vector<bool> waiting_;
  std::size_t arrived_ = 0;
  std::uint64_t generation_ = 0;
  ErrorCode code_ = ErrorCode::kTransport;
  std::string reason_;
};

class LoopbackTransport final : public Transport {
 public:
  LoopbackTransport(std::shared_ptr<Hub> hub, std::uint32_t rank)
      : hub_(std::move(hub)), rank_(rank) {}

  Rank rank() const override { return Rank{rank_}; }
  WorldSize world_size() const override { return WorldSize{hub_->world()}; }
  std::string_view name() const override { return "loopback"; }
  std::uint32_t local_world_size() const override { return hub_->world(); }
  CountSupport count_support() const override { return CountSupport::kPerRank; }

  void allgather(std::span<const std::byte> send, std::span<std::byte> recv) override {
    const std::vector<std::uint64_t> counts(hub_->world(), send.size());
    std::vector<std::uint64_t> offsets(hub_->world());
    for (std::size_t r = 0; r < offsets.size(); ++r) {
      offsets[r] = r * send.size();
    }
    allgatherv(send, recv, counts, offsets);
  }

  void allgatherv(std::span<const std::byte> send, std::span<std::byte> recv,
                  std::span<const std::uint64_t> counts,
                  std::span<const std::uint64_t> offsets) override {
    hub_->arrive(rank_, {send, nullptr}, check_);
    const std::string fault = find_fault(recv, counts, offsets);
    for (std::uint32_t r = 0; r < hub_->world() && fault.empty(); ++r) {
      const auto peer = hub_->offer(r).send;
      std::byte* to = recv.data() + offsets[r];
      if (!peer.empty() && to != peer.data()) {
        std::memcpy(to, peer.data(), peer.size());
      }
    }
    if (!fault.empty()) {
      hub_->poison(ErrorCode::kTransport, fault);
    }
    hub_->leave(rank_, check_);
  }

  bool moves_device_memory() const override { return exec::has_streams(); }

  void allgather_on(DeviceStream stream, std::span<const std::byte> send,
                    std::span<std::byte> recv) override {
    std::vector<std::uint64_t> offsets(hub_->world());
    for (std::size_t r = 0; r < offsets.size(); ++r) {
      offsets[r] = r * send.size();
    }
    allgatherv_on(stream, send, recv, std::vector<std::uint64_t>(hub_->world(), send.size()),
                  offsets);
  }

  // The ranks meet to show each other their memory and points on their streams; the copies
  // themselves run in stream order.
  void allgatherv_on(DeviceStream stream, std::span<const std::byte> send,
                     std::span<std::byte> recv, std::span<const std::uint64_t> counts,
                     std::span<const std::uint64_t> offsets) override {
    hub_->arrive(rank_, {send, exec::record_point(stream)}, check_);
    const std::string fault = find_fault(recv, counts, offsets);
    if (!fault.empty()) {
      hub_->poison(ErrorCode::kTransport, fault);
    }
    for (std::uint32_t r = 0; r < hub_->world() && fault.empty(); ++r) {
      const auto peer = hub_->offer(r).send;
      const auto to = recv.subspan(offsets[r], counts[r]);
      if (!peer.empty() && to.data() != peer.data()) {
        exec::hold_until(stream, hub_->offer(r).point);
        exec::copy_on(stream, to, peer);
      }
    }
    hub_->leave(rank_, check_);  // every rank has enqueued its reads
    hub_->arrive(rank_, {{}, exec::record_point(stream)}, check_);
    for (std::uint32_t r = 0; r < hub_->world(); ++r) {
      exec::hold_until(stream, hub_->offer(r).point);  // `send` may be reused after them
    }
    hub_->leave(rank_, check_);
  }

  void wait_stream(DeviceStream stream) override { exec::wait_for(stream); }

  bool ask_while_waiting(std::function<void()> check) override {
    check_ = std::move(check);
    return true;
  }

  void abort(std::string_view reason) override {
    hub_->poison(ErrorCode::kTransport,
                 "aborted by rank " + std::to_string(rank_) + ": " + std::string(reason));
  }

 private:
  // Why what the ranks offer does not fit what this one expects; between arrive and leave.
  std::string find_fault(std::span<const std::byte> recv, std::span<const std::uint64_t> counts,
                         std::span<const std::uint64_t> offsets) const {
    for (std::uint32_t r = 0; r < hub_->world(); ++r) {
      const std::uint64_t sent = hub_->offer(r).send.size();
      const bool fits = offsets[r] <= recv.size() && counts[r] <= recv.size() - offsets[r];
      if (sent != counts[r] || !fits) {
        return "rank " + std::to_string(r) + " sent " + std::to_string(sent) +
               " bytes where rank " + std::to_string(rank_) + " expected " +
               std::to_string(counts[r]) + (fits ? "" : " beyond its buffer");
      }
    }
    return {};
  }

  std::shared_ptr<Hub> hub_;
  std::uint32_t rank_;
  Hub::Check check_;
};

}  // namespace

std::vector<std::shared_ptr<Transport>> make_loopback(WorldSize world_size,
                                                      std::chrono::nanoseconds timeout) {
  const std::uint32_t world = value(world_size);
  if (world == 0 || world > 65535) {
    throw Error(ErrorCode::kArgument, "loopback: world size " + std::to_string(world) +
                                          " is out of range; give 1 to 65535");
  }
  auto hub = std::make_shared<Hub>(world, timeout);
  std::vector<std::shared_ptr<Transport>> transports;
  transports.reserve(world);
  for (std::uint32_t r = 0; r < world; ++r) {
    transports.push_back(std::make_shared<LoopbackTransport>(hub, r));
  }
  return transports;
}

}  // namespace ciera
