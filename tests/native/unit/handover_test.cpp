// From which size on calls are compressed, from measured times.
#include "policy/handover.hpp"

#include <gtest/gtest.h>

#include <vector>

namespace ciera::policy {
namespace {

std::uint64_t below(const std::vector<HandoverSample>& samples) { return plain_below(samples); }

TEST(Handover, IsNeverWhereTheCodecAlwaysPays) {
  EXPECT_EQ(below({{100, 10, 5}, {1000, 100, 50}}), 0U);
}

TEST(Handover, LiesWhereTheTimesCross) {
  // A loss of 300 at 100 and a gain of 600 at 1000: nothing at 400.
  EXPECT_EQ(below({{100, 10, 310}, {1000, 1000, 400}}), 400U);
  // The last crossing counts, whatever smaller sizes gain by chance.
  EXPECT_EQ(below({{10, 9, 3}, {100, 10, 310}, {1000, 1000, 400}}), 400U);
}

TEST(Handover, BeyondTheSamplesFollowsTheirLine) {
  // The loss falls by 100 every 100 bytes.
  EXPECT_EQ(below({{100, 10, 510}, {200, 20, 420}}), 600U);
}

TEST(Handover, IsAlwaysWhereLargerSizesLoseMore) {
  EXPECT_EQ(below({{100, 10, 20}, {200, 20, 50}}), kAlwaysPlain);
  EXPECT_EQ(below({{100, 10, 20}}), kAlwaysPlain);
}

}  // namespace
}  // namespace ciera::policy
