#include "transport/nccl/nccl_api.hpp"

#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

namespace ciera::nccl {
namespace {

Loaded load_from(const char* path) {
  setenv("CIERA_NCCL_LIBRARY", path, 1);
  return load();
}

TEST(NcclApi, AMissingLibraryGivesAReasonThatNamesIt) {
  const Loaded loaded = load_from("/nowhere/libnccl.so.2");
  EXPECT_EQ(loaded.api, nullptr);
  EXPECT_NE(loaded.reason.find("/nowhere/libnccl.so.2"), std::string::npos) << loaded.reason;
  EXPECT_NE(loaded.reason.find("CIERA_NCCL_LIBRARY"), std::string::npos) << loaded.reason;
}

TEST(NcclApi, AMissingSymbolIsNamed) {
  const Loaded loaded = load_from(FAKE_NCCL_PARTIAL);
  EXPECT_EQ(loaded.api, nullptr);
  EXPECT_NE(loaded.reason.find("ncclBroadcast"), std::string::npos) << loaded.reason;
  EXPECT_NE(loaded.reason.find(FAKE_NCCL_PARTIAL), std::string::npos) << loaded.reason;
}

TEST(NcclApi, ALibraryThatIsTooOldGivesItsVersion) {
  const Loaded loaded = load_from(FAKE_NCCL_OLD);
  EXPECT_EQ(loaded.api, nullptr);
  EXPECT_NE(loaded.reason.find("NCCL 2.13.4"), std::string::npos) << loaded.reason;
}

TEST(NcclApi, AWholeLibraryIsLoadedWithoutItsOptionalSymbol) {
  const Loaded loaded = load_from(FAKE_NCCL_WHOLE);
  ASSERT_NE(loaded.api, nullptr) << loaded.reason;
  EXPECT_EQ(loaded.api->version, 22809);
  EXPECT_EQ(version_text(loaded.api->version), "2.28.9");
  EXPECT_EQ(loaded.api->path, FAKE_NCCL_WHOLE);
  EXPECT_EQ(loaded.api->get_last_error, nullptr);
  EXPECT_EQ(loaded.api->describe(Result{5}, nullptr), "invalid usage");
  UniqueId id{};
  EXPECT_EQ(loaded.api->get_unique_id(&id), kSuccess);
  EXPECT_EQ(id.internal[127], 7);
}

}  // namespace
}  // namespace ciera::nccl
