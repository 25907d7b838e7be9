#include "pipeline/handover.hpp"

#include <algorithm>
#include <bit>
#include <functional>
#include <random>

#include "pipeline/stopwatch.hpp"

namespace ciera::pipeline {
namespace {

constexpr std::uint64_t kSizes[] = {64 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20};
constexpr std::uint64_t kMostReceived = 256 << 20;  // all ranks' shards together
constexpr int kRepeats = 5;                         // the first one warms up

// BF16 words with the exponents of weights, the same on every rank, so that frames are equally
// long.
std::vector<std::byte> make_weights(std::uint64_t bytes) {
  std::mt19937 random(1);
  std::vector<std::byte> words(bytes);
  for (std::uint64_t i = 0; i + 1 < bytes; i += 2) {
    const auto bits = static_cast<std::uint32_t>(random());
    const auto exponent = 120U - static_cast<std::uint32_t>(std::countr_zero(bits | 1U << 20));
    const std::uint32_t word = (bits >> 31) << 15 | exponent << 7 | (bits >> 21 & 0x7F);
    words[i] = static_cast<std::byte>(word);
    words[i + 1] = static_cast<std::byte>(word >> 8);
  }
  return words;
}

std::uint64_t median_ns(const std::function<void()>& body) {
  std::vector<std::uint64_t> times;
  for (int i = 0; i < kRepeats; ++i) {
    std::uint64_t ns = 0;
    {
      const Stopwatch watch(ns);
      body();
    }
    if (i > 0) {
      times.push_back(ns);
    }
  }
  std::ranges::sort(times);
  return times[times.size() / 2];
}

class Measurement {
 public:
  Measurement(Engine& engine, ControlPlane& control, std::uint64_t largest)
      : engine_(engine),
        control_(control),
        src_(engine.backend->memory(), largest),
        dst_(engine.backend->memory(), largest),
        recv_(engine.backend->memory(), largest * engine.world),
        frame_(engine.backend->memory(), codec::max_frame_bytes(params(largest))) {
    const std::vector<std::byte> weights = make_weights(largest);
    engine.backend->upload(src_.span(), weights);
    engine.backend->wait();
  }

  policy::HandoverSample run(std::uint64_t bytes) {
    const std::uint64_t row_ns = median_ns([&] { control_.exchange_words({0, 0, 0}); });
    codec::EncodeJob encode{.params = params(bytes), .src = src_.span().first(bytes)};
    encode.frame = frame_.span();
    const std::uint64_t encode_ns = median_ns([&] { engine_.backend->encode({&encode, 1}); });
    const std::uint64_t frame_bytes = encode.result.frame_bytes;
    codec::DecodeJob decode{.expected = params(bytes), .frame = frame_.span().first(frame_bytes)};
    decode.dst = dst_.span().first(bytes);
    const std::uint64_t decode_ns = median_ns([&] {
      engine_.backend->start_decode({&decode, 1});
      engine_.backend->finish_decode({&decode, 1});
    });
    const std::uint64_t wire_bytes = (frame_bytes + 15) / 16 * 16;
    // A call that is handed over still has its first row.
    return {bytes, row_ns + plain_ns(bytes),
            2 * row_ns + encode_ns + plain_ns(wire_bytes) + (engine_.world - 1) * decode_ns};
  }

 private:
  codec::FrameParams params(std::uint64_t bytes) const {
    return {.mode = ReuseMode::kExponentOnly,
            .coder = engine_.options.coder,
            .dtype = DType::kBf16,
            .block_size = engine_.options.block_size,
            .numel = bytes / 2,
            .shard_key = 1,
            .segment_log2 = engine_.backend->segment_log2(ReuseMode::kExponentOnly,
                                                          engine_.options.effort, bytes / 2)};
  }

  std::uint64_t plain_ns(std::uint64_t bytes) {
    const auto send = src_.span().first(bytes);
    const auto recv = recv_.span().first(bytes * engine_.world);
    return median_ns([&] {
      if (engine_.backend->kind() == Backend::kHost) {
        engine_.transport->allgather(send, recv);
        return;
      }
      engine_.transport->allgather_on(engine_.backend->comm_stream(), send, recv);
      engine_.transport->wait_stream(engine_.backend->comm_stream());
    });
  }

  Engine& engine_;
  ControlPlane& control_;
  Buffer src_;
  Buffer dst_;
  Buffer recv_;
  Buffer frame_;
};

// The largest of kSizes that fits on every rank; 0 when none does.
std::uint64_t agree_on_largest(Engine& engine, ControlPlane& control,
                               std::optional<Measurement>& measurement) {
  for (auto size = std::rbegin(kSizes); size != std::rend(kSizes); ++size) {
    if (*size * engine.world > kMostReceived && size + 1 != std::rend(kSizes)) {
      continue;
    }
    std::uint64_t lacking = 0;
    try {
      measurement.emplace(engine, control, *size);
    } catch (const Error& error) {
      if (error.code() != ErrorCode::kOutOfMemory) {
        throw;
      }
      lacking = 1;
    }
    const auto all = control.exchange_words({lacking});
    if (std::ranges::all_of(all, [](std::uint64_t one) { return one == 0; })) {
      return *size;
    }
    measurement.reset();
  }
  return 0;
}

}  // namespace

std::vector<policy::HandoverSample> measure_handover(Engine& engine, ControlPlane& control) {
  std::optional<Measurement> measurement;
  const std::uint64_t largest = agree_on_largest(engine, control, measurement);
  std::vector<policy::HandoverSample> samples;
  std::vector<std::uint64_t> own;
  for (const std::uint64_t bytes : kSizes) {
    if (bytes <= largest) {
      samples.push_back(measurement->run(bytes));
      own.push_back(samples.back().plain_ns);
      own.push_back(samples.back().coded_ns);
    }
  }
  const auto all = control.exchange_words(own);
  for (std::size_t i = 0; i < samples.size(); ++i) {
    for (std::size_t r = 0; r < engine.world; ++r) {
      const std::uint64_t* of_rank = all.data() + r * own.size() + 2 * i;
      samples[i].plain_ns = std::max(samples[i].plain_ns, of_rank[0]);
      samples[i].coded_ns = std::max(samples[i].coded_ns, of_rank[1]);
    }
  }
  return samples;
}

}  // namespace ciera::pipeline
