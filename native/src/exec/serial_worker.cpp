#include "exec/serial_worker.hpp"

#include <utility>

namespace ciera {

SerialWorker::~SerialWorker() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) {
    thread_.join();
  }
}

void SerialWorker::submit(std::function<void()> task) {
  const std::lock_guard lock(mutex_);
  if (!thread_.joinable()) {
    thread_ = std::thread([this] { run(); });
  }
  tasks_.push_back(std::move(task));
  changed_.notify_all();
}

void SerialWorker::wait_idle() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return tasks_.empty() && !busy_; });
}

void SerialWorker::run() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return stopping_ || !tasks_.empty(); });
    if (tasks_.empty()) {
      return;  // stopping, and everything that was asked for has run
    }
    std::function<void()> task = std::move(tasks_.front());
    tasks_.pop_front();
    busy_ = true;
    lock.unlock();
    task();
    task = nullptr;  // its captures end here, outside the lock
    lock.lock();
    busy_ = false;
    changed_.notify_all();
  }
}

}  // namespace ciera
