// What the benches of the CUDA codec share: steps of a trace, tiled shards, GPU timing.
#pragma once

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <vector>

#include "exec/cuda_check.hpp"

namespace ciera::bench {

inline constexpr std::uint64_t kRotatedBytes = 512ULL << 20;

struct Trace {
  std::uint64_t numel = 0;
  std::vector<std::uint16_t> steps[2];
};

inline Trace read_trace(const char* path) {
  std::ifstream file(path, std::ios::binary);
  Trace trace;
  file.read(reinterpret_cast<char*>(&trace.numel), 8);
  for (auto& step : trace.steps) {
    step.resize(trace.numel);
    file.read(reinterpret_cast<char*>(step.data()), static_cast<std::streamsize>(2 * trace.numel));
  }
  if (!file || trace.numel == 0) {
    std::fprintf(stderr, "%s is not a file of two steps\n", path);
    std::exit(2);
  }
  return trace;
}

// A shard of `numel` values on the GPU.
inline void tile(const std::vector<std::uint16_t>& step, std::uint64_t numel, std::byte* to) {
  std::vector<std::uint16_t> words(numel);
  const std::uint64_t length = step.size();
  for (std::uint64_t at = 0, t = 0; at < numel; ++t) {
    const std::uint64_t offset = t * 7919 * 8 % length;
    const std::uint64_t count = std::min(numel - at, length - offset);
    std::copy_n(step.begin() + static_cast<std::ptrdiff_t>(offset), count,
                words.begin() + static_cast<std::ptrdiff_t>(at));
    at += count;
  }
  CIERA_CUDA_TRY(cudaMemcpy(to, words.data(), 2 * numel, cudaMemcpyDefault));
  CIERA_CUDA_TRY(cudaDeviceSynchronize());  // a copy from pageable memory may still be under way
}

class Timer {
 public:
  explicit Timer(cudaStream_t stream) : stream_(stream) {
    CIERA_CUDA_TRY(cudaEventCreate(&start_));
    CIERA_CUDA_TRY(cudaEventCreate(&stop_));
  }
  // Median microseconds on the GPU of body(i), `prepare(i)` before it not counted.
  double median_us(
      int runs, const std::function<void(int)>& body,
      const std::function<void(int)>& prepare = [](int) {}) {
    std::vector<double> times;
    for (int i = -3; i < runs; ++i) {
      prepare(i + 3);
      CIERA_CUDA_TRY(cudaStreamSynchronize(stream_));
      CIERA_CUDA_TRY(cudaEventRecord(start_, stream_));
      body(i + 3);
      CIERA_CUDA_TRY(cudaEventRecord(stop_, stream_));
      CIERA_CUDA_TRY(cudaEventSynchronize(stop_));
      float ms = 0;
      CIERA_CUDA_TRY(cudaEventElapsedTime(&ms, start_, stop_));
      if (i >= 0) {
        times.push_back(1000.0 * ms);
      }
    }
    std::nth_element(times.begin(), times.begin() + static_cast<std::ptrdiff_t>(times.size() / 2),
                     times.end());
    return times[times.size() / 2];
  }

 private:
  cudaStream_t stream_;
  cudaEvent_t start_ = nullptr;
  cudaEvent_t stop_ = nullptr;
};

}  // namespace ciera::bench
