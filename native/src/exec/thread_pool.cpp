#include "exec/thread_pool.hpp"

#include <unistd.h>

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <vector>

namespace ciera {

struct ThreadPool::State {
  std::mutex mutex;
  std::condition_variable start;
  std::condition_variable finish;
  const std::function<void(std::size_t)>* body = nullptr;
  std::size_t count = 0;
  std::atomic<std::size_t> next = 0;
  std::size_t working = 0;
  std::uint64_t generation = 0;
  bool stopping = false;
  std::vector<std::thread> workers;
  const pid_t process = getpid();

  void take_turns() {
    for (std::size_t i = next.fetch_add(1); i < count; i = next.fetch_add(1)) {
      (*body)(i);
    }
  }

  void stop() {
    {
      const std::lock_guard lock(mutex);
      stopping = true;
    }
    start.notify_all();
    for (std::thread& worker : workers) {
      worker.join();
    }
    workers.clear();
  }

  void work() {
    std::uint64_t seen = 0;
    std::unique_lock lock(mutex);
    while (true) {
      start.wait(lock, [&] { return stopping || generation != seen; });
      if (stopping) {
        return;
      }
      seen = generation;
      lock.unlock();
      take_turns();
      lock.lock();
      if (--working == 0) {
        finish.notify_one();
      }
    }
  }
};

ThreadPool::ThreadPool(std::size_t threads) : state_(std::make_unique<State>()) {
  try {
    for (std::size_t i = 1; i < threads; ++i) {
      state_->workers.emplace_back([state = state_.get()] { state->work(); });
    }
  } catch (...) {
    state_->stop();  // a joinable thread must not meet its destructor
    throw;
  }
}

ThreadPool::~ThreadPool() {
  if (state_->process != getpid()) {
    static_cast<void>(state_.release());  // a fork has no threads that could be joined
    return;
  }
  state_->stop();
}

std::size_t ThreadPool::threads() const { return state_->workers.size() + 1; }

void ThreadPool::parallel_for(std::size_t count, const std::function<void(std::size_t)>& body) {
  if (state_->workers.empty() || count < 2) {
    for (std::size_t i = 0; i < count; ++i) {
      body(i);
    }
    return;
  }
  {
    const std::lock_guard lock(state_->mutex);
    state_->body = &body;
    state_->count = count;
    state_->next = 0;
    state_->working = state_->workers.size();
    ++state_->generation;
  }
  state_->start.notify_all();
  state_->take_turns();
  std::unique_lock lock(state_->mutex);
  state_->finish.wait(lock, [this] { return state_->working == 0; });
}

void parallel_for(ThreadPool* pool, std::size_t count,
                  const std::function<void(std::size_t)>& body) {
  if (pool != nullptr) {
    pool->parallel_for(count, body);
    return;
  }
  for (std::size_t i = 0; i < count; ++i) {
    body(i);
  }
}

}  // namespace ciera
