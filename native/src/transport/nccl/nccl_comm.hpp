// A communicator that ends: every wait has a deadline, and abort works from any thread.
#pragma once

#include <atomic>
#include <chrono>
#include <concepts>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "ciera/error.hpp"
#include "transport/nccl/nccl_api.hpp"

namespace ciera::nccl {

enum class Ownership { kOwned, kBorrowed };

// Where a call stands, for error texts.
struct CallSite {
  const char* call;
  const char* file;
  int line;
};

// An owned ncclComm_t is a non-blocking one: no NCCL call waits for a peer inside `mutex_`, so that
// abort never waits for it either. A failing call throws Error; the owner of this object then calls
// `poison`, which is not done here so that CUDA failures end the same way.
class Communicator {
 public:
  Communicator(std::shared_ptr<const Api> api, std::chrono::nanoseconds timeout)
      : api_(std::move(api)), timeout_(timeout) {}
  ~Communicator();
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  // Collective, once. The GPU is the thread's current one.
  void init(const UniqueId& id, int rank, int world);
  void borrow(Comm comm);

  // Runs `call` on the communicator and sees it through: a call that NCCL continues in the
  // background is polled until it is done. Through CIERA_NCCL_TRY only.
  template <std::invocable<Comm> Call>
  void run(Call call, const CallSite& site) {
    Result result = kSuccess;
    {
      const std::lock_guard lock(mutex_);
      throw_if_poisoned();
      result = call(comm_);
    }
    settle(result, site);
  }

  // Blocks until everything on `stream` has run, and NCCL has no error to report about it.
  void wait(Stream stream);

  // The first reason stays. An owned communicator is aborted, and has been when this returns. Any
  // thread.
  void poison(ErrorCode code, const std::string& reason) noexcept;
  void throw_if_poisoned() const;
  // What every call after `poison` throws.
  Error failure() const;

  bool broken_but_borrowed() const { return poisoned_ && ownership_ == Ownership::kBorrowed; }

  const Api& api() const { return *api_; }

 private:
  void settle(Result result, const CallSite& site);
  Result async_error();
  void close() noexcept;

  const std::shared_ptr<const Api> api_;
  const std::chrono::nanoseconds timeout_;
  Ownership ownership_ = Ownership::kOwned;
  Comm init_slot_ = nullptr;  // NCCL's threads may write it until init is over, so it is not comm_
  std::mutex mutex_;          // around comm_ and all calls that use it
  Comm comm_ = nullptr;

  mutable std::mutex reason_mutex_;
  std::atomic<bool> poisoned_ = false;
  ErrorCode code_ = ErrorCode::kTransport;
  std::string reason_;
};

}  // namespace ciera::nccl

// Runs an NCCL call that may use `comm` on a Communicator. Throws Error with call text, NCCL's own
// text, file and line when it fails.
#define CIERA_NCCL_TRY(communicator, call_text)                                    \
  (communicator)                                                                   \
      .run([&]([[maybe_unused]] ::ciera::nccl::Comm comm) { return (call_text); }, \
           ::ciera::nccl::CallSite{#call_text, __FILE__, __LINE__})
