// The communicator over an NCCL that is a table of functions of this file: no library, no GPU.
#include "transport/nccl/nccl_comm.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>

namespace ciera::nccl {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

// What the functions below answer, and what they were asked.
struct Script {
  std::atomic<Result> init = kSuccess;
  std::atomic<Result> async = kSuccess;
  std::atomic<Result> finalize = kSuccess;
  std::atomic<int> polls = 0;
  std::atomic<int> aborts = 0;
  std::atomic<int> destroys = 0;
  Config config;
};
Script* script = nullptr;
Comm fake_comm() { return reinterpret_cast<Comm>(script); }

std::shared_ptr<const Api> scripted_api() {
  auto api = std::make_shared<Api>();
  api->comm_init_rank_config = [](Comm* comm, int, UniqueId, int, Config* config) {
    *comm = fake_comm();
    script->config = *config;
    return script->init.load();
  };
  api->comm_get_async_error = [](Comm comm, Result* state) {
    EXPECT_EQ(comm, fake_comm());
    ++script->polls;
    *state = script->async;
    return kSuccess;
  };
  api->comm_finalize = [](Comm) { return script->finalize.load(); };
  api->comm_abort = [](Comm) { return ++script->aborts, kSuccess; };
  api->comm_destroy = [](Comm) { return ++script->destroys, kSuccess; };
  api->get_error_string = [](Result) { return "remote error"; };
  api->get_last_error = [](Comm) { return "socket closed"; };
  return api;
}

class NcclComm : public testing::Test {
 protected:
  void SetUp() override { script = &script_; }
  void TearDown() override { script = nullptr; }

  template <class Body>
  static std::pair<ErrorCode, std::string> error_of(Body body) {
    try {
      body();
    } catch (const Error& error) {
      return {error.code(), error.what()};
    }
    return {ErrorCode::kArgument, "no error"};
  }

  Script script_;
};

TEST_F(NcclComm, AHealthyOneIsNonBlockingAndDestroyedOnce) {
  {
    Communicator communicator(scripted_api(), seconds(60));
    communicator.init({}, 0, 2);
    EXPECT_EQ(script_.config.blocking, 0);
    EXPECT_EQ(script_.config.size, 24U);
  }
  EXPECT_EQ(script_.destroys, 1);
  EXPECT_EQ(script_.aborts, 0);
}

TEST_F(NcclComm, AnInitWhosePeersNeverComeMeetsTheDeadline) {
  script_.init = script_.async = kInProgress;
  {
    Communicator communicator(scripted_api(), milliseconds(20));
    const auto [code, text] = error_of([&] { communicator.init({}, 0, 2); });
    EXPECT_EQ(code, ErrorCode::kDeadline);
    EXPECT_NE(text.find("0.020 s"), std::string::npos) << text;
    communicator.poison(code, text);
    EXPECT_EQ(script_.aborts, 1);
  }
  EXPECT_EQ(script_.aborts, 1);
  EXPECT_EQ(script_.destroys, 0);
}

TEST_F(NcclComm, ACallContinuedInTheBackgroundIsSeenThrough) {
  Communicator communicator(scripted_api(), seconds(60));
  communicator.init({}, 0, 2);
  script_.async = kInProgress;
  std::jthread finisher([&] {
    while (script_.polls < 10) {
      std::this_thread::yield();
    }
    script_.async = kSuccess;
  });
  CIERA_NCCL_TRY(communicator, kInProgress);
  EXPECT_GE(script_.polls, 10);
}

TEST_F(NcclComm, AnErrorCarriesNcclsWordsCallFileAndLine) {
  Communicator communicator(scripted_api(), seconds(60));
  communicator.init({}, 0, 2);
  const auto [code, text] = error_of([&] { CIERA_NCCL_TRY(communicator, Result{6}); });
  EXPECT_EQ(code, ErrorCode::kTransport);
  for (const char* part : {"Result{6}", "remote error: socket closed", "nccl_comm_test.cpp:"}) {
    EXPECT_NE(text.find(part), std::string::npos) << text;
  }
}

TEST_F(NcclComm, AbortByAnotherThreadEndsAPendingCallWithItsReason) {
  Communicator communicator(scripted_api(), seconds(60));
  communicator.init({}, 0, 2);
  script_.async = kInProgress;
  std::jthread aborter([&] {
    while (script_.polls < 3) {
      std::this_thread::yield();
    }
    communicator.poison(ErrorCode::kTransport, "peer 1 left");
    communicator.poison(ErrorCode::kDeadline, "a later reason");
  });
  for (int calls = 0; calls < 2; ++calls) {
    const auto [code, text] = error_of([&] { CIERA_NCCL_TRY(communicator, kInProgress); });
    EXPECT_EQ(code, ErrorCode::kTransport);
    EXPECT_EQ(text, "peer 1 left");
  }
  aborter.join();
  EXPECT_EQ(script_.aborts, 1);
}

TEST_F(NcclComm, ABorrowedOneIsNeitherAbortedNorDestroyed) {
  {
    Communicator communicator(scripted_api(), seconds(60));
    communicator.borrow(fake_comm());
    communicator.poison(ErrorCode::kDeadline, "late");
    EXPECT_EQ(error_of([&] { CIERA_NCCL_TRY(communicator, kSuccess); }).first,
              ErrorCode::kDeadline);
    EXPECT_TRUE(communicator.broken_but_borrowed());
  }
  EXPECT_EQ(script_.aborts + script_.destroys, 0);
}

TEST_F(NcclComm, OneThatCannotFinishIsAbortedAtItsEnd) {
  {
    Communicator communicator(scripted_api(), milliseconds(20));
    communicator.init({}, 0, 2);
    script_.finalize = script_.async = kInProgress;
  }
  EXPECT_EQ(script_.aborts, 1);
  EXPECT_EQ(script_.destroys, 0);
}

}  // namespace
}  // namespace ciera::nccl
