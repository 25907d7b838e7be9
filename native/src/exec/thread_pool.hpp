// A fixed set of worker threads for data-parallel host codec work.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>

namespace ciera {

// Runs `body(i)` for i in [0, count) on `threads - 1` workers and the caller. One caller at a time.
class ThreadPool {
 public:
  // threads >= 1; with 1 nothing is started and everything runs on the caller. Throws
  // std::system_error when the system gives no more threads.
  explicit ThreadPool(std::size_t threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  std::size_t threads() const;

  // Returns when all of them have run. `body` must not throw.
  void parallel_for(std::size_t count, const std::function<void(std::size_t)>& body);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// Runs on the pool, or on the caller when `pool` is null.
void parallel_for(ThreadPool* pool, std::size_t count,
                  const std::function<void(std::size_t)>& body);

}  // namespace ciera
