// How the waits of a communicator and of its calls end before their time.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "ciera/compressed_allgather.hpp"

namespace ciera::pipeline {

// Shared by a communicator and its calls, which may outlive it. Any thread.
class Lifeline {
 public:
  Lifeline(const std::shared_ptr<Transport>& transport, std::shared_ptr<Interrupt> interrupt)
      : transport_(transport), interrupt_(std::move(interrupt)) {}

  // `ready_within(time)` blocks up to that long and says whether the wait is over. Returns true
  // then, false when the calls were abandoned meanwhile. What Interrupt::check throws abandons the
  // calls and leaves this function.
  using ReadyWithin = std::function<bool(std::chrono::nanoseconds)>;
  bool wait(const ReadyWithin& ready_within);
  // As wait, for what is no call: an interrupt ends the wait and nothing else.
  void wait_apart(const ReadyWithin& ready_within);

  // Whether waits of the calling thread are to be broken off by its interrupts.
  bool watches() const { return interrupt_ != nullptr && interrupt_->watches(); }

  // The first reason counts. Aborts the transport.
  void abandon(const std::string& reason);
  std::optional<std::string> abandoned() const;

 private:
  std::weak_ptr<Transport> transport_;
  std::shared_ptr<Interrupt> interrupt_;
  mutable std::mutex mutex_;
  std::optional<std::string> reason_;
};

}  // namespace ciera::pipeline
