#include "exec/thread_pool.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <vector>

namespace ciera {
namespace {

TEST(ThreadPool, RunsEachIndexOnceManyTimesOver) {
  for (const std::size_t threads : {1U, 2U, 5U}) {
    ThreadPool pool(threads);
    EXPECT_EQ(pool.threads(), threads);
    for (std::size_t round = 0; round < 300; ++round) {
      std::vector<std::atomic<int>> runs(round % 17);
      pool.parallel_for(runs.size(), [&](std::size_t i) { ++runs[i]; });
      for (const auto& count : runs) {
        ASSERT_EQ(count, 1);
      }
    }
  }
}

}  // namespace
}  // namespace ciera
