// The orchestrator over loopback: results, state, agreement and faults.
#include <atomic>
#include <cstdlib>

#include "ciera/nvcomp.hpp"
#include "ranks.hpp"
#include "transport/wrapping.hpp"

namespace ciera {
namespace {

using testing::bytes;
using testing::error_of;
using testing::on_ranks;
using testing::weights;
using testing::words_of;

// What a plain all-gather gives at `step` when rank r holds `numels[r]` words.
std::vector<std::uint16_t> expected(const std::vector<std::size_t>& numels, std::size_t step) {
  std::vector<std::uint16_t> all;
  for (std::size_t r = 0; r < numels.size(); ++r) {
    const auto own = weights(r, step, numels[r]);
    all.insert(all.end(), own.begin(), own.end());
  }
  return all;
}

class EveryMode : public ::testing::TestWithParam<std::tuple<ReuseMode, Coder, std::uint32_t>> {};

TEST_P(EveryMode, GathersUnevenShardsBitForBitOverSteps) {
  const auto [mode, coder, world] = GetParam();
  std::vector<std::size_t> numels;
  for (std::uint32_t r = 0; r < world; ++r) {
    numels.push_back(r == 1 ? 0 : 1000 + 37 * r);
  }
  on_ranks(world, [&, mode = mode, coder = coder](std::size_t rank, auto transport) {
    CompressedAllgather comm(transport, {.reuse = mode, .coder = coder, .block_size = 64});
    for (std::size_t step = 0; step < 4; ++step) {
      const auto own = weights(rank, step, numels[rank]);
      const auto call = comm.allgather({.segments = {{"w", own.size()}}, .src = bytes(own)});
      EXPECT_EQ(words_of(call->outputs()[0]), expected(numels, step));
    }
    const Stats stats = comm.stats();
    EXPECT_EQ(stats.calls, 4U);
    // Stored words of changed blocks, all of them here, would be longer than the key frame.
    const bool pays = mode != ReuseMode::kWordDelta || coder == Coder::kRans;
    if (is_stateful(mode) && pays && numels[rank] > 0) {
      EXPECT_EQ(stats.delta_frames, 3U);
    }
  });
}

INSTANTIATE_TEST_SUITE_P(
    Loopback, EveryMode,
    ::testing::Combine(::testing::Values(ReuseMode::kOff, ReuseMode::kExponentOnly,
                                         ReuseMode::kExponentBlock, ReuseMode::kExponentDelta,
                                         ReuseMode::kWordDelta),
                       ::testing::Values(Coder::kRaw, Coder::kRans),
                       ::testing::Values(1U, 2U, 3U, 8U)));

TEST(Allgather, GathersInPlaceWithPaddedExchangeAsWithPerRankCounts) {
  const std::vector<std::size_t> numels{600, 512, 100};
  for (const CountSupport support : {CountSupport::kEqualOnly, CountSupport::kPerRank}) {
    on_ranks(3, [&](std::size_t rank, auto inner) {
      auto recording = std::make_shared<RecordingTransport>(inner, support);
      for (const ReuseMode mode : {ReuseMode::kOff, ReuseMode::kExponentBlock,
                                   ReuseMode::kExponentDelta, ReuseMode::kWordDelta}) {
        CompressedAllgather comm(recording, {.reuse = mode});
        const std::size_t start = rank == 0 ? 0 : (rank == 1 ? 600 : 1112);
        for (std::size_t step = 0; step < 3; ++step) {
          std::vector<std::uint16_t> out(1212);
          const auto own = weights(rank, step, numels[rank]);
          std::ranges::copy(own, out.begin() + static_cast<std::ptrdiff_t>(start));
          const auto all = std::as_writable_bytes(std::span(out));
          comm.allgather({.segments = {{std::int64_t{7}, own.size()}},
                          .src = all.subspan(2 * start, 2 * own.size()),
                          .out = {all}});
          EXPECT_EQ(out, expected(numels, step));
        }
      }
    });
  }
}

TEST(Allgather, GathersSegmentsOfMixedKnownAndNewShards) {
  on_ranks(2, [](std::size_t rank, auto transport) {
    CompressedAllgather comm(transport, {});
    for (std::size_t step = 0; step < 3; ++step) {
      // "b" is new at step 1; the order changes at step 2.
      std::vector<Segment> segments{{"a", 700}};
      if (step == 1) {
        segments.push_back({"b", 400});
      } else if (step == 2) {
        segments.insert(segments.begin(), {"b", 400});
      }
      std::size_t total = 0;
      for (const Segment& segment : segments) {
        total += segment.numel;
      }
      const auto own = weights(rank, step, total);
      const auto call = comm.allgather(
          {.segments = segments, .src = bytes(own), .layout = OutputLayout::kPerSegment});
      const auto first = weights(0, step, total);
      const auto second = weights(1, step, total);
      std::size_t offset = 0;
      for (std::size_t s = 0; s < segments.size(); ++s) {
        const auto from = static_cast<std::ptrdiff_t>(offset);
        const auto to = static_cast<std::ptrdiff_t>(offset + segments[s].numel);
        std::vector<std::uint16_t> want(first.begin() + from, first.begin() + to);
        want.insert(want.end(), second.begin() + from, second.begin() + to);
        EXPECT_EQ(words_of(call->outputs()[s]), want) << "step " << step << " segment " << s;
        offset += segments[s].numel;
      }
    }
    EXPECT_EQ(comm.stats("a").delta_frames, 2U);
    EXPECT_EQ(comm.stats("b").delta_frames, 1U);
  });
}

TEST(Allgather, CountsEveryByteItSends) {
  for (const CountSupport support : {CountSupport::kPerRank, CountSupport::kEqualOnly}) {
    on_ranks(2, [support](std::size_t rank, auto inner) {
      auto recording = std::make_shared<RecordingTransport>(inner, support);
      CompressedAllgather comm(recording, {});
      for (std::size_t step = 0; step < 3; ++step) {
        const auto own = weights(rank, step, 5000);  // frames of the two ranks differ in length
        comm.allgather({.segments = {{"x", 2000}, {"y", 3000}}, .src = bytes(own)});
      }
      EXPECT_EQ(comm.stats().wire_bytes, recording->sent_bytes());
    });
  }
}

TEST(Allgather, RunsAsyncCallsInOrder) {
  on_ranks(2, [](std::size_t rank, auto transport) {
    CompressedAllgather comm(transport, {});
    std::vector<std::vector<std::uint16_t>> inputs;
    std::vector<std::shared_ptr<Call>> calls;
    for (std::size_t step = 0; step < 6; ++step) {
      inputs.push_back(weights(rank, step, 3000));
      calls.push_back(
          comm.allgather_async({.segments = {{"w", 3000}}, .src = bytes(inputs.back())}));
    }
    for (std::size_t step = 0; step < 6; ++step) {
      calls[step]->wait({});
      EXPECT_EQ(words_of(calls[step]->outputs()[0]), expected({3000, 3000}, step));
    }
  });
}

TEST(Allgather, ShardBeyondTheBudgetTravelsWithoutState) {
  on_ranks(2, [](std::size_t rank, auto transport) {
    // Room for one shard of 1024 values: 1024 bytes of exponents and 2 blocks of 32 bytes.
    CompressedAllgather comm(transport, {.cache_budget_bytes = 1024 + 64});
    for (std::size_t step = 0; step < 3; ++step) {
      const auto own = weights(rank, step, 1024);
      for (const char* id : {"first", "second"}) {
        const auto call = comm.allgather({.segments = {{id, 1024}}, .src = bytes(own)});
        EXPECT_EQ(words_of(call->outputs()[0]), expected({1024, 1024}, step));
      }
    }
    EXPECT_EQ(comm.stats("first").delta_frames, 2U);
    EXPECT_EQ(comm.stats("second").delta_frames, 0U);
    EXPECT_EQ(comm.stats("second").stateless_by_budget, 3U);
    const Memory memory = comm.memory();
    EXPECT_EQ(memory.exp_cache + memory.hash_cache + memory.staged_hashes, 1024U + 64U);
  });
}

TEST(Disagreement, ThrowsOnEveryRankAndTheNextAgreedCallWorks) {
  struct Case {
    const char* what;
    std::function<Error(CompressedAllgather&, std::size_t, std::span<const std::byte>)> call;
    ErrorCode code;
  };
  const auto gather = [](CompressedAllgather& comm, ShardId id, DType dtype, std::size_t numel,
                         std::span<const std::byte> src) {
    const auto error =
        error_of([&] { comm.allgather({.segments = {{id, numel}}, .dtype = dtype, .src = src}); });
    return error.value_or(Error(ErrorCode::kArgument, "nothing was thrown"));
  };
  const std::vector<Case> cases{
      {"shard_id=",
       [&](auto& comm, std::size_t rank, auto src) {
         return gather(comm, rank == 1 ? "other" : "w", DType::kBf16, 400, src);
       },
       ErrorCode::kRankMismatch},
      {"dtype=",
       [&](auto& comm, std::size_t rank, auto src) {
         return gather(comm, "fresh", rank == 1 ? DType::kFp16 : DType::kBf16, 400, src);
       },
       ErrorCode::kRankMismatch},
      {"epoch=",
       [&](auto& comm, std::size_t rank, auto src) {
         if (rank == 1) {
           comm.reset(ShardId("w"));
         }
         const Error error = gather(comm, "w", DType::kBf16, 400, src);
         comm.reset();
         return error;
       },
       ErrorCode::kRankMismatch},
  };
  on_ranks(3, [&](std::size_t rank, auto transport) {
    CompressedAllgather comm(transport, {});
    const auto own = weights(rank, 0, 400);
    for (const Case& one : cases) {
      comm.allgather({.segments = {{"w", 400}}, .src = bytes(own)});
      const Error error = one.call(comm, rank, bytes(own));
      EXPECT_EQ(error.code(), one.code) << error.what();
      EXPECT_NE(std::string(error.what()).find(one.what), std::string::npos) << error.what();
    }
    const auto call = comm.allgather({.segments = {{"w", 400}}, .src = bytes(own)});
    EXPECT_EQ(words_of(call->outputs()[0]), expected({400, 400, 400}, 0));
  });
}

TEST(Disagreement, OptionsThatDifferThrowOnEveryRank) {
  on_ranks(2, [](std::size_t rank, auto transport) {
    CompressedAllgather comm(transport, {.block_size = rank == 0 ? 512U : 256U});
    const auto own = weights(rank, 0, 64);
    const auto error =
        error_of([&] { comm.allgather({.segments = {{"w", 64}}, .src = bytes(own)}); });
    ASSERT_TRUE(error);
    EXPECT_EQ(error->code(), ErrorCode::kRankMismatch);
    EXPECT_NE(std::string(error->what()).find("block_size=256"), std::string::npos);
  });
}

TEST(BadArguments, OfOneRankThrowOnEveryRankAndChangeNothing) {
  on_ranks(2, [](std::size_t rank, auto transport) {
    CompressedAllgather comm(transport, {});
    const auto own = weights(rank, 0, 400);
    comm.allgather({.segments = {{"w", 400}}, .src = bytes(own)});
    std::vector<std::byte> out(1600);
    const std::vector<GatherRequest> bad{
        {.segments = {{"w", 400}}, .src = bytes(own), .out = {std::span(out).first(1598)}},
        {.segments = {{"w", 400}}, .dtype = DType::kFp16, .src = bytes(own)},
        {.segments = {{"w", 399}}, .src = bytes(own).first(798)},
        {.segments = {{"w", 400}}, .src = bytes(own).first(798)},
        {.segments = {{"w", 200}, {"w", 200}}, .src = bytes(own)},
        {.segments = {}, .src = {}},
        {.segments = {{"w", 400}}, .src = std::span(out).subspan(8, 800), .out = {out}},
    };
    for (const GatherRequest& request : bad) {
      const auto error = error_of([&] {
        comm.allgather(rank == 0 ? request
                                 : GatherRequest{.segments = {{"w", 400}}, .src = bytes(own)});
      });
      ASSERT_TRUE(error);
      if (rank == 0) {
        EXPECT_TRUE(error->code() == ErrorCode::kArgument ||
                    error->code() == ErrorCode::kShardChanged);
      } else {
        EXPECT_EQ(error->code(), ErrorCode::kPeerFailed);
      }
      EXPECT_NE(std::string(error->what()).find("rank 0"), std::string::npos) << error->what();
    }
    comm.allgather({.segments = {{"w", 400}}, .src = bytes(own)});
    EXPECT_EQ(comm.stats("w").delta_frames, 1U);  // the state survived all of them
  });
}

TEST(DamagedFrame, IsRefusedOnEveryRankLeavesOutAloneAndTheNextCallSendsKeyFrames) {
  on_ranks(2, [](std::size_t rank, auto inner) {
    std::atomic<bool> damage = false;
    auto faulty = std::make_shared<FaultyTransport>(inner, [&](std::span<std::byte> received) {
      if (damage && received.size() > 512 && rank == 1) {  // a payload, not rows
        received[received.size() / 4] ^= std::byte{1};     // in the half of rank 0
      }
    });
    CompressedAllgather comm(faulty, {});
    const auto own = weights(rank, 0, 4000);
    comm.allgather({.segments = {{"w", 4000}}, .src = bytes(own)});
    damage = true;
    std::vector<std::byte> out(16000, std::byte{0x5A});
    const auto error = error_of(
        [&] { comm.allgather({.segments = {{"w", 4000}}, .src = bytes(own), .out = {out}}); });
    ASSERT_TRUE(error);
    EXPECT_EQ(error->code(), ErrorCode::kFrame);
    EXPECT_NE(std::string(error->what()).find("rank 1 refused what rank 0 sent: bad_checksum"),
              std::string::npos)
        << error->what();
    if (rank == 1) {
      EXPECT_EQ(out, std::vector<std::byte>(16000, std::byte{0x5A}));
    }
    damage = false;
    const auto call = comm.allgather({.segments = {{"w", 4000}}, .src = bytes(own)});
    EXPECT_EQ(words_of(call->outputs()[0]), expected({4000, 4000}, 0));
    EXPECT_EQ(comm.stats("w").key_frames, 2U);
  });
}

TEST(DamagedFrame, OfADeltaModeDropsBothReferences) {
  for (const ReuseMode mode : {ReuseMode::kExponentDelta, ReuseMode::kWordDelta}) {
    on_ranks(2, [mode](std::size_t rank, auto inner) {
      std::atomic<bool> damage = false;
      auto faulty = std::make_shared<FaultyTransport>(inner, [&](std::span<std::byte> received) {
        if (damage && received.size() > 512 && rank == 1) {
          received[received.size() / 4] ^= std::byte{1};
        }
      });
      CompressedAllgather comm(faulty, {.reuse = mode});
      const auto gather = [&](std::size_t step) {
        const auto own = weights(rank, step, 4000);
        GatherRequest request{.segments = {{"w", 4000}}, .src = bytes(own)};
        request.versions.resize(1);
        request.versions[0].emplace(std::int64_t{7});
        const auto call = comm.allgather(std::move(request));
        return words_of(call->outputs()[0]);
      };
      gather(0);
      damage = true;
      const auto error = error_of([&] { gather(0); });
      // A same frame is too short to be hit: word-delta passes, and has nothing to drop.
      const bool passes = mode == ReuseMode::kWordDelta;
      ASSERT_EQ(error.has_value(), !passes);
      damage = false;
      EXPECT_EQ(gather(0), expected({4000, 4000}, 0));
      EXPECT_EQ(comm.stats("w").key_frames, passes ? 1U : 2U);
      EXPECT_EQ(comm.stats("w").same_frames, passes ? 2U : 0U);
    });
  }
}

TEST(GivenUpCall, LeavesTheReferenceOfADeltaModeAsItWas) {
  for (const ReuseMode mode : {ReuseMode::kExponentDelta, ReuseMode::kWordDelta}) {
    on_ranks(2, [mode](std::size_t rank, auto transport) {
      CompressedAllgather comm(transport, {.reuse = mode});
      const auto gather = [&](std::size_t step) {
        const auto own = weights(rank, step, 4000);
        const auto call = comm.allgather({.segments = {{"w", 4000}}, .src = bytes(own)});
        return words_of(call->outputs()[0]);
      };
      gather(0);
      // Rank 0 has encoded step 1 when it hears that rank 1 cannot take part.
      const auto error = error_of([&] {
        rank == 0 ? static_cast<void>(gather(1))
                  : static_cast<void>(comm.allgather({.segments = {{"w", 4000}}, .src = {}}));
      });
      ASSERT_TRUE(error);
      EXPECT_EQ(gather(2), expected({4000, 4000}, 2));
      EXPECT_EQ(comm.stats("w").delta_frames, 1U);
    });
  }
}

TEST(Options, OutOfRangeThrow) {
  const auto transports = make_loopback(WorldSize{1}, std::chrono::seconds(1));
  for (const Options& options : {Options{.block_size = 12}, Options{.block_size = 0},
                                 Options{.block_size = 65544}, Options{.threads = 1000000}}) {
    const auto error = error_of([&] { CompressedAllgather comm(transports[0], options); });
    ASSERT_TRUE(error);
    EXPECT_EQ(error->code(), ErrorCode::kArgument);
  }
}

TEST(Options, NvcompAnsNeedsAGpuAndItsLibrary) {
  const auto transports = make_loopback(WorldSize{1}, std::chrono::seconds(1));
  const auto refused = [&](Backend backend) {
    const Options options{.coder = Coder::kNvcompAns, .backend = backend};
    return error_of([&] { CompressedAllgather comm(transports[0], options); });
  };
  const auto on_host = refused(Backend::kHost);
  ASSERT_TRUE(on_host);
  EXPECT_EQ(on_host->code(), ErrorCode::kArgument);
  EXPECT_NE(std::string(on_host->what()).find("backend cuda"), std::string::npos);

  setenv("CIERA_NVCOMP_LIBRARY", "/nowhere/libnvcomp.so.6", 1);
  const std::string reason = nvcomp_support().detail;
  const bool built_with_cuda = reason.find("/nowhere/libnvcomp.so.6") != std::string::npos;
  const auto on_gpu = refused(Backend::kCuda);
  unsetenv("CIERA_NVCOMP_LIBRARY");
  ASSERT_TRUE(on_gpu);
  EXPECT_EQ(on_gpu->code(), built_with_cuda ? ErrorCode::kLibrary : ErrorCode::kNoDevice);
  EXPECT_NE(std::string(on_gpu->what()).find(reason), std::string::npos) << on_gpu->what();
}

// Says of loopback that it is a network, so that hand-over is measured on it.
class NetworkTransport final : public WrappingTransport {
 public:
  using WrappingTransport::WrappingTransport;
  bool is_network() const override { return true; }
};

TEST(Handover, IsMeasuredInTheFirstCallAndAlikeOnAllRanks) {
  std::uint64_t measured[3] = {};
  on_ranks(3, [&](std::size_t rank, auto inner) {
    CompressedAllgather comm(std::make_shared<NetworkTransport>(inner), {.threads = 1});
    EXPECT_FALSE(comm.plain_below_bytes());
    for (std::size_t step = 0; step < 2; ++step) {
      const auto own = weights(rank, step, 300);
      const auto call = comm.allgather({.segments = {{"w", 300}}, .src = bytes(own)});
      EXPECT_EQ(words_of(call->outputs()[0]), expected({300, 300, 300}, step));
    }
    measured[rank] = comm.plain_below_bytes().value();
  });
  EXPECT_EQ(measured[0], measured[1]);
  EXPECT_EQ(measured[0], measured[2]);
}

TEST(Handover, LeavesTheReferenceAsItWas) {
  on_ranks(2, [](std::size_t rank, auto transport) {
    for (const ReuseMode mode : {ReuseMode::kExponentBlock, ReuseMode::kWordDelta}) {
      CompressedAllgather comm(transport, {.reuse = mode, .plain_below_bytes = 3000});
      for (std::size_t step = 0; step < 6; ++step) {
        // Alone the shard is below the limit, with the other one above.
        const bool alone = step % 2 == 1;
        const std::size_t total = alone ? 1000 : 2000;
        std::vector<Segment> segments{{"a", 1000}};
        if (!alone) {
          segments.push_back({"b", 1000});
        }
        const auto own = weights(rank, step, total);
        const auto call =
            comm.allgather({.segments = segments,
                            .src = bytes(own),
                            .versions = {segments.size(), Version(std::int64_t(step))}});
        ASSERT_EQ(words_of(call->outputs()[0]), expected({total, total}, step));
      }
      EXPECT_EQ(comm.stats("a").bare_segments, 3U);
      EXPECT_EQ(comm.stats("a").delta_frames, 2U);
      comm.close();
    }
  });
}

TEST(Deadline, NamesTheMissingRankAndPoisonsTheCommunicator) {
  const auto transports = make_loopback(WorldSize{2}, std::chrono::milliseconds(50));
  CompressedAllgather comm(transports[0], {});
  const auto own = weights(0, 0, 8);
  for (int attempt = 0; attempt < 2; ++attempt) {
    const auto error =
        error_of([&] { comm.allgather({.segments = {{"w", 8}}, .src = bytes(own)}); });
    ASSERT_TRUE(error);
    EXPECT_EQ(error->code(), attempt == 0 ? ErrorCode::kDeadline : ErrorCode::kTransport);
    EXPECT_NE(std::string(error->what()).find("rank(s) 1"), std::string::npos) << error->what();
  }
  comm.close();
  const auto closed =
      error_of([&] { comm.allgather({.segments = {{"w", 8}}, .src = bytes(own)}); });
  ASSERT_TRUE(closed);
  EXPECT_EQ(closed->code(), ErrorCode::kClosed);
}

struct Interrupted {};

// Lets the third question of a wait end it. As signals do, it comes to one thread.
class ThirdQuestion final : public Interrupt {
 public:
  bool watches() const override { return std::this_thread::get_id() == thread; }
  void check() override {
    if (++questions == 3) {
      throw Interrupted{};
    }
  }
  const std::thread::id thread = std::this_thread::get_id();
  int questions = 0;
};

TEST(Interrupts, EndAWaitAndTellThePeers) {
  for (const bool async : {false, true}) {
    for (const bool asks : {false, true}) {
      auto transports = make_loopback(WorldSize{2}, testing::kDeadline);
      std::shared_ptr<Transport> first = transports[0];
      if (!asks) {
        struct Deaf final : WrappingTransport {
          using WrappingTransport::WrappingTransport;
          bool ask_while_waiting(std::function<void()>) override { return false; }
        };
        first = std::make_shared<Deaf>(first);
      }
      const auto own = weights(0, 0, 8);
      const GatherRequest request{.segments = {{"w", 8}}, .src = bytes(own)};
      {
        CompressedAllgather comm(first, {}, std::make_shared<ThirdQuestion>());
        if (async) {
          const auto call = comm.allgather_async(request);
          EXPECT_THROW(call->wait({}), Interrupted);
        } else {
          EXPECT_THROW(comm.allgather(request), Interrupted);
        }
        const auto later = error_of([&] { comm.allgather(request); });
        ASSERT_TRUE(later);
        EXPECT_EQ(later->code(), ErrorCode::kTransport);
        EXPECT_NE(std::string(later->what()).find("interrupted"), std::string::npos);
        comm.close();
      }
      CompressedAllgather peer(transports[1], {});
      const auto told = error_of([&] { peer.allgather(request); });
      ASSERT_TRUE(told);
      EXPECT_EQ(told->code(), ErrorCode::kTransport);
    }
  }
}

// Blocks in an exchange until told, whatever is aborted.
class StuckTransport final : public WrappingTransport {
 public:
  using WrappingTransport::WrappingTransport;
  void allgather(std::span<const std::byte>, std::span<std::byte>) override {
    entered = true;
    entered.notify_all();
    gone.wait(false);
    throw Error(ErrorCode::kTransport, "stuck until now");
  }
  void abort(std::string_view) override {}
  std::atomic<bool> entered = false;
  std::atomic<bool> gone = false;
};

TEST(Interrupts, ACallThatCannotBeBrokenOffOutlivesItsCommunicator) {
  auto stuck = std::make_shared<StuckTransport>(make_loopback(WorldSize{1}, testing::kDeadline)[0]);
  const auto own = weights(0, 0, 8);
  const auto owner = std::make_shared<int>();
  std::shared_ptr<Call> call;
  {
    CompressedAllgather comm(stuck, {});
    call = comm.allgather_async({.segments = {{"w", 8}}, .src = bytes(own), .owner = owner});
    stuck->entered.wait(false);
    comm.close(std::chrono::milliseconds(1));
    const auto error = error_of([&] { call->wait({}); });
    ASSERT_TRUE(error);
    EXPECT_EQ(error->code(), ErrorCode::kTransport);
  }
  EXPECT_FALSE(call->done());
  EXPECT_EQ(owner.use_count(), 2);
  EXPECT_FALSE(stuck->take());  // still in use
  stuck->gone = true;
  stuck->gone.notify_all();
  while (!call->done() || !stuck->take()) {
    std::this_thread::yield();
  }
  EXPECT_EQ(owner.use_count(), 1);
}

TEST(Transports, ServeOneCommunicatorAtATime) {
  const auto transports = make_loopback(WorldSize{1}, testing::kDeadline);
  CompressedAllgather first(transports[0], {});
  const auto error = error_of([&] { CompressedAllgather second(transports[0], {}); });
  ASSERT_TRUE(error);
  EXPECT_EQ(error->code(), ErrorCode::kArgument);
  first.close();
  CompressedAllgather second(transports[0], {});
}

TEST(ElementTypes, OfOneWidthMustAgree) {
  on_ranks(2, [](std::size_t rank, auto transport) {
    CompressedAllgather comm(transport, {});
    const std::vector<std::uint64_t> own(4);
    GatherRequest request{.segments = {{"w", 4}},
                          .dtype = DType::kOpaque64,
                          .src = std::as_bytes(std::span(own)),
                          .element_type = rank == 0 ? "int64" : "float64"};
    const auto error = error_of([&] { comm.allgather(request); });
    ASSERT_TRUE(error);
    EXPECT_EQ(error->code(), ErrorCode::kRankMismatch);
    for (const char* name : {"int64", "float64"}) {
      EXPECT_NE(std::string(error->what()).find(name), std::string::npos) << error->what();
    }
    request.element_type.clear();
    comm.allgather(request);
  });
}

TEST(RandomLegalCalls, MatchAModelOfAPlainAllgather) {
  const unsigned seed = 20260;
  SCOPED_TRACE("seed " + std::to_string(seed));
  on_ranks(3, [&](std::size_t rank, auto transport) {
    CompressedAllgather comm(transport, {.block_size = 32, .cache_budget_bytes = 9000});
    std::mt19937 random(seed);  // the same sequence on every rank
    std::map<int, std::size_t> lengths;
    for (int i = 0; i < 150; ++i) {
      const int id = static_cast<int>(random() % 6);
      const auto step = static_cast<std::size_t>(random() % 5);
      if (random() % 20 == 0) {
        comm.reset(ShardId(std::int64_t{id}));
        lengths.erase(id);
      }
      const std::size_t drawn = random() % 900;
      const std::size_t base = lengths.try_emplace(id, drawn).first->second;
      const std::vector<std::size_t> numels{base, base / 2, base + 5};
      const auto own = weights(rank, step, numels[rank]);
      const auto call =
          comm.allgather({.segments = {{std::int64_t{id}, own.size()}}, .src = bytes(own)});
      ASSERT_EQ(words_of(call->outputs()[0]), expected(numels, step)) << "call " << i;
    }
  });
}

}  // namespace
}  // namespace ciera
