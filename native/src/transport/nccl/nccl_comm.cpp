#include "transport/nccl/nccl_comm.hpp"

#include <algorithm>
#include <thread>
#include <utility>

#include "exec/cuda_check.hpp"

namespace ciera::nccl {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::microseconds;
using std::chrono::milliseconds;

constexpr milliseconds kAsyncErrorPeriod{1};
// A destructor must end even when a peer is gone.
constexpr std::chrono::seconds kLongestClose{10};

// Paces a polling loop: answers within microseconds cost no sleep, long waits cost no core.
class Pacer {
 public:
  explicit Pacer(std::chrono::nanoseconds timeout) : start_(Clock::now()), timeout_(timeout) {}

  // False once the deadline has passed.
  bool pause() {
    const auto elapsed = Clock::now() - start_;
    if (elapsed >= timeout_) {
      return false;
    }
    if (elapsed >= kYieldUntil) {
      std::this_thread::sleep_for(pause_);
      pause_ = std::min(pause_ + microseconds(1), kLongestPause);
    } else if (elapsed >= kSpinUntil) {
      std::this_thread::yield();
    }
    return true;
  }

  // True about once a period.
  bool period_over() {
    const auto now = Clock::now();
    if (now < next_period_) {
      return false;
    }
    next_period_ = now + kAsyncErrorPeriod;
    return true;
  }

 private:
  static constexpr microseconds kSpinUntil{30};
  static constexpr microseconds kYieldUntil{200};
  static constexpr microseconds kLongestPause{50};

  const Clock::time_point start_;
  const std::chrono::nanoseconds timeout_;
  Clock::time_point next_period_ = start_ + kAsyncErrorPeriod;
  microseconds pause_{1};
};

std::string seconds_text(std::chrono::nanoseconds time) {
  std::string text = std::to_string(std::chrono::duration<double>(time).count());
  return text.substr(0, text.find('.') + 4) + " s";
}

std::string at(const CallSite& site) {
  return std::string(" at ") + site.file + ":" + std::to_string(site.line);
}

}  // namespace

Communicator::~Communicator() { close(); }

void Communicator::init(const UniqueId& id, int rank, int world) {
  Config config;
  const auto start = [&] {
    const Result result = api_->comm_init_rank_config(&init_slot_, world, id, rank, &config);
    comm_ = init_slot_;
    return result;
  };
  CIERA_NCCL_TRY(*this, start());
  if (comm_ == nullptr) {
    throw Error(ErrorCode::kTransport, "ncclCommInitRankConfig made no communicator");
  }
}

void Communicator::borrow(Comm comm) {
  ownership_ = Ownership::kBorrowed;
  comm_ = comm;
}

Result Communicator::async_error() {
  const std::lock_guard lock(mutex_);
  throw_if_poisoned();
  Result state = kSuccess;
  const Result result = api_->comm_get_async_error(comm_, &state);
  return result == kSuccess ? state : result;
}

void Communicator::settle(Result result, const CallSite& site) {
  Pacer pacer(timeout_);
  while (result == kInProgress) {
    if (!pacer.pause()) {
      throw Error(ErrorCode::kDeadline, std::string(site.call) + ": no answer from a peer within " +
                                            seconds_text(timeout_) + at(site));
    }
    result = async_error();
  }
  if (result != kSuccess) {
    throw Error(ErrorCode::kTransport,
                std::string(site.call) + " failed: " + api_->describe(result, nullptr) + at(site));
  }
}

void Communicator::wait(Stream stream) {
  Pacer pacer(timeout_);
  cudaError_t state = cudaSuccess;
  while ((state = cudaStreamQuery(static_cast<cudaStream_t>(stream))) == cudaErrorNotReady) {
    throw_if_poisoned();
    if (pacer.period_over()) {
      settle(async_error(), {"waiting for a stream", __FILE__, __LINE__});
    }
    if (!pacer.pause()) {
      throw Error(ErrorCode::kDeadline, "the stream had not run after " + seconds_text(timeout_) +
                                            "; a peer is missing or late");
    }
  }
  exec::check_cuda(state, "cudaStreamQuery(stream)", __FILE__, __LINE__);
  cudaGetLastError();  // some CUDA versions leave "not ready" for the next caller to find
  // A kernel that NCCL broke off has run too, but its output is not whole.
  settle(async_error(), {"waiting for a stream", __FILE__, __LINE__});
}

void Communicator::poison(ErrorCode code, const std::string& reason) noexcept {
  {
    const std::lock_guard lock(reason_mutex_);
    if (!poisoned_) {
      code_ = code;
      reason_ = reason;
      poisoned_ = true;
    }
  }
  // Also when another thread was first: nobody leaves before the GPU has let go of his buffers.
  // A borrowed one may be inside a blocking NCCL call that holds mutex_, and is not ours to end.
  if (ownership_ == Ownership::kOwned) {
    const std::lock_guard lock(mutex_);
    if (comm_ != nullptr) {
      api_->comm_abort(std::exchange(comm_, nullptr));
    }
  }
}

void Communicator::throw_if_poisoned() const {
  if (poisoned_) {
    throw failure();
  }
}

Error Communicator::failure() const {
  const std::lock_guard lock(reason_mutex_);
  return {code_, reason_};
}

void Communicator::close() noexcept {
  const std::lock_guard lock(mutex_);
  if (ownership_ == Ownership::kBorrowed || comm_ == nullptr) {
    return;
  }
  Pacer pacer(std::min<std::chrono::nanoseconds>(timeout_, kLongestClose));
  Result result = api_->comm_finalize(comm_);
  while (result == kInProgress && pacer.pause()) {
    Result state = kSuccess;
    const Result asked = api_->comm_get_async_error(comm_, &state);
    result = asked == kSuccess ? state : asked;
  }
  if (result == kSuccess) {
    api_->comm_destroy(comm_);
  } else {
    api_->comm_abort(comm_);
  }
  comm_ = nullptr;
}

}  // namespace ciera::nccl
