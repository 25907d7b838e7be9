// The CUDA codec alone: time on the GPU of encode, decode, the pass over the shard and the merge,
// beside a device copy of the same run. Prints a table and writes JSON lines.
//
//   gpu_codec_bench STEPS.bin LABEL OUT.jsonl [max_bytes [min_bytes [mode]]]
//
// STEPS.bin: two consecutive training steps of BF16 words, as bench/gpu_codec_bench.py writes them:
// the number of values (8 bytes), then both steps. Larger shards are made by tiling with a
// different starting offset for each tile. Every measurement goes round buffers of 512 MiB in all,
// so that it does not measure the cache. gpu_delta_bench measures the delta modes.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <functional>
#include <string>
#include <vector>

#include "ciera/nvcomp.hpp"
#include "codec/backend.hpp"
#include "codec/cuda/cuda_backend.hpp"
#include "codec/cuda/decode_state.hpp"
#include "codec/cuda/encode_state.hpp"
#include "exec/cuda_stream.hpp"
#include "gpu_bench_tools.hpp"

namespace {

using namespace ciera;
using namespace ciera::bench;
using codec::BlockHash;
using codec::FrameParams;
using codec::cuda::DecodeCall;
using codec::cuda::DecodeState;
using codec::cuda::DecodeVerdict;
using codec::cuda::EncodeCall;
using codec::cuda::EncodeState;

// One mode and size: buffers, a committed first step, and calls for the second.
class Case {
 public:
  Case(codec::CodecBackend& backend, const Trace& trace, ReuseMode mode, std::uint64_t numel)
      : numel_(numel), stateful_(mode == ReuseMode::kExponentBlock) {
    params_ = {.mode = mode,
               .numel = numel,
               .segment_log2 = backend.segment_log2(mode, Effort::kDefault, numel)};
    copies_ = static_cast<int>(std::clamp<std::uint64_t>(kRotatedBytes / (2 * numel), 1, 64));
    src_ = Buffer(memory_, 2 * numel * static_cast<std::uint64_t>(copies_));
    dst_ = Buffer(memory_, 2 * numel * static_cast<std::uint64_t>(copies_));
    hashes_ = Buffer(memory_, 32 * codec::block_count(numel, params_.block_size) + 32);
    frame_ = Buffer(memory_, codec::max_frame_bytes(params_));
    exponents_ = Buffer(memory_, stateful_ ? numel : 1);
    scratch_ = Buffer(memory_, codec::cuda::encode_scratch_bytes(params_));
    list_ = Buffer(memory_, codec::cuda::decode_list_bytes(params_));
    tiles_ = Buffer(memory_, codec::cuda::decode_tile_bytes(params_));
    states_ = Buffer(memory_, sizeof(EncodeState) + sizeof(DecodeState) + 1024);
    result_ = Buffer(pinned_, sizeof(codec::EncodeResult));
    CIERA_CUDA_TRY(cudaMemset(states_.span().data(), 0, states_.size()));
    int device = 0;
    CIERA_CUDA_TRY(cudaGetDevice(&device));
    CIERA_CUDA_TRY(
        cudaDeviceGetAttribute(&multiprocessors_, cudaDevAttrMultiProcessorCount, device));
    fill(trace.steps[0]);
    if (stateful_) {
      commit_first_step();
    }
    fill(trace.steps[1]);
  }

  void encode(int i, cudaStream_t stream) {
    codec::cuda::launch_encode(encode_call(i), multiprocessors_, stream);
  }
  void split(int i, cudaStream_t stream) {
    codec::cuda::launch_split(encode_call(i), multiprocessors_, stream);
  }
  void decode(int i, cudaStream_t stream) {
    const DecodeCall call = decode_call(i);
    CIERA_CUDA_TRY(cudaMemsetAsync(call.state, 0, offsetof(DecodeState, slots), stream));
    CIERA_CUDA_TRY(cudaMemsetAsync(call.verdict, 0, 512, stream));
    codec::cuda::launch_check(call, multiprocessors_, stream);
    codec::cuda::launch_decode(call, multiprocessors_, stream);
  }
  void merge(int i, cudaStream_t stream) {
    codec::cuda::launch_merge(decode_call(i), multiprocessors_, stream);
  }
  void copy(int i, cudaStream_t stream) {
    CIERA_CUDA_TRY(cudaMemcpyAsync(dst(i), src(i), 2 * numel_, cudaMemcpyDeviceToDevice, stream));
  }
  void clear_state() {
    CIERA_CUDA_TRY(cudaDeviceSynchronize());
    CIERA_CUDA_TRY(cudaMemset(states_.span().data(), 0, sizeof(EncodeState)));
    CIERA_CUDA_TRY(cudaDeviceSynchronize());
  }
  void poison() {
    CIERA_CUDA_TRY(cudaMemset(dst_.span().data(), 0xAB, dst_.size()));
    CIERA_CUDA_TRY(cudaDeviceSynchronize());
  }
  bool right(int i) {
    std::vector<std::uint16_t> want(numel_);
    std::vector<std::uint16_t> got(numel_);
    CIERA_CUDA_TRY(cudaMemcpy(want.data(), src(i), 2 * numel_, cudaMemcpyDefault));
    CIERA_CUDA_TRY(cudaMemcpy(got.data(), dst(i), 2 * numel_, cudaMemcpyDefault));
    return want == got;
  }
  const codec::EncodeResult& result() const {
    return *reinterpret_cast<const codec::EncodeResult*>(result_.span().data());
  }
  bool stateful() const { return stateful_; }

 private:
  std::byte* src(int i) const {
    return src_.span().data() + 2 * numel_ * static_cast<std::uint64_t>(i % copies_);
  }
  std::byte* dst(int i) const {
    return dst_.span().data() + 2 * numel_ * static_cast<std::uint64_t>(i % copies_);
  }
  void fill(const std::vector<std::uint16_t>& step) {
    tile(step, numel_, src(0));
    for (int i = 1; i < copies_; ++i) {
      CIERA_CUDA_TRY(cudaMemcpy(src(i), src(0), 2 * numel_, cudaMemcpyDefault));
    }
  }
  void commit_first_step() {
    encode(0, nullptr);
    CIERA_CUDA_TRY(cudaDeviceSynchronize());
    decode(0, nullptr);
    CIERA_CUDA_TRY(cudaDeviceSynchronize());
    params_.base_epoch = 1;
    params_.base_digest = result().checksum;
    // What was written as new is now old.
    const std::uint64_t bytes = 16 * codec::block_count(numel_, params_.block_size);
    CIERA_CUDA_TRY(cudaMemcpy(hashes_.span().data() + hashes_.size() / 2, hashes_.span().data(),
                              bytes, cudaMemcpyDefault));
  }
  EncodeCall encode_call(int i) {
    return {.params = params_,
            .src = src(i),
            .old_hashes = reinterpret_cast<BlockHash*>(hashes_.span().data() + hashes_.size() / 2),
            .new_hashes = reinterpret_cast<BlockHash*>(hashes_.span().data()),
            .frame = frame_.span().data(),
            .scratch = codec::cuda::divide_encode_scratch(params_, scratch_.span().data()),
            .state = reinterpret_cast<EncodeState*>(states_.span().data()),
            .result = reinterpret_cast<codec::EncodeResult*>(result_.span().data())};
  }
  DecodeCall decode_call(int i) {
    std::byte* states = states_.span().data() + (sizeof(EncodeState) + 255) / 256 * 256;
    std::byte* verdict = states_.span().data() + states_.size() - 512;
    return {.expected = params_,
            .frame = frame_.span().data(),
            .frame_bytes = result().frame_bytes,
            .exponents =
                stateful_ ? reinterpret_cast<std::uint8_t*>(exponents_.span().data()) : nullptr,
            .dst = dst(i),
            .symbols = nullptr,
            .tile_changed = reinterpret_cast<std::uint32_t*>(tiles_.span().data()),
            .list = reinterpret_cast<std::uint32_t*>(list_.span().data()),
            .state = reinterpret_cast<DecodeState*>(states),
            .verdict = reinterpret_cast<DecodeVerdict*>(verdict),
            .refused = reinterpret_cast<unsigned*>(verdict + 256)};
  }

  std::uint64_t numel_;
  bool stateful_;
  FrameParams params_;
  int copies_ = 1;
  int multiprocessors_ = 1;
  exec::CudaMemory memory_{0};
  exec::PinnedMemory pinned_;
  Buffer src_, dst_, hashes_, frame_, exponents_, scratch_, list_, tiles_, states_, result_;
};

// Bytes that the pass over the shard and the merge must move at least: every input once, every
// output once.
double split_bytes(std::uint64_t numel) { return 3.0 * static_cast<double>(numel); }
double merge_bytes(std::uint64_t numel) { return 4.0 * static_cast<double>(numel); }

void run_case(codec::CodecBackend& backend, const Trace& trace, const std::string& label,
              ReuseMode mode, std::uint64_t bytes, std::ofstream& json) {
  const exec::CudaStream stream;
  Timer timer(stream.get());
  Case one(backend, trace, mode, bytes / 2);
  const int runs = bytes >= (256ULL << 20) ? 12 : 40;
  const auto timed = [&](void (Case::*body)(int, cudaStream_t)) {
    return timer.median_us(runs, [&](int i) { (one.*body)(i, stream.get()); });
  };
  const double copy_us = timed(&Case::copy);
  const double encode_us = timed(&Case::encode);
  const double split_us = timed(&Case::split);
  one.clear_state();            // which the pass alone leaves half way
  one.encode(0, stream.get());  // and the frame, which it has damaged
  CIERA_CUDA_TRY(cudaStreamSynchronize(stream.get()));
  one.poison();  // the copies put the right words there
  const double decode_us = timed(&Case::decode);
  const bool right = one.right(0);
  const double merge_us = timed(&Case::merge);
  const auto& result = one.result();
  const double raw = static_cast<double>(bytes);
  const double q = result.blocks == 0 ? 0
                                      : static_cast<double>(result.changed_blocks) /
                                            static_cast<double>(result.blocks);
  const double copy_gbps = 2 * raw / copy_us / 1000;
  const double split_share = split_bytes(bytes / 2) / split_us / 1000 / copy_gbps;
  const double merge_share =
      one.stateful() ? merge_bytes(bytes / 2) / merge_us / 1000 / copy_gbps : 0;
  std::printf(
      "%-10s %-14s %10llu %5.2f %6.3f %7.0f | %8.1f %7.0f %8.1f %7.0f | %5.0f%% %5.0f%% %s\n",
      label.c_str(), std::string(name(mode)).c_str(), static_cast<unsigned long long>(bytes), q,
      static_cast<double>(result.frame_bytes) / raw, copy_gbps, encode_us, raw / encode_us / 1000,
      decode_us, raw / decode_us / 1000, 100 * split_share, 100 * merge_share,
      right ? "ok" : "WRONG");
  json << "{\"data\": \"" << label << "\", \"mode\": \"" << name(mode) << "\", \"bytes\": " << bytes
       << ", \"q\": " << q
       << ", \"wire_fraction\": " << static_cast<double>(result.frame_bytes) / raw
       << ", \"copy_gbps\": " << copy_gbps << ", \"encode_us\": " << encode_us
       << ", \"encode_gbps\": " << raw / encode_us / 1000 << ", \"decode_us\": " << decode_us
       << ", \"decode_gbps\": " << raw / decode_us / 1000 << ", \"split_us\": " << split_us
       << ", \"split_share_of_copy\": " << split_share << ", \"merge_us\": " << merge_us
       << ", \"merge_share_of_copy\": " << merge_share
       << ", \"right\": " << (right ? "true" : "false") << "}\n";
  if (!right) {
    std::exit(1);
  }
}

// One shard through the backend, as the orchestrator uses it: host clock around blocking calls, so
// that coders whose launches are not ours can be put beside each other.
class BackendCase {
 public:
  BackendCase(codec::CodecBackend& backend, ReuseMode mode, Coder coder, std::uint64_t numel)
      : backend_(backend), stateful_(mode == ReuseMode::kExponentBlock) {
    params_ = {.mode = mode,
               .coder = coder,
               .numel = numel,
               .segment_log2 = backend.segment_log2(mode, Effort::kDefault, numel)};
    const std::uint64_t hash_bytes = 16 * codec::block_count(numel, params_.block_size);
    src_ = Buffer(backend.memory(), 2 * numel);
    dst_ = Buffer(backend.memory(), 2 * numel);
    frame_ = Buffer(backend.memory(), codec::max_frame_bytes(params_));
    exponents_ = Buffer(backend.memory(), stateful_ ? numel : 0);
    for (Buffer& hashes : hashes_) {
      hashes = Buffer(backend.memory(), stateful_ ? hash_bytes : 0);
    }
  }

  // Makes step 0 the reference and step 1 what is measured.
  void load(const Trace& trace) {
    tile(trace.steps[0], params_.numel, src_.span().data());
    if (stateful_) {
      encode();
      decode();
      params_.base_epoch = 1;
      params_.base_digest = result_.checksum;
      std::swap(hashes_[0], hashes_[1]);
    }
    tile(trace.steps[1], params_.numel, src_.span().data());
  }
  void encode() {
    codec::EncodeJob job{.params = params_, .src = src_.span()};
    job.old_hashes = params_.base_epoch == 0 ? std::span<std::byte>() : hashes_[0].span();
    job.new_hashes = hashes_[1].span();
    job.frame = frame_.span();
    backend_.encode({&job, 1});
    result_ = job.result;
  }
  Verdict decode() {
    codec::DecodeJob job{.expected = params_, .frame = frame_.span().first(result_.frame_bytes)};
    job.exponents = exponents_.span();
    job.dst = dst_.span();
    backend_.start_decode({&job, 1});
    backend_.finish_decode({&job, 1});
    return job.verdict;
  }
  std::uint64_t frame_bytes() const { return result_.frame_bytes; }

 private:
  codec::CodecBackend& backend_;
  bool stateful_;
  FrameParams params_;
  Buffer src_, dst_, frame_, exponents_;
  Buffer hashes_[2];
  codec::EncodeResult result_{};
};

double median_host_us(const std::function<void()>& body) {
  std::vector<double> times;
  for (int i = -2; i < 9; ++i) {
    const auto start = std::chrono::steady_clock::now();
    body();
    const std::chrono::duration<double, std::micro> time = std::chrono::steady_clock::now() - start;
    if (i >= 0) {
      times.push_back(time.count());
    }
  }
  std::nth_element(times.begin(), times.begin() + 4, times.end());
  return times[4];
}

void compare_coders(const Trace& trace, const std::string& label, std::uint64_t most,
                    std::ofstream& json) {
  std::printf("%-10s %-14s %-10s %10s %6s | %8s %7s %8s %7s  through the backend, host clock\n",
              "data", "mode", "coder", "bytes", "wire", "enc us", "GB/s", "dec us", "GB/s");
  for (const Coder coder : {Coder::kRans, Coder::kNvcompAns}) {
    const auto backend = codec::cuda::make_cuda_backend(0, coder);
    for (const ReuseMode mode : {ReuseMode::kExponentOnly, ReuseMode::kExponentBlock}) {
      for (std::uint64_t bytes = 1ULL << 20; bytes <= std::min<std::uint64_t>(most, 256ULL << 20);
           bytes *= 16) {
        BackendCase one(*backend, mode, coder, bytes / 2);
        one.load(trace);
        const double encode_us = median_host_us([&] { one.encode(); });
        Verdict verdict = Verdict::kOk;
        const double decode_us = median_host_us([&] { verdict = one.decode(); });
        if (verdict != Verdict::kOk) {
          std::fprintf(stderr, "decoding failed: %s\n", std::string(name(verdict)).c_str());
          std::exit(1);
        }
        const double raw = static_cast<double>(bytes);
        const double wire = static_cast<double>(one.frame_bytes()) / raw;
        std::printf("%-10s %-14s %-10s %10llu %6.3f | %8.1f %7.0f %8.1f %7.0f\n", label.c_str(),
                    std::string(name(mode)).c_str(), std::string(name(coder)).c_str(),
                    static_cast<unsigned long long>(bytes), wire, encode_us, raw / encode_us / 1000,
                    decode_us, raw / decode_us / 1000);
        json << "{\"data\": \"" << label << "\", \"mode\": \"" << name(mode) << "\", \"coder\": \""
             << name(coder) << "\", \"clock\": \"host\", \"bytes\": " << bytes
             << ", \"wire_fraction\": " << wire << ", \"encode_us\": " << encode_us
             << ", \"encode_gbps\": " << raw / encode_us / 1000 << ", \"decode_us\": " << decode_us
             << ", \"decode_gbps\": " << raw / decode_us / 1000 << "}\n";
      }
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 4) {
    std::fprintf(stderr, "usage: %s STEPS.bin LABEL OUT.jsonl [max_bytes [min_bytes [mode]]]\n",
                 argv[0]);
    return 2;
  }
  const Trace trace = read_trace(argv[1]);
  const std::uint64_t most = argc > 4 ? std::stoull(argv[4]) : 1ULL << 30;
  const std::uint64_t least = argc > 5 ? std::stoull(argv[5]) : 64ULL << 10;
  const std::string only = argc > 6 ? argv[6] : "";
  std::ofstream json(argv[3], std::ios::app);
  const auto backend = codec::cuda::make_cuda_backend(0);
  std::printf("%-10s %-14s %10s %5s %6s %7s | %8s %7s %8s %7s | %6s %6s\n", "data", "mode", "bytes",
              "q", "wire", "copy", "enc us", "GB/s", "dec us", "GB/s", "split", "merge");
  for (const ReuseMode mode : {ReuseMode::kExponentOnly, ReuseMode::kExponentBlock}) {
    for (std::uint64_t bytes = least; bytes <= most; bytes *= 4) {
      if (!only.empty() && only != name(mode)) {
        continue;
      }
      run_case(*backend, trace, argv[2], mode, bytes, json);
    }
  }
  if (nvcomp_support().available) {
    compare_coders(trace, argv[2], most, json);
  } else {
    std::printf("nvcomp-ans left out: %s\n", nvcomp_support().detail.c_str());
  }
  return 0;
}
