#include "codec/cuda/nvcomp_api.hpp"

#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

#include "ciera/error.hpp"

namespace ciera::nvcomp {
namespace {

Loaded load_from(const char* path) {
  setenv("CIERA_NVCOMP_LIBRARY", path, 1);
  return load();
}

TEST(NvcompApi, AMissingLibraryGivesAReasonThatNamesIt) {
  const Loaded loaded = load_from("/nowhere/libnvcomp.so.6");
  EXPECT_EQ(loaded.api, nullptr);
  EXPECT_NE(loaded.reason.find("/nowhere/libnvcomp.so.6"), std::string::npos) << loaded.reason;
  EXPECT_NE(loaded.reason.find("CIERA_NVCOMP_LIBRARY"), std::string::npos) << loaded.reason;
}

TEST(NvcompApi, AMissingSymbolIsNamed) {
  const Loaded loaded = load_from(FAKE_NVCOMP_PARTIAL);
  EXPECT_EQ(loaded.api, nullptr);
  EXPECT_NE(loaded.reason.find("nvcompBatchedANSDecompressAsync"), std::string::npos)
      << loaded.reason;
  EXPECT_NE(loaded.reason.find(FAKE_NVCOMP_PARTIAL), std::string::npos) << loaded.reason;
}

TEST(NvcompApi, ALibraryThatIsTooOldOrTooNewGivesItsVersion) {
  const Loaded old = load_from(FAKE_NVCOMP_OLD);
  EXPECT_EQ(old.api, nullptr);
  EXPECT_NE(old.reason.find("nvCOMP 4.2.1"), std::string::npos) << old.reason;
  const Loaded later = load_from(FAKE_NVCOMP_LATER);
  EXPECT_EQ(later.api, nullptr);
  EXPECT_NE(later.reason.find("nvCOMP 7.0.0"), std::string::npos) << later.reason;
}

TEST(NvcompApi, ALibraryThatWantsMoreAlignmentThanFramesHaveIsRefused) {
  const Loaded loaded = load_from(FAKE_NVCOMP_ALIGNED);
  EXPECT_EQ(loaded.api, nullptr);
  EXPECT_NE(loaded.reason.find("aligned to 32 bytes"), std::string::npos) << loaded.reason;
}

TEST(NvcompApi, AWholeLibraryIsLoadedAndItsFailuresThrow) {
  const Loaded loaded = load_from(FAKE_NVCOMP_WHOLE);
  ASSERT_NE(loaded.api, nullptr) << loaded.reason;
  EXPECT_EQ(loaded.api->major(), 6U);
  EXPECT_EQ(version_text(loaded.api->version), "6.1.3");
  EXPECT_EQ(loaded.api->path, FAKE_NVCOMP_WHOLE);
  void* stream = reinterpret_cast<void*>(100000);
  EXPECT_EQ(loaded.api->compress_temp_bytes(3, 10, stream), 100033U);
  EXPECT_EQ(loaded.api->decompress_temp_bytes(3, 10, stream), 100036U);
  try {
    loaded.api->compressed_bytes_limit(10);
    FAIL() << "a failure that is not told";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kLibrary);
    const std::string text = error.what();
    EXPECT_NE(text.find("compress_max_output"), std::string::npos) << text;
    EXPECT_NE(text.find("chunk size too large"), std::string::npos) << text;
  }
}

TEST(NvcompApi, ALibraryOfBefore6IsCalledByItsNames) {
  const Loaded loaded = load_from(FAKE_NVCOMP_FORMER);
  ASSERT_NE(loaded.api, nullptr) << loaded.reason;
  EXPECT_EQ(loaded.api->major(), 5U);
  EXPECT_EQ(loaded.api->compress_temp_bytes(3, 10, nullptr), 33U);
  EXPECT_EQ(loaded.api->decompress_temp_bytes(3, 10, nullptr), 36U);
}

}  // namespace
}  // namespace ciera::nvcomp
