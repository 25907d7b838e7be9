// Gathered buffers that the library owns: decoding in place, what they hold, and same frames.
#include <atomic>

#include "ranks.hpp"
#include "transport/wrapping.hpp"

namespace ciera {
namespace {

using testing::bytes;
using testing::error_of;
using testing::on_ranks;
using testing::weights;
using testing::words_of;

using Numels = std::vector<std::uint64_t>;

std::vector<std::uint16_t> expected(const Numels& numels, std::size_t step) {
  std::vector<std::uint16_t> all;
  for (std::size_t r = 0; r < numels.size(); ++r) {
    const auto own = weights(r, step, numels[r]);
    all.insert(all.end(), own.begin(), own.end());
  }
  return all;
}

// How a call names source and result.
enum class Form { kApart, kInPlace, kElsewhere, kInPlaceElsewhere };

// One rank's end with a buffer of shard "w".
class Owner {
 public:
  Owner(std::shared_ptr<Transport> transport, std::size_t rank, Numels numels,
        const Options& options, bool with_buffer = true)
      : comm(std::move(transport), options), rank_(rank), numels_(std::move(numels)) {
    if (with_buffer) {
      buffer = comm.buffer("w", DType::kBf16, numels_);
    }
  }

  // The result of gathering what this rank has at `step`.
  std::vector<std::uint16_t> gather(std::size_t step, Form form = Form::kApart,
                                    std::optional<Version> version = {}) {
    const auto own = weights(rank_, step, numels_[rank_]);
    std::vector<std::uint16_t> other(expected(numels_, 0).size());
    GatherRequest request{.segments = {{"w", own.size()}}, .src = bytes(own)};
    request.out = {std::as_writable_bytes(std::span(other))};
    if (buffer != nullptr && (form == Form::kInPlace || form == Form::kInPlaceElsewhere)) {
      const auto part = buffer->part(Rank{static_cast<std::uint32_t>(rank_)});
      std::ranges::copy(bytes(own), part.begin());
      request.src = part;
    }
    if (buffer != nullptr && (form == Form::kApart || form == Form::kInPlace)) {
      request.out = {buffer->bytes()};
    }
    request.versions.resize(1);
    if (version) {
      request.versions[0].emplace(*version);
    }
    const auto call = comm.allgather(request);
    return words_of(call->outputs()[0]);
  }
  std::vector<std::uint16_t> held() const { return words_of(buffer->bytes()); }

  CompressedAllgather comm;
  std::shared_ptr<ShardBuffer> buffer;

 private:
  std::size_t rank_;
  Numels numels_;
};

constexpr ReuseMode kModes[] = {ReuseMode::kOff, ReuseMode::kExponentOnly,
                                ReuseMode::kExponentBlock, ReuseMode::kExponentDelta,
                                ReuseMode::kWordDelta};

class BufferInEveryMode : public ::testing::TestWithParam<std::tuple<ReuseMode, std::uint32_t>> {};

TEST_P(BufferInEveryMode, GathersBitForBitWhateverIsInPlaceAndWhoHasOne) {
  const auto [mode, world] = GetParam();
  Numels numels;
  for (std::uint32_t r = 0; r < world; ++r) {
    numels.push_back(r == 1 ? 0 : 1001 + 37 * r);
  }
  constexpr Form kForms[] = {Form::kApart,     Form::kApart,   Form::kInPlace,
                             Form::kElsewhere, Form::kApart,   Form::kInPlaceElsewhere,
                             Form::kApart,     Form::kInPlace, Form::kInPlace};
  for (const bool all_own_one : {true, false}) {
    on_ranks(world, [&, mode = mode](std::size_t rank, auto transport) {
      Owner owner(transport, rank, numels,
                  {.reuse = mode, .block_size = 64, .buffers = BufferPolicy::kCheck},
                  all_own_one || rank % 2 == 0);
      std::size_t step = 0;
      for (const Form form : kForms) {
        for (const std::size_t at : {step, step, step + 1}) {  // also what did not change
          ASSERT_EQ(owner.gather(at, form), expected(numels, at)) << "step " << at;
          if (owner.buffer != nullptr && (mode != ReuseMode::kOff || form != Form::kElsewhere)) {
            ASSERT_EQ(owner.held().size(), expected(numels, at).size());
          }
        }
        ++step;
      }
      if (is_stateful(mode) && numels[rank] > 0) {
        EXPECT_GE(owner.comm.stats().delta_frames, 8U);
        EXPECT_LE(owner.comm.stats().key_frames, 3U);
      }
    });
  }
}

INSTANTIATE_TEST_SUITE_P(Loopback, BufferInEveryMode,
                         ::testing::Combine(::testing::ValuesIn(kModes),
                                            ::testing::Values(1U, 2U, 3U)));

TEST(Buffer, IsTheWordCacheAndTheOwnReferenceSoTheShardIsInMemoryOnce) {
  const Numels numels{3000, 1000};
  on_ranks(2, [&](std::size_t rank, auto transport) {
    Owner owner(transport, rank, numels, {.reuse = ReuseMode::kWordDelta});
    EXPECT_EQ(owner.comm.memory().buffers, 8000U);
    for (std::size_t step = 0; step < 3; ++step) {
      EXPECT_EQ(owner.gather(step), expected(numels, step));
      const Memory memory = owner.comm.memory();
      EXPECT_EQ(memory.word_cache, 0U);
      EXPECT_EQ(memory.own_reference, 0U);
      EXPECT_EQ(memory.buffers, 8000U);
      EXPECT_EQ(memory.total(),
                8000 + memory.send_arena + memory.recv_arena + memory.scratch_arena);
    }
    EXPECT_EQ(owner.comm.stats().delta_frames, 2U);
    // In place the own reference is a copy; what was last sent was written over, once.
    for (std::size_t step = 3; step < 6; ++step) {
      EXPECT_EQ(owner.gather(step, Form::kInPlace), expected(numels, step));
      EXPECT_EQ(owner.comm.memory().own_reference, 2 * numels[rank]);
      EXPECT_EQ(owner.comm.memory().word_cache, 0U);
    }
    EXPECT_EQ(owner.comm.stats().key_frames, 2U);
    EXPECT_EQ(owner.comm.stats().delta_frames, 4U);
  });
}

TEST(Buffer, OfAShardThatHasStateTakesOverItsCaches) {
  const Numels numels{3000, 1000};
  on_ranks(2, [&](std::size_t rank, auto transport) {
    Owner owner(transport, rank, numels, {.reuse = ReuseMode::kWordDelta}, false);
    EXPECT_EQ(owner.gather(0), expected(numels, 0));
    EXPECT_EQ(owner.gather(1), expected(numels, 1));
    EXPECT_EQ(owner.comm.memory().word_cache, 2 * numels[1 - rank]);
    owner.buffer = owner.comm.buffer("w");
    EXPECT_EQ(owner.buffer->numels(), numels);
    EXPECT_EQ(owner.buffer->dtype(), DType::kBf16);
    EXPECT_EQ(owner.held(), expected(numels, 1));  // what was gathered last
    EXPECT_EQ(owner.comm.memory().word_cache, 0U);
    EXPECT_EQ(owner.comm.memory().own_reference, 2 * numels[rank]);  // until it is known who reads
    EXPECT_EQ(owner.gather(2, rank == 0 ? Form::kApart : Form::kInPlace), expected(numels, 2));
    EXPECT_EQ(owner.comm.memory().own_reference, rank == 0 ? 0 : 2 * numels[rank]);
    EXPECT_EQ(owner.gather(3), expected(numels, 3));
    EXPECT_EQ(owner.comm.stats().key_frames, 1U);
    EXPECT_EQ(owner.comm.stats().delta_frames, 3U);
  });
}

TEST(Buffer, IsDecodedIntoAlsoWhenTheCallHasAnotherOutput) {
  const Numels numels{500, 700};
  for (const ReuseMode mode : {ReuseMode::kExponentBlock, ReuseMode::kWordDelta}) {
    on_ranks(2, [&, mode](std::size_t rank, auto transport) {
      Owner owner(transport, rank, numels, {.reuse = mode});
      for (std::size_t step = 0; step < 3; ++step) {
        EXPECT_EQ(owner.gather(step, Form::kElsewhere), expected(numels, step));
        EXPECT_EQ(owner.held(), expected(numels, step));
      }
      const auto own = weights(rank, 3, numels[rank]);
      const auto call = owner.comm.allgather({.segments = {{"w", own.size()}}, .src = bytes(own)});
      EXPECT_NE(call->outputs()[0].data(), owner.buffer->bytes().data());
      EXPECT_EQ(words_of(call->outputs()[0]), expected(numels, 3));
      EXPECT_EQ(owner.comm.memory().word_cache, 0U);
    });
  }
}

TEST(Buffer, ServesSegmentsAloneOrTogether) {
  on_ranks(2, [](std::size_t rank, auto transport) {
    CompressedAllgather comm(transport, {.reuse = ReuseMode::kWordDelta});
    const auto first = comm.buffer("a", DType::kBf16, {300, 300});
    const auto second = comm.buffer(std::int64_t{2}, DType::kBf16, {500, 500});
    std::vector<std::byte> third(2 * 2 * 100);
    std::vector<std::byte> flat(2 * 2 * 900);
    for (std::size_t step = 0; step < 6; ++step) {
      const auto own = weights(rank, step, 900);
      const std::vector<Segment> segments{{"a", 300}, {"c", 100}, {std::int64_t{2}, 500}};
      const bool per_segment = step % 3 != 2;
      comm.allgather({.segments = segments,
                      .src = bytes(own),
                      .out = per_segment
                                 ? std::vector{first->bytes(), std::span(third), second->bytes()}
                                 : std::vector{std::span(flat)},
                      .layout = per_segment ? OutputLayout::kPerSegment : OutputLayout::kFlat});
      if (!per_segment) {
        EXPECT_EQ(words_of(flat), expected({900, 900}, step));
      }
      for (std::size_t r = 0; r < 2; ++r) {
        const auto all = weights(r, step, 900);
        const Rank of{static_cast<std::uint32_t>(r)};
        EXPECT_EQ(words_of(first->part(of)), std::vector(all.begin(), all.begin() + 300));
        EXPECT_EQ(words_of(second->part(of)), std::vector(all.begin() + 400, all.end()));
      }
    }
    EXPECT_EQ(comm.stats("a").delta_frames, 5U);
    EXPECT_EQ(comm.memory().word_cache, 200U);  // of "c"
  });
}

TEST(Buffer, TakesAsyncCallsInOrder) {
  on_ranks(2, [](std::size_t rank, auto transport) {
    Owner owner(transport, rank, {3000, 3000}, {.reuse = ReuseMode::kWordDelta});
    std::vector<std::vector<std::uint16_t>> inputs;
    std::vector<std::shared_ptr<Call>> calls;
    for (std::size_t step = 0; step < 6; ++step) {
      inputs.push_back(weights(rank, step, 3000));
      calls.push_back(owner.comm.allgather_async({.segments = {{"w", 3000}},
                                                  .src = bytes(inputs.back()),
                                                  .out = {owner.buffer->bytes()}}));
    }
    for (const auto& call : calls) {
      call->wait({});
    }
    EXPECT_EQ(owner.held(), expected({3000, 3000}, 5));
    EXPECT_EQ(owner.comm.stats().delta_frames, 5U);
  });
}

TEST(Buffer, BelongsToTheCallerAfterResetAndClose) {
  const Numels numels{400, 400};
  std::shared_ptr<ShardBuffer> outliving[2];
  on_ranks(2, [&](std::size_t rank, auto transport) {
    Owner owner(transport, rank, numels, {.reuse = ReuseMode::kWordDelta});
    owner.gather(1);
    const auto old = owner.buffer;
    owner.comm.reset(ShardId("w"));
    EXPECT_FALSE(old->attached());
    EXPECT_EQ(owner.comm.memory().buffers, 0U);
    EXPECT_EQ(owner.gather(2), expected(numels, 2));  // as into any memory
    EXPECT_EQ(owner.comm.memory().word_cache, 800U);
    owner.buffer = owner.comm.buffer("w", DType::kBf16, numels);
    EXPECT_NE(owner.buffer, old);
    EXPECT_EQ(owner.buffer, owner.comm.buffer("w"));
    EXPECT_EQ(owner.gather(3), expected(numels, 3));
    EXPECT_EQ(owner.comm.stats("w").delta_frames, 1U);
    owner.comm.close();
    EXPECT_FALSE(owner.buffer->attached());
    outliving[rank] = owner.buffer;
  });
  EXPECT_EQ(words_of(outliving[0]->bytes()), expected(numels, 3));
  EXPECT_EQ(words_of(outliving[1]->bytes()), expected(numels, 3));
}

TEST(Buffer, OfOtherLengthsIsRefusedWithTheShardAndTheRank) {
  on_ranks(2, [](std::size_t rank, auto transport) {
    CompressedAllgather comm(transport, {.reuse = ReuseMode::kWordDelta});
    const auto refused = [&](const char* text, const std::function<void()>& body) {
      const auto error = error_of(body);
      ASSERT_TRUE(error) << text;
      EXPECT_EQ(error->code(), ErrorCode::kArgument) << error->what();
      EXPECT_NE(std::string(error->what()).find(text), std::string::npos) << error->what();
      EXPECT_NE(std::string(error->what()).find("shard 'w', rank " + std::to_string(rank)),
                std::string::npos)
          << error->what();
    };
    const auto ask = [&](DType dtype, const Numels& numels) {
      return [&comm, dtype, numels] { comm.buffer("w", dtype, numels); };
    };
    refused("not known yet", [&] { comm.buffer("w"); });
    refused("give 2, not 3", ask(DType::kBf16, {1, 2, 3}));
    refused("overflows", ask(DType::kFp32, {~std::uint64_t{0} / 2, 8}));
    refused("overflows", ask(DType::kBf16, {~std::uint64_t{0}, 8}));
    comm.buffer("w", DType::kBf16, {8, 8});
    refused("its buffer has bf16 values of 8, 8", ask(DType::kBf16, {8, 9}));
    refused("its buffer has bf16", ask(DType::kFp16, {8, 8}));
    comm.reset();

    // Found out only when the ranks say what they gather; nothing has changed then.
    const auto own = weights(rank, 0, 8);
    if (rank == 0) {
      comm.buffer("w", DType::kBf16, {8, 9});
    }
    const auto gather = [&] { comm.allgather({.segments = {{"w", 8}}, .src = bytes(own)}); };
    const auto error = error_of(gather);
    ASSERT_TRUE(error);
    EXPECT_EQ(error->code(), rank == 0 ? ErrorCode::kArgument : ErrorCode::kPeerFailed);
    EXPECT_NE(std::string(error->what()).find("rank 1 8 values (buffer: 9)"), std::string::npos)
        << error->what();
    comm.reset();
    gather();
    refused("the shard has bf16 values of 8, 8", ask(DType::kBf16, {9, 8}));
  });
}

TEST(Buffer, MemoryIsWrittenByTheCallsOfItsShardAlone) {
  on_ranks(2, [](std::size_t rank, auto transport) {
    CompressedAllgather comm(transport, {.reuse = ReuseMode::kWordDelta});
    const auto buffer = comm.buffer("w", DType::kBf16, {400, 400});
    const auto own = weights(rank, 0, 400);
    const auto all = buffer->bytes();
    std::vector<std::byte> other(1600);
    const GatherRequest good{.segments = {{"w", 400}}, .src = bytes(own), .out = {buffer->bytes()}};
    comm.allgather(good);
    const Rank peer{static_cast<std::uint32_t>(1 - rank)};
    const std::vector<GatherRequest> bad{
        {.segments = {{"x", 200}}, .src = bytes(own).first(400), .out = {all.first(800)}},
        {.segments = {{"w", 200}, {"x", 200}}, .src = bytes(own), .out = {all}},
        {.segments = {{"x", 400}}, .src = bytes(own), .out = {all}},
        {.segments = {{"w", 400}}, .src = buffer->part(peer), .out = {other}},
        {.segments = {{"w", 400}}, .src = all.subspan(6, 800), .out = {other}},
    };
    for (std::size_t i = 0; i < bad.size(); ++i) {
      const auto error = error_of([&] { comm.allgather(bad[i]); });
      ASSERT_TRUE(error) << i;
      EXPECT_TRUE(error->code() == ErrorCode::kArgument ||
                  error->code() == ErrorCode::kShardChanged)
          << error->what();
    }
    // Reading it in a call of another shard is nobody's harm.
    comm.allgather({.segments = {{"y", 400}}, .src = buffer->part(peer), .out = {other}});
    EXPECT_EQ(words_of(std::span(other).first(800)), weights(1, 0, 400));
    // The last of them may have been written before it was passed: a key frame is due.
    comm.allgather(good);
    comm.allgather(good);
    EXPECT_EQ(comm.stats("w").key_frames, 2U);
    EXPECT_EQ(comm.stats("w").same_frames, 1U);
    EXPECT_EQ(words_of(all), expected({400, 400}, 0));
  });
}

TEST(Buffer, SurvivesAGivenUpCallAlsoWhenTheOwnPartWasWrittenTo) {
  const Numels numels{4000, 4000};
  on_ranks(2, [&](std::size_t rank, auto transport) {
    Owner owner(transport, rank, numels, {.reuse = ReuseMode::kWordDelta});
    owner.gather(0);
    const auto error = error_of([&] {
      rank == 0 ? static_cast<void>(owner.gather(1, Form::kInPlace))
                : static_cast<void>(owner.comm.allgather({.segments = {{"w", 4000}}, .src = {}}));
    });
    ASSERT_TRUE(error);
    // The own part is no longer what rank 0 sent last: it must not be compared with.
    EXPECT_EQ(owner.gather(2), expected(numels, 2));
    EXPECT_EQ(owner.comm.stats("w").key_frames, rank == 0 ? 2U : 1U);
    EXPECT_EQ(owner.gather(3), expected(numels, 3));
    EXPECT_EQ(owner.comm.stats("w").delta_frames, rank == 0 ? 1U : 2U);
  });
}

TEST(Buffer, OfADamagedFrameIsWrittenAnewByKeyFrames) {
  for (const ReuseMode mode :
       {ReuseMode::kExponentBlock, ReuseMode::kExponentDelta, ReuseMode::kWordDelta}) {
    on_ranks(2, [mode](std::size_t rank, auto inner) {
      std::atomic<bool> damage = false;
      auto faulty = std::make_shared<FaultyTransport>(inner, [&](std::span<std::byte> received) {
        if (damage && received.size() > 512 && rank == 1) {
          received[received.size() / 4] ^= std::byte{1};
        }
      });
      Owner owner(faulty, rank, {4000, 4000}, {.reuse = mode, .buffers = BufferPolicy::kCheck});
      owner.gather(0);
      damage = true;
      const auto error = error_of([&] { owner.gather(1); });
      ASSERT_TRUE(error);
      EXPECT_EQ(error->code(), ErrorCode::kFrame);
      if (rank == 1) {
        EXPECT_EQ(owner.held(), expected({4000, 4000}, 0));  // refused before it was touched
      }
      damage = false;
      EXPECT_EQ(owner.gather(1, Form::kApart), expected({4000, 4000}, 1));
      EXPECT_EQ(owner.comm.stats("w").key_frames, 2U);
      EXPECT_EQ(owner.gather(2, Form::kApart), expected({4000, 4000}, 2));
      EXPECT_EQ(owner.comm.stats("w").delta_frames, 1U);
    });
  }
}

TEST(Buffer, IsTheReferenceAgainAfterACallThatWasHandedOver) {
  for (const ReuseMode mode :
       {ReuseMode::kExponentBlock, ReuseMode::kExponentDelta, ReuseMode::kWordDelta}) {
    for (const bool in_place : {false, true}) {
      on_ranks(2, [&, mode](std::size_t rank, auto transport) {
        CompressedAllgather comm(
            transport, {.reuse = mode, .plain_below_bytes = 3000, .buffers = BufferPolicy::kCheck});
        const auto buffer = comm.buffer("a", DType::kBf16, {1000, 1000});
        std::vector<std::byte> other(4000);
        for (std::size_t step = 0; step < 8; ++step) {
          // Alone the shard is below the limit, with the other one above.
          const bool alone = step % 4 == 1 || step % 4 == 2;
          auto own = weights(rank, step, alone ? 1000 : 2000);
          GatherRequest request{.segments = {{"a", 1000}},
                                .src = bytes(own),
                                .out = {buffer->bytes()},
                                .layout = OutputLayout::kPerSegment};
          if (!alone) {
            request.segments.push_back({"b", 1000});
            request.out.emplace_back(other);
          } else if (in_place) {
            const auto part = buffer->part(comm.rank());
            std::ranges::copy(bytes(own), part.begin());
            request.src = part;
          }
          comm.allgather(request);
          for (std::size_t r = 0; r < 2; ++r) {
            const auto want = weights(r, step, alone ? 1000 : 2000);
            ASSERT_EQ(words_of(buffer->part(Rank{static_cast<std::uint32_t>(r)})),
                      std::vector(want.begin(), want.begin() + 1000))
                << step;
          }
          const bool apart = alone && mode == ReuseMode::kWordDelta;
          const std::uint64_t cache_of_b = mode == ReuseMode::kWordDelta ? 2000 : 0;
          EXPECT_EQ(comm.memory().word_cache, cache_of_b + (apart ? 2000 : 0)) << step;
        }
        EXPECT_EQ(comm.stats("a").bare_segments, 4U);
        // In place what was last sent is written over: another key frame.
        const bool lost = in_place && mode == ReuseMode::kWordDelta;
        EXPECT_EQ(comm.stats("a").delta_frames, lost ? 1U : 3U);
      });
    }
  }
}

TEST(SameFrames, CostAHeaderInEveryStatefulModeWhenEveryRankHasABuffer) {
  const Numels numels{4000, 2000, 3000};
  for (const ReuseMode mode :
       {ReuseMode::kExponentBlock, ReuseMode::kExponentDelta, ReuseMode::kWordDelta}) {
    on_ranks(3, [&, mode](std::size_t rank, auto transport) {
      Owner owner(transport, rank, numels, {.reuse = mode, .buffers = BufferPolicy::kCheck});
      owner.gather(0);
      const std::uint64_t before = owner.comm.stats("w").wire_bytes;
      EXPECT_EQ(owner.gather(0), expected(numels, 0));
      EXPECT_EQ(owner.comm.stats("w").wire_bytes - before, 64U + 24 + 8);
      EXPECT_EQ(owner.gather(0, Form::kElsewhere), expected(numels, 0));
      EXPECT_EQ(owner.comm.stats("w").same_frames, 2U);
      // One rank's own affair; the state behind same frames is whole.
      for (const std::size_t step : {1U, 2U, 2U, 3U}) {
        const std::vector<std::uint16_t> got = owner.gather(rank == 1 ? 0 : step);
        auto want = expected(numels, step);
        std::ranges::copy(weights(1, 0, 2000), want.begin() + 4000);
        EXPECT_EQ(got, want);
      }
      EXPECT_EQ(owner.comm.stats("w").same_frames, rank == 1 ? 6U : 3U);
      EXPECT_EQ(owner.comm.stats("w").changed_blocks > 0, true);
    });
  }
}

TEST(SameFrames, OfExponentModesNeedABufferOnEveryRank) {
  const Numels numels{4000, 4000};
  for (const ReuseMode mode : {ReuseMode::kExponentBlock, ReuseMode::kExponentDelta}) {
    on_ranks(2, [&, mode](std::size_t rank, auto transport) {
      Owner owner(transport, rank, numels, {.reuse = mode}, rank == 0);
      for (int i = 0; i < 3; ++i) {
        EXPECT_EQ(owner.gather(0, Form::kApart, Version(std::int64_t{1})), expected(numels, 0));
      }
      EXPECT_EQ(owner.comm.stats("w").same_frames, 0U);
      if (rank == 1) {
        owner.buffer = owner.comm.buffer("w");
      }
      EXPECT_EQ(owner.gather(0), expected(numels, 0));  // fills it, and tells
      EXPECT_EQ(owner.comm.stats("w").same_frames, 0U);
      EXPECT_EQ(owner.gather(0), expected(numels, 0));
      EXPECT_EQ(owner.comm.stats("w").same_frames, 1U);
    });
  }
}

TEST(SameFrames, OfExponentModesInPlaceTakeTheCallersWord) {
  const Numels numels{4000, 4000};
  for (const VersionPolicy policy : {VersionPolicy::kTrust, VersionPolicy::kCheck}) {
    for (const ReuseMode mode : {ReuseMode::kExponentBlock, ReuseMode::kExponentDelta}) {
      on_ranks(2, [&, mode](std::size_t rank, auto transport) {
        Owner owner(transport, rank, numels, {.reuse = mode, .versions = policy});
        for (const std::int64_t step : {0, 0, 1, 1, 1}) {
          const auto at = static_cast<std::size_t>(step);
          EXPECT_EQ(owner.gather(at, Form::kInPlace, Version(step)), expected(numels, at));
        }
        // Without own words there is nothing to check a version by.
        EXPECT_EQ(owner.comm.stats("w").same_frames, policy == VersionPolicy::kTrust ? 3U : 0U);
        EXPECT_EQ(owner.gather(2), expected(numels, 2));
      });
    }
  }
}

TEST(SameFrames, OnAWrongClaimLeaveTheReferenceWhatPeersHold) {
  const Numels numels{4000, 4000};
  for (const ReuseMode mode :
       {ReuseMode::kExponentBlock, ReuseMode::kExponentDelta, ReuseMode::kWordDelta}) {
    on_ranks(2, [&, mode](std::size_t rank, auto transport) {
      Owner owner(transport, rank, numels, {.reuse = mode});
      owner.gather(0, Form::kApart, Version("v"));
      EXPECT_EQ(owner.gather(1, Form::kApart, Version("v")), expected(numels, 0));
      EXPECT_EQ(owner.gather(1), expected(numels, 1));
    });
  }
}

TEST(CheckedBuffers, FindWhoeverWroteToThem) {
  const Numels numels{4000, 4000};
  for (const ReuseMode mode :
       {ReuseMode::kExponentBlock, ReuseMode::kExponentDelta, ReuseMode::kWordDelta}) {
    for (const std::uint32_t written : {0U, 1U}) {  // rank 0's own part, its peer's
      on_ranks(2, [&, mode](std::size_t rank, auto transport) {
        Owner owner(transport, rank, numels, {.reuse = mode, .buffers = BufferPolicy::kCheck});
        owner.gather(0);
        for (int attempt = 0; attempt < 2; ++attempt) {
          if (rank == 0 && attempt == 0) {
            owner.buffer->part(Rank{written})[7999] ^= std::byte{1};
          }
          const auto error = error_of([&] { owner.gather(1); });
          ASSERT_TRUE(error);
          EXPECT_EQ(error->code(), rank == 0 ? ErrorCode::kArgument : ErrorCode::kPeerFailed);
          const std::string text = "shard 'w', rank 0: the part of rank " + std::to_string(written);
          EXPECT_NE(std::string(error->what()).find(text), std::string::npos) << error->what();
        }
        owner.comm.reset();
        owner.buffer = owner.comm.buffer("w", DType::kBf16, numels);
        EXPECT_EQ(owner.gather(1), expected(numels, 1));
      });
    }
  }
}

TEST(RandomLegalCalls, WithBuffersMatchAModelOfAPlainAllgather) {
  const unsigned seed = 20261;
  SCOPED_TRACE("seed " + std::to_string(seed));
  for (const ReuseMode mode :
       {ReuseMode::kExponentBlock, ReuseMode::kExponentDelta, ReuseMode::kWordDelta}) {
    on_ranks(3, [&, mode](std::size_t rank, auto transport) {
      CompressedAllgather comm(transport, {.reuse = mode,
                                           .block_size = 32,
                                           .plain_below_bytes = 400,
                                           .buffers = BufferPolicy::kCheck});
      std::mt19937 random(seed);             // the same sequence on every rank
      std::mt19937 own_random(seed + rank);  // what is each rank's own affair
      std::map<int, std::pair<std::size_t, std::shared_ptr<ShardBuffer>>> shards;
      for (int i = 0; i < 300; ++i) {
        const int number = static_cast<int>(random() % 4);
        const ShardId id(std::int64_t{number});
        const auto step = static_cast<std::size_t>(random() % 3);
        if (random() % 25 == 0) {
          comm.reset(id);
          shards.erase(number);
        }
        const std::size_t drawn = random() % 900;
        auto& [base, buffer] = shards.try_emplace(number, drawn, nullptr).first->second;
        const Numels numels{base, base / 2, base + 5};
        if (buffer == nullptr && own_random() % 2 == 0) {
          buffer = comm.buffer(id, DType::kBf16, numels);
        }
        const auto own = weights(rank, step, numels[rank]);
        GatherRequest request{.segments = {{id, own.size()}}, .src = bytes(own)};
        if (buffer != nullptr && own_random() % 3 != 0) {
          request.out = {buffer->bytes()};
        }
        if (buffer != nullptr && own_random() % 3 == 0) {
          const auto part = buffer->part(comm.rank());
          std::ranges::copy(bytes(own), part.begin());
          request.src = part;
        }
        if (own_random() % 2 == 0) {
          request.versions.resize(1);
          request.versions[0].emplace(static_cast<std::int64_t>(step));
        }
        const auto call = comm.allgather(request);
        ASSERT_EQ(words_of(call->outputs()[0]), expected(numels, step)) << "call " << i;
      }
      EXPECT_GT(comm.stats().same_frames, 0U);
      EXPECT_GT(comm.stats().delta_frames, 0U);
    });
  }
}

}  // namespace
}  // namespace ciera
