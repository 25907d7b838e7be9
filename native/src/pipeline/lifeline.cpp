#include "pipeline/lifeline.hpp"

namespace ciera::pipeline {
namespace {

constexpr std::chrono::milliseconds kSlice{50};

}  // namespace

bool Lifeline::wait(const ReadyWithin& ready_within) {
  const bool watched = watches();
  while (!ready_within(kSlice)) {
    if (abandoned()) {
      return false;
    }
    if (watched) {
      try {
        interrupt_->check();
      } catch (...) {
        abandon("interrupted");
        throw;
      }
    }
  }
  return true;
}

void Lifeline::wait_apart(const ReadyWithin& ready_within) {
  const bool watched = watches();
  while (!ready_within(kSlice)) {
    if (watched) {
      interrupt_->check();
    }
  }
}

void Lifeline::abandon(const std::string& reason) {
  {
    const std::lock_guard lock(mutex_);
    if (reason_) {
      return;
    }
    reason_ = reason;
  }
  try {
    if (const auto transport = transport_.lock()) {
      transport->abort(reason);
    }
  } catch (const std::exception&) {
    // A transport that cannot be aborted: its call ends by its own deadline.
  }
}

std::optional<std::string> Lifeline::abandoned() const {
  const std::lock_guard lock(mutex_);
  return reason_;
}

}  // namespace ciera::pipeline
