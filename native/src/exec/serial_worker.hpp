// One thread that runs tasks in the order they were given.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <thread>

namespace ciera {

class SerialWorker {
 public:
  SerialWorker();
  // Waits until every task given has run, except on the worker's own thread (the last task may own
  // the worker): the thread then ends by itself.
  ~SerialWorker();
  SerialWorker(const SerialWorker&) = delete;
  SerialWorker& operator=(const SerialWorker&) = delete;

  // The thread starts with the first task; std::system_error when the system gives none, and the
  // task is not taken then. Tasks must not throw.
  void submit(std::function<void()> task);
  // Whether every task given so far has run; waits for it up to `time`.
  bool idle_within(std::chrono::nanoseconds time);

 private:
  struct State;
  static void run(State& state);

  std::shared_ptr<State> state_;  // the thread's too
  std::thread thread_;
};

}  // namespace ciera
