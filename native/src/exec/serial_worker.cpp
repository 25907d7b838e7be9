#include "exec/serial_worker.hpp"

#include <condition_variable>
#include <deque>
#include <mutex>
#include <utility>

namespace ciera {

struct SerialWorker::State {
  std::mutex mutex;
  std::condition_variable given;
  std::condition_variable finished;
  std::deque<std::function<void()>> tasks;
  bool busy = false;
  bool stopping = false;
};

SerialWorker::SerialWorker() : state_(std::make_shared<State>()) {}

SerialWorker::~SerialWorker() {
  {
    const std::lock_guard lock(state_->mutex);
    state_->stopping = true;
  }
  state_->given.notify_all();
  if (thread_.get_id() == std::this_thread::get_id()) {
    thread_.detach();
  } else if (thread_.joinable()) {
    thread_.join();
  }
}

void SerialWorker::submit(std::function<void()> task) {
  const std::lock_guard lock(state_->mutex);
  if (!thread_.joinable()) {
    thread_ = std::thread([state = state_] { run(*state); });
  }
  state_->tasks.push_back(std::move(task));
  state_->given.notify_one();
}

bool SerialWorker::idle_within(std::chrono::nanoseconds time) {
  std::unique_lock lock(state_->mutex);
  return state_->finished.wait_for(lock, time,
                                   [this] { return state_->tasks.empty() && !state_->busy; });
}

void SerialWorker::run(State& state) {
  std::unique_lock lock(state.mutex);
  while (true) {
    state.given.wait(lock, [&state] { return state.stopping || !state.tasks.empty(); });
    if (state.tasks.empty()) {
      return;  // stopping, and everything that was asked for has run
    }
    std::function<void()> task = std::move(state.tasks.front());
    state.tasks.pop_front();
    state.busy = true;
    lock.unlock();
    task();
    task = nullptr;  // its captures end here, outside the lock
    lock.lock();
    state.busy = false;
    state.finished.notify_all();
  }
}

}  // namespace ciera
