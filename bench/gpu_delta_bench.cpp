// The delta modes of the CUDA codec: time on the GPU of encode and decode, and of the pass over the
// shard alone, beside a device copy of the same run. Prints a table and writes JSON lines.
//
//   gpu_delta_bench STEPS.bin LABEL OUT.jsonl [max_bytes [min_bytes [mode [effort
//                   [segment_log2]]]]]
//
// STEPS.bin as for gpu_codec_bench. A decode changes its cache, so that caches are made anew,
// untimed, whenever all of them have been used once.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <string>

#include "codec/backend.hpp"
#include "codec/cuda/cuda_backend.hpp"
#include "codec/cuda/delta_encode_state.hpp"
#include "exec/cuda_stream.hpp"
#include "gpu_bench_tools.hpp"

namespace {

using namespace ciera;
using namespace ciera::bench;
using codec::FrameParams;
using codec::cuda::DeltaEncodeCall;

// Where decoded words go: apart from the cache, or into it.
enum class Target { kApart, kInPlace };

class Case {
 public:
  // segment_log2 0: what the backend takes.
  Case(codec::CodecBackend& backend, const Trace& trace, ReuseMode mode, Effort effort,
       std::uint64_t numel, std::uint32_t segment_log2)
      : backend_(backend), numel_(numel) {
    params_ = {.mode = mode,
               .numel = numel,
               .segment_log2 =
                   segment_log2 != 0 ? segment_log2 : backend.segment_log2(mode, effort, numel),
               .effort = effort};
    const auto copies = std::clamp<std::uint64_t>(kRotatedBytes / (2 * numel), 1, 64);
    copies_ = static_cast<int>(copies);
    const std::uint64_t width = codec::reference_bytes(mode, params_.dtype);
    src_ = Buffer(memory_, 2 * numel * copies);
    dst_ = Buffer(memory_, 2 * numel * copies);
    base_ = Buffer(memory_, width * numel);
    caches_ = Buffer(memory_, width * numel * copies);
    frame_ = Buffer(memory_, codec::max_frame_bytes(params_));
    scratch_ = Buffer(memory_, codec::cuda::delta_encode_scratch_bytes(params_, kRoom));
    state_ = Buffer(memory_, sizeof(codec::cuda::DeltaEncodeState));
    pinned_results_ = Buffer(pinned_, 1024);
    CIERA_CUDA_TRY(cudaMemset(state_.span().data(), 0, state_.size()));
    int device = 0;
    CIERA_CUDA_TRY(cudaGetDevice(&device));
    CIERA_CUDA_TRY(
        cudaDeviceGetAttribute(&multiprocessors_, cudaDevAttrMultiProcessorCount, device));
    tile(trace.steps[0], numel_, src(0));
    backend_.store_reference(params_, {src(0), 2 * numel}, base_.span());
    backend_.wait();
    tile(trace.steps[1], numel_, src(0));
    for (int i = 1; i < copies_; ++i) {
      CIERA_CUDA_TRY(cudaMemcpy(src(i), src(0), 2 * numel_, cudaMemcpyDefault));
    }
    params_.base_epoch = 1;
    params_.base_digest = 1;
  }

  void copy(int i, cudaStream_t stream) {
    CIERA_CUDA_TRY(cudaMemcpyAsync(dst(i), src(i), 2 * numel_, cudaMemcpyDeviceToDevice, stream));
  }
  void encode(int i, cudaStream_t stream) {
    codec::cuda::launch_delta_encode(encode_call(i), multiprocessors_, stream);
  }
  void compare(int i, cudaStream_t stream) {
    codec::cuda::launch_delta_compare(encode_call(i), multiprocessors_, stream);
  }
  // Caches as of the base, when all have been used.
  void refill(int i) {
    if (i % copies_ == 0) {
      for (int c = 0; c < copies_; ++c) {
        CIERA_CUDA_TRY(
            cudaMemcpy(cache(c).data(), base_.span().data(), base_.size(), cudaMemcpyDefault));
      }
      CIERA_CUDA_TRY(cudaDeviceSynchronize());
    }
  }
  // Through the backend, on its streams: `start` and `stop` of the timer are on the one for
  // exchanges.
  void decode(int i, Target target) {
    job_ = {.expected = params_, .frame = frame_.span().first(result().frame_bytes)};
    job_.exponents = cache(i);
    job_.dst = target == Target::kInPlace ? cache(i) : std::span<std::byte>(dst(i), 2 * numel_);
    backend_.codec_after_comm();
    backend_.start_decode({&job_, 1});
    backend_.comm_after_codec();
  }
  bool right(Target target, int i) {
    backend_.finish_decode({&job_, 1});
    std::vector<std::uint16_t> want(numel_);
    std::vector<std::uint16_t> got(numel_);
    const std::byte* out = target == Target::kInPlace ? cache(i).data() : dst(i);
    CIERA_CUDA_TRY(cudaMemcpy(want.data(), src(0), 2 * numel_, cudaMemcpyDefault));
    CIERA_CUDA_TRY(cudaMemcpy(got.data(), out, 2 * numel_, cudaMemcpyDefault));
    return job_.verdict == Verdict::kOk && want == got;
  }
  void poison() {
    CIERA_CUDA_TRY(cudaMemset(dst_.span().data(), 0xAB, dst_.size()));
    CIERA_CUDA_TRY(cudaDeviceSynchronize());
  }
  void clear_state() {
    CIERA_CUDA_TRY(cudaDeviceSynchronize());
    CIERA_CUDA_TRY(cudaMemset(state_.span().data(), 0, state_.size()));
    CIERA_CUDA_TRY(cudaDeviceSynchronize());
  }
  const codec::EncodeResult& result() const {
    return *reinterpret_cast<const codec::EncodeResult*>(pinned_results_.span().data());
  }
  bool settled() const {
    const auto& outcome =
        *reinterpret_cast<const codec::cuda::DeltaOutcome*>(pinned_results_.span().data() + 512);
    return outcome.lacks_room == 0 && outcome.may_be_key == 0;
  }

 private:
  static constexpr codec::cuda::Room kRoom = codec::cuda::Room::kUsual;

  std::byte* src(int i) const { return part(src_, i).data(); }
  std::byte* dst(int i) const { return part(dst_, i).data(); }
  std::span<std::byte> cache(int i) const { return part(caches_, i); }
  std::span<std::byte> part(const Buffer& buffer, int i) const {
    const std::size_t bytes = buffer.size() / static_cast<std::size_t>(copies_);
    return buffer.span().subspan(bytes * static_cast<std::size_t>(i % copies_), bytes);
  }
  DeltaEncodeCall encode_call(int i) {
    auto* results = pinned_results_.span().data();
    return {.params = params_,
            .src = src(i),
            .reference = base_.span().data(),
            .frame = frame_.span().data(),
            .room = kRoom,
            .policy = codec::cuda::DeltaPolicy::kCompare,
            .scratch = codec::cuda::divide_delta_scratch(params_, kRoom, scratch_.span().data()),
            .state = reinterpret_cast<codec::cuda::DeltaEncodeState*>(state_.span().data()),
            .result = reinterpret_cast<codec::EncodeResult*>(results),
            .outcome = reinterpret_cast<codec::cuda::DeltaOutcome*>(results + 512)};
  }

  codec::CodecBackend& backend_;
  std::uint64_t numel_;
  FrameParams params_;
  int copies_ = 1;
  int multiprocessors_ = 1;
  exec::CudaMemory memory_{0};
  exec::PinnedMemory pinned_;
  Buffer src_, dst_, base_, caches_, frame_, scratch_, state_, pinned_results_;
  codec::DecodeJob job_;
};

struct Decoded {
  double us = 0;
  bool right = false;
};

Decoded time_decode(codec::CodecBackend& backend, Case& one, Target target, int runs) {
  Timer timer(static_cast<cudaStream_t>(backend.comm_stream().handle));
  one.poison();
  Decoded decoded;
  decoded.us =
      timer.median_us(runs, [&](int i) { one.decode(i, target); }, [&](int i) { one.refill(i); });
  decoded.right = one.right(target, runs + 2);  // the last one
  return decoded;
}

void run_case(codec::CodecBackend& backend, const Trace& trace, const std::string& label,
              ReuseMode mode, Effort effort, std::uint64_t bytes, std::uint32_t segment_log2,
              std::ofstream& json) {
  const exec::CudaStream stream;
  Timer timer(stream.get());
  Case one(backend, trace, mode, effort, bytes / 2, segment_log2);
  const int runs = bytes >= (256ULL << 20) ? 12 : 40;
  const double copy_us = timer.median_us(runs, [&](int i) { one.copy(i, stream.get()); });
  const double compare_us = timer.median_us(runs, [&](int i) { one.compare(i, stream.get()); });
  one.clear_state();  // which the pass alone leaves half way
  const double encode_us = timer.median_us(runs, [&](int i) { one.encode(i, stream.get()); });
  if (!one.settled()) {
    std::fprintf(stderr, "%s: the first attempt at a delta frame was not enough\n", label.c_str());
    std::exit(1);
  }
  const Decoded apart = time_decode(backend, one, Target::kApart, runs);
  const bool words = mode == ReuseMode::kWordDelta;
  const Decoded in_place = words ? time_decode(backend, one, Target::kInPlace, runs) : apart;
  const double raw = static_cast<double>(bytes);
  const auto gbps = [raw](double us) { return raw / us / 1000; };
  const bool right = apart.right && in_place.right;
  const double wire_ratio = raw / static_cast<double>(one.result().frame_bytes);
  const std::string mode_name(name(mode));
  const std::string effort_name(name(effort));
  std::printf(
      "%-8s %-14s %-7s %10llu %6.2f %6.0f | %8.1f %6.0f %8.1f | %8.1f %6.0f %8.1f %6.0f %s\n",
      label.c_str(), mode_name.c_str(), effort_name.c_str(), static_cast<unsigned long long>(bytes),
      wire_ratio, 2 * gbps(copy_us), encode_us, gbps(encode_us), compare_us, apart.us,
      gbps(apart.us), in_place.us, gbps(in_place.us), right ? "ok" : "WRONG");
  json << "{\"data\": \"" << label << "\", \"mode\": \"" << mode_name << "\", \"effort\": \""
       << effort_name << "\", \"bytes\": " << bytes << ", \"wire_ratio\": " << wire_ratio
       << ", \"copy_gbps\": " << 2 * gbps(copy_us) << ", \"encode_us\": " << encode_us
       << ", \"encode_gbps\": " << gbps(encode_us) << ", \"compare_us\": " << compare_us
       << ", \"decode_us\": " << apart.us << ", \"decode_gbps\": " << gbps(apart.us)
       << ", \"in_place_decode_us\": " << in_place.us
       << ", \"in_place_decode_gbps\": " << gbps(in_place.us)
       << ", \"right\": " << (right ? "true" : "false") << "}\n";
  json.flush();
  if (!right) {
    std::exit(1);
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 4) {
    std::fprintf(stderr,
                 "usage: %s STEPS.bin LABEL OUT.jsonl [max_bytes [min_bytes [mode [effort "
                 "[segment_log2]]]]]\n",
                 argv[0]);
    return 2;
  }
  const Trace trace = read_trace(argv[1]);
  const std::uint64_t most = argc > 4 ? std::stoull(argv[4]) : 1ULL << 30;
  const std::uint64_t least = argc > 5 ? std::stoull(argv[5]) : 1ULL << 20;
  const std::string only_mode = argc > 6 ? argv[6] : "";
  const std::string only_effort = argc > 7 ? argv[7] : "";
  const auto segment_log2 = static_cast<std::uint32_t>(argc > 8 ? std::stoul(argv[8]) : 0);
  std::ofstream json(argv[3], std::ios::app);
  const auto backend = codec::cuda::make_cuda_backend(0);
  std::printf("%-8s %-14s %-7s %10s %6s %6s | %8s %6s %8s | %8s %6s %8s %6s\n", "data", "mode",
              "effort", "bytes", "ratio", "copy", "enc us", "GB/s", "compare", "dec us", "GB/s",
              "in place", "GB/s");
  for (const ReuseMode mode : {ReuseMode::kWordDelta, ReuseMode::kExponentDelta}) {
    for (const Effort effort : {Effort::kDefault, Effort::kHigh}) {
      if ((!only_mode.empty() && only_mode != name(mode)) ||
          (!only_effort.empty() && only_effort != name(effort))) {
        continue;
      }
      for (std::uint64_t bytes = least; bytes <= most; bytes *= 4) {
        run_case(*backend, trace, argv[2], mode, effort, bytes, segment_log2, json);
      }
    }
  }
  return 0;
}
