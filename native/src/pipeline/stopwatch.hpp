// Adds the time of a scope to a counter of nanoseconds.
#pragma once

#include <chrono>
#include <cstdint>

namespace ciera::pipeline {

class Stopwatch {
 public:
  explicit Stopwatch(std::uint64_t& total_ns)
      : total_ns_(total_ns), start_(std::chrono::steady_clock::now()) {}
  ~Stopwatch() {
    total_ns_ += static_cast<std::uint64_t>(
        std::chrono::nanoseconds(std::chrono::steady_clock::now() - start_).count());
  }
  Stopwatch(const Stopwatch&) = delete;
  Stopwatch& operator=(const Stopwatch&) = delete;

 private:
  std::uint64_t& total_ns_;
  std::chrono::steady_clock::time_point start_;
};

}  // namespace ciera::pipeline
