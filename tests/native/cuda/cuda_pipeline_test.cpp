// The state machine on a GPU's memory, ranks as threads on one GPU.
#include <cuda_runtime_api.h>

#include "codec/cuda/cuda_backend.hpp"
#include "exec/cuda_stream.hpp"
#include "pipeline/ranks.hpp"
#include "transport/wrapping.hpp"

namespace ciera {
namespace {

using testing::bytes;
using testing::error_of;
using testing::on_ranks;
using testing::weights;
using testing::words_of;

class OnGpu : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!codec::cuda::cuda_support().available) {
      GTEST_SKIP() << codec::cuda::cuda_support().detail;
    }
  }
};

class Array {
 public:
  explicit Array(std::size_t size) : buffer_(memory_, size) {}
  explicit Array(std::span<const std::byte> content) : Array(content.size()) {
    CIERA_CUDA_TRY(
        cudaMemcpy(buffer_.span().data(), content.data(), content.size(), cudaMemcpyDefault));
  }
  std::span<std::byte> span() const { return buffer_.span(); }

 private:
  exec::CudaMemory memory_{0};
  Buffer buffer_;
};

std::vector<std::uint16_t> read(std::span<const std::byte> gpu) {
  std::vector<std::byte> host(gpu.size());
  CIERA_CUDA_TRY(cudaMemcpy(host.data(), gpu.data(), gpu.size(), cudaMemcpyDefault));
  return words_of(host);
}

std::vector<std::uint16_t> expected(const std::vector<std::size_t>& numels, std::size_t step) {
  std::vector<std::uint16_t> all;
  for (std::size_t r = 0; r < numels.size(); ++r) {
    const auto own = weights(r, step, numels[r]);
    all.insert(all.end(), own.begin(), own.end());
  }
  return all;
}

constexpr Options kGpu{.backend = Backend::kCuda};

TEST_F(OnGpu, EveryModeGathersTheOriginalBits) {
  for (const std::uint32_t world : {1U, 2U, 4U, 8U}) {
    on_ranks(world, [world](std::size_t rank, auto transport) {
      for (const ReuseMode mode :
           {ReuseMode::kOff, ReuseMode::kExponentOnly, ReuseMode::kExponentBlock,
            ReuseMode::kExponentDelta, ReuseMode::kWordDelta}) {
        Options options = kGpu;
        options.reuse = mode;
        CompressedAllgather comm(transport, options);
        std::vector<std::size_t> numels;
        for (std::size_t r = 0; r < world; ++r) {
          numels.push_back(30001 + 77 * r);
        }
        for (std::size_t step = 0; step < 4; ++step) {
          const Array own(bytes(weights(rank, step, numels[rank])));
          const auto call = comm.allgather({.segments = {{"w", numels[rank]}}, .src = own.span()});
          ASSERT_EQ(read(call->outputs()[0]), expected(numels, step)) << name(mode) << step;
        }
        EXPECT_EQ(comm.stats().delta_frames, is_stateful(mode) ? 3U : 0U);
      }
    });
  }
}

TEST_F(OnGpu, GathersInPlaceAndOverTransportsWithoutCountsOrDeviceMemory) {
  const std::vector<std::size_t> numels{600, 512, 100};
  for (const bool staged : {false, true}) {
    on_ranks(3, [&](std::size_t rank, auto inner) {
      std::shared_ptr<Transport> transport =
          std::make_shared<RecordingTransport>(inner, CountSupport::kEqualOnly);
      if (staged) {
        transport = std::make_shared<FaultyTransport>(inner, [](std::span<std::byte>) {});
      }
      CompressedAllgather comm(transport, kGpu);
      const std::size_t start = rank == 0 ? 0 : (rank == 1 ? 600 : 1112);
      for (std::size_t step = 0; step < 3; ++step) {
        std::vector<std::uint16_t> content(1212);
        const auto own = weights(rank, step, numels[rank]);
        std::ranges::copy(own, content.begin() + static_cast<std::ptrdiff_t>(start));
        const Array out(bytes(content));
        comm.allgather({.segments = {{std::int64_t{7}, own.size()}},
                        .src = out.span().subspan(2 * start, 2 * own.size()),
                        .out = {out.span()}});
        EXPECT_EQ(read(out.span()), expected(numels, step));
      }
    });
  }
}

TEST_F(OnGpu, SegmentsKnownAndNewGoThroughOneCall) {
  on_ranks(2, [](std::size_t rank, auto transport) {
    CompressedAllgather comm(transport, kGpu);
    for (std::size_t step = 0; step < 3; ++step) {
      std::vector<Segment> segments{{"a", 701}, {"c", 0}};
      if (step > 0) {
        segments.push_back({"b", 5000});
      }
      const std::size_t total = step == 0 ? 701 : 5701;
      const Array own(bytes(weights(rank, step, total)));
      const auto call = comm.allgather({.segments = segments, .src = own.span()});
      EXPECT_EQ(read(call->outputs()[0]), expected({total, total}, step));
    }
    EXPECT_EQ(comm.stats("a").delta_frames, 2U);
  });
}

TEST_F(OnGpu, AsyncCallsStartAfterTheCallersStream) {
  on_ranks(2, [](std::size_t rank, auto transport) {
    CompressedAllgather comm(transport, kGpu);
    const exec::CudaStream stream;
    const std::size_t numel = 1 << 22;
    std::vector<std::unique_ptr<Array>> arrays;
    std::vector<std::shared_ptr<Call>> calls;
    std::vector<std::vector<std::uint16_t>> inputs;
    for (std::size_t step = 0; step < 3; ++step) {
      inputs.push_back(weights(rank, step, numel));
      arrays.push_back(std::make_unique<Array>(2 * numel));
      // The shard is written on the stream, after work that takes a while.
      for (int i = 0; i < 50; ++i) {
        CIERA_CUDA_TRY(cudaMemsetAsync(arrays.back()->span().data(), i, 2 * numel, stream.get()));
      }
      CIERA_CUDA_TRY(cudaMemcpyAsync(arrays.back()->span().data(), inputs.back().data(), 2 * numel,
                                     cudaMemcpyHostToDevice, stream.get()));
      calls.push_back(comm.allgather_async(
          {.segments = {{"w", numel}}, .src = arrays.back()->span(), .stream = {stream.get(), 0}}));
    }
    for (std::size_t step = 0; step < 3; ++step) {
      calls[step]->wait({});
      EXPECT_EQ(read(calls[step]->outputs()[0]), expected({numel, numel}, step));
    }
  });
}

TEST_F(OnGpu, ADamagedFrameRaisesEverywhereAndTheCallCanBeRepeated) {
  on_ranks(2, [](std::size_t rank, auto inner) {
    int exchange = 0;
    auto transport = std::make_shared<FaultyTransport>(inner, [&](std::span<std::byte> received) {
      // Rows are short; the third long one is the second delta frame.
      if (received.size() > 2000 && ++exchange == 3 && rank == 0) {
        received[received.size() - 100] ^= std::byte{1};
      }
    });
    CompressedAllgather comm(transport, kGpu);
    for (std::size_t step = 0; step < 4; ++step) {
      const Array own(bytes(weights(rank, step, 4000)));
      const auto gather = [&] {
        const auto call = comm.allgather({.segments = {{"w", 4000}}, .src = own.span()});
        EXPECT_EQ(read(call->outputs()[0]), expected({4000, 4000}, step));
      };
      if (step == 2) {
        const auto error = error_of(gather);
        ASSERT_TRUE(error);
        EXPECT_EQ(error->code(), ErrorCode::kFrame);
      }
      gather();
    }
    EXPECT_EQ(comm.stats("w").key_frames, 2U);
  });
}

TEST_F(OnGpu, SteadyCallsAllocateNothing) {
  on_ranks(2, [](std::size_t rank, auto transport) {
    CompressedAllgather comm(transport, kGpu);
    const Array own(bytes(weights(rank, 0, 100000)));
    const Array out(400000);
    const auto gather = [&] {
      comm.allgather({.segments = {{"w", 100000}}, .src = own.span(), .out = {out.span()}});
    };
    gather();
    gather();
    const Memory before = comm.memory();
    for (int i = 0; i < 20; ++i) {
      gather();
    }
    EXPECT_EQ(comm.memory().total(), before.total());
    EXPECT_EQ(before.exp_cache, 100000U);
  });
}

TEST_F(OnGpu, ABufferOfTheLibraryIsDecodedIntoInPlaceAndApart) {
  const std::vector<std::size_t> numels{3001, 0, 1000};
  for (const ReuseMode mode : {ReuseMode::kOff, ReuseMode::kExponentOnly, ReuseMode::kExponentBlock,
                               ReuseMode::kExponentDelta, ReuseMode::kWordDelta}) {
    on_ranks(3, [&, mode](std::size_t rank, auto transport) {
      CompressedAllgather comm(
          transport, {.reuse = mode, .buffers = BufferPolicy::kCheck, .backend = Backend::kCuda});
      const auto buffer = comm.buffer("w", DType::kBf16, {3001, 0, 1000});
      EXPECT_EQ(read(buffer->bytes()), std::vector<std::uint16_t>(4001));
      const Array other(8002);
      for (std::size_t call = 0; call < 12; ++call) {
        const std::size_t step = call / 2;  // also what did not change
        const bool in_place = call >= 6 && call % 3 == 0;
        const bool elsewhere = call % 4 == 3;
        const Array own(bytes(weights(rank, step, numels[rank])));
        std::span<const std::byte> src = own.span();
        if (in_place) {
          src = buffer->part(comm.rank());
          CIERA_CUDA_TRY(cudaMemcpy(buffer->part(comm.rank()).data(), own.span().data(), src.size(),
                                    cudaMemcpyDefault));
        }
        const auto out = elsewhere ? other.span() : buffer->bytes();
        comm.allgather({.segments = {{"w", numels[rank]}}, .src = src, .out = {out}});
        ASSERT_EQ(read(out), expected(numels, step)) << "mode " << name(mode) << " call " << call;
      }
      EXPECT_EQ(comm.memory().word_cache, 0U);
      EXPECT_EQ(comm.memory().buffers, 8002U);
    });
  }
}

TEST_F(OnGpu, AGpuThatDoesNotExistIsAnArgumentError) {
  const auto transports = make_loopback(WorldSize{1}, testing::kDeadline);
  Options options = kGpu;
  options.device = 4711;
  const auto error = error_of([&] { CompressedAllgather comm(transports[0], options); });
  ASSERT_TRUE(error);
  EXPECT_EQ(error->code(), ErrorCode::kArgument);
}

}  // namespace
}  // namespace ciera
