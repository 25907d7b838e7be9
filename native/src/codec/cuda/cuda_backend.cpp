#include "codec/cuda/cuda_backend.hpp"

#include <algorithm>
#include <bit>
#include <mutex>
#include <vector>

#include "ciera/error.hpp"
#include "codec/cuda/decode_state.hpp"
#include "codec/cuda/delta_encode_state.hpp"
#include "codec/cuda/encode_state.hpp"
#include "codec/cuda/launch_shape.hpp"
#include "codec/cuda/nvcomp_state.hpp"
#include "codec/cuda/range_kernels.hpp"
#include "exec/cuda_stream.hpp"

namespace ciera::codec::cuda {
namespace {

using exec::CudaDeviceGuard;
using exec::CudaEvent;

std::string runtime_problem() {
  int devices = 0;
  const cudaError_t result = cudaGetDeviceCount(&devices);
  if (result == cudaSuccess && devices > 0) {
    return {};
  }
  cudaGetLastError();
  int driver = 0;
  cudaDriverGetVersion(&driver);
  const auto version = [](int number) {
    return std::to_string(number / 1000) + "." + std::to_string(number % 1000 / 10);
  };
  if (result == cudaErrorInsufficientDriver && driver != 0) {
    return "the driver supports CUDA " + version(driver) + ", this build needs " +
           version(CUDART_VERSION) + "; update the driver";
  }
  return std::string("no GPU can be used (") + cudaGetErrorString(result) + ")";
}

// Events are used in every call: they are kept, not made anew.
class EventPool {
 public:
  std::shared_ptr<CudaEvent> take() {
    const std::lock_guard lock(mutex_);
    for (auto& event : events_) {
      if (event.use_count() == 1) {
        return event;
      }
    }
    events_.push_back(std::make_shared<CudaEvent>());
    return events_.back();
  }

 private:
  std::mutex mutex_;
  std::vector<std::shared_ptr<CudaEvent>> events_;
};

class CudaBackend final : public CodecBackend {
 public:
  // The GPU is current while this runs.
  CudaBackend(int device, std::shared_ptr<const nvcomp::Api> nvcomp)
      : device_(device),
        nvcomp_(std::move(nvcomp)),
        memory_(device),
        state_(memory_, sizeof(EncodeState)),
        delta_state_(memory_, sizeof(DeltaEncodeState)),
        scratch_(memory_),
        decode_states_(memory_),
        verdicts_dev_(memory_),
        verdicts_(pinned_),
        results_(pinned_),
        ranges_(pinned_) {
    CIERA_CUDA_TRY(
        cudaDeviceGetAttribute(&multiprocessors_, cudaDevAttrMultiProcessorCount, device));
    CIERA_CUDA_TRY(cudaMemsetAsync(state_.span().data(), 0, state_.size(), codec_.get()));
    CIERA_CUDA_TRY(
        cudaMemsetAsync(delta_state_.span().data(), 0, delta_state_.size(), codec_.get()));
  }
  ~CudaBackend() override {
    cudaStreamSynchronize(codec_.get());  // nothing may run on memory that is about to go
  }

  Backend kind() const override { return Backend::kCuda; }
  MemoryResource& memory() override { return memory_; }
  MemoryResource& staging_memory() override { return pinned_; }

  // Enough segments that the GPU's warps have one each, but not so many that their states, 128
  // bytes each, cost more than a few percent. Items of the delta modes take fewer bits each.
  std::uint32_t segment_log2(ReuseMode mode, Effort effort, std::uint64_t numel) const override {
    if (mode >= ReuseMode::kExponentDelta) {
      const std::uint32_t quad_log2 = effort == Effort::kHigh ? 0 : 2;
      const auto log2 = static_cast<std::uint32_t>(std::bit_width(numel / 4096 | 1) - 1);
      return std::clamp(log2, 13U, 15U) - quad_log2;
    }
    const auto log2 = static_cast<std::uint32_t>(std::bit_width(numel / 8192 | 1) - 1);
    return std::clamp(log2, 12U, kRansSegmentLog2);
  }

  std::shared_ptr<void> mark(DeviceStream caller) override {
    const CudaDeviceGuard guard(device_);
    auto event = events_.take();
    event->record(static_cast<cudaStream_t>(caller.handle));
    return event;
  }
  void start_after(const std::shared_ptr<void>& mark) override {
    const CudaDeviceGuard guard(device_);
    if (mark != nullptr) {
      static_cast<const CudaEvent*>(mark.get())->hold(codec_.get());
    }
  }

  void encode(std::span<EncodeJob> jobs) override {
    const CudaDeviceGuard guard(device_);
    std::size_t scratch = 0;
    NvcompSizes nvcomp_sizes;
    for (const EncodeJob& job : jobs) {
      require_aligned(job.src, job.params.dtype);
      scratch = std::max(scratch, scratch_for(job.params));
      if (job.params.coder == Coder::kNvcompAns) {
        nvcomp_sizes.include(nvcomp_encode_sizes(api(), job.params.numel, codec_.get()));
      }
    }
    EncodeSlots slots(results_, jobs.size());
    find_same(jobs, slots);
    std::byte* shared_scratch = scratch_.reserve(scratch + nvcomp_sizes.bytes()).data();
    const NvcompCall nvcomp = divide_nvcomp(nvcomp_sizes, shared_scratch + scratch, slots.failure);
    for (std::size_t i = 0; i < jobs.size(); ++i) {
      if (slots.frame[i] == KnownFrame::kSame) {
        launch_same(jobs[i], slots.result + i);
      } else {
        launch_job(jobs[i], shared_scratch, slots.result + i, slots.outcome + i, &nvcomp);
      }
    }
    CIERA_CUDA_TRY(cudaStreamSynchronize(codec_.get()));
    if (*slots.failure != nvcomp::kSuccess) {
      throw Error(ErrorCode::kLibrary,
                  std::string("nvCOMP cannot compress: ") +
                      api().get_status_string(static_cast<nvcomp::Status>(*slots.failure)));
    }
    for (std::size_t i = 0; i < jobs.size(); ++i) {
      settle_delta(jobs[i], slots.result + i, slots.outcome + i);
      jobs[i].result = slots.result[i];
    }
  }

  void store_reference(const FrameParams& params, std::span<const std::byte> src,
                       std::span<std::byte> reference) override {
    if (is_word_delta(params)) {
      return copy(reference, src);
    }
    const CudaDeviceGuard guard(device_);
    launch_extract_exponents(params, src.data(), reinterpret_cast<std::uint8_t*>(reference.data()),
                             multiprocessors_, codec_.get());
  }

  void start_decode(std::span<DecodeJob> jobs) override {
    if (jobs.empty()) {
      return;
    }
    const CudaDeviceGuard guard(device_);
    std::vector<DecodeCall> calls = decode_calls(jobs);
    // States and verdicts begin cleared; the flag stands behind the verdicts.
    for (std::size_t i = 0; i < jobs.size(); ++i) {
      constexpr std::size_t kCleared = offsetof(DecodeState, slots);
      CIERA_CUDA_TRY(cudaMemsetAsync(calls[i].state, 0, kCleared, codec_.get()));
    }
    CIERA_CUDA_TRY(cudaMemsetAsync(verdicts_dev_.reserve(verdict_bytes(jobs.size())).data(), 0,
                                   verdict_bytes(jobs.size()), codec_.get()));
    for (const DecodeCall& call : calls) {
      launch_check(call, multiprocessors_, codec_.get());
    }
    for (const DecodeCall& call : calls) {
      launch_decode(call, multiprocessors_, codec_.get());
    }
    CIERA_CUDA_TRY(cudaMemcpyAsync(verdicts_.reserve(verdict_bytes(jobs.size())).data(),
                                   verdicts_dev_.reserve(verdict_bytes(jobs.size())).data(),
                                   verdict_bytes(jobs.size()), cudaMemcpyDeviceToHost,
                                   codec_.get()));
  }

  void finish_decode(std::span<DecodeJob> jobs) override {
    wait();
    const auto* verdicts = reinterpret_cast<const DecodeVerdict*>(
        verdicts_.reserve(verdict_bytes(jobs.size())).data());
    for (std::size_t i = 0; i < jobs.size(); ++i) {
      jobs[i].verdict = verdicts[i].verdict;
      jobs[i].info = verdicts[i].info;
    }
  }

  void copy(std::span<std::byte> to, std::span<const std::byte> from) override {
    transfer(to.data(), from, cudaMemcpyDeviceToDevice);
  }
  void zero(std::span<std::byte> bytes) override {
    const CudaDeviceGuard guard(device_);
    if (!bytes.empty()) {
      CIERA_CUDA_TRY(cudaMemsetAsync(bytes.data(), 0, bytes.size(), codec_.get()));
    }
  }
  void upload(std::span<std::byte> to, std::span<const std::byte> from_host) override {
    transfer(to.data(), from_host, cudaMemcpyHostToDevice);
  }
  void download(std::span<std::byte> to_host, std::span<const std::byte> from) override {
    transfer(to_host.data(), from, cudaMemcpyDeviceToHost);
  }

  bool all_zero(std::span<const std::span<const std::byte>> ranges) override {
    if (ranges.empty()) {
      return true;
    }
    const CudaDeviceGuard guard(device_);
    const std::size_t bytes = align256(ranges.size() * sizeof(DeviceRange));
    const auto space = ranges_.reserve(bytes + sizeof(unsigned));
    auto* list = reinterpret_cast<DeviceRange*>(space.data());
    auto* nonzero = reinterpret_cast<unsigned*>(space.data() + bytes);
    *nonzero = 0;
    for (std::size_t i = 0; i < ranges.size(); ++i) {
      list[i] = {ranges[i].data(), ranges[i].size()};
    }
    launch_find_nonzero(list, ranges.size(), nonzero, codec_.get());
    wait();
    return *nonzero == 0;
  }

  void wait() override {
    const CudaDeviceGuard guard(device_);
    CIERA_CUDA_TRY(cudaStreamSynchronize(codec_.get()));
  }

  DeviceStream comm_stream() const override { return {comm_.get(), device_}; }
  void comm_after_codec() override { order(codec_.get(), comm_.get()); }
  void codec_after_comm() override { order(comm_.get(), codec_.get()); }

  std::uint64_t scratch_bytes() const override {
    return state_.size() + delta_state_.size() + scratch_.capacity() + decode_states_.capacity() +
           verdicts_dev_.capacity();
  }
  void release_scratch() override {
    scratch_.release();
    decode_states_.release();
    verdicts_dev_.release();
  }

 private:
  // What is known of a frame before it is encoded.
  enum class KnownFrame : std::uint8_t { kNothing, kSame };

  // Pinned memory that the kernels of an encode write to, cleared; and what is known of each frame.
  struct EncodeSlots {
    EncodeResult* result;
    DeltaOutcome* outcome;
    unsigned* differs;
    int* failure;
    std::vector<KnownFrame> frame;

    EncodeSlots(Arena& arena, std::size_t jobs) : frame(jobs, KnownFrame::kNothing) {
      const std::size_t results = jobs * sizeof(EncodeResult);
      const std::size_t outcomes = jobs * sizeof(DeltaOutcome);
      const auto space = arena.reserve(results + outcomes + jobs * sizeof(unsigned) + sizeof(int));
      std::ranges::fill(space, std::byte{0});
      result = reinterpret_cast<EncodeResult*>(space.data());
      outcome = reinterpret_cast<DeltaOutcome*>(space.data() + results);
      differs = reinterpret_cast<unsigned*>(space.data() + results + outcomes);
      failure = reinterpret_cast<int*>(differs + jobs);
      *failure = nvcomp::kSuccess;
    }
  };

  // Which shards of the exponent modes are what their receivers hold. Waits for the comparison,
  // which is short unless they are.
  void find_same(std::span<const EncodeJob> jobs, EncodeSlots& slots) {
    bool compared = false;
    for (std::size_t i = 0; i < jobs.size(); ++i) {
      const EncodeJob& job = jobs[i];
      if (is_word_delta(job.params) || !may_be_same(job.params)) {
        continue;
      }
      if (job.claim == Claim::kUnchanged) {
        slots.frame[i] = KnownFrame::kSame;
      } else if (job.own_words.size() == job.src.size()) {
        slots.frame[i] = KnownFrame::kSame;  // unless a difference is found
        compared = true;
        launch_find_difference(job.src.data(), job.own_words.data(), job.src.size(),
                               slots.differs + i, multiprocessors_, codec_.get());
      }
    }
    if (compared) {
      CIERA_CUDA_TRY(cudaStreamSynchronize(codec_.get()));
      for (std::size_t i = 0; i < jobs.size(); ++i) {
        slots.frame[i] = slots.differs[i] != 0 ? KnownFrame::kNothing : slots.frame[i];
      }
    }
  }

  void launch_same(const EncodeJob& job, EncodeResult* result) {
    launch_known_frame({.params = job.params,
                        .src = job.src.data(),
                        .frame = job.frame.data(),
                        .state = reinterpret_cast<DeltaEncodeState*>(delta_state_.span().data()),
                        .result = result},
                       wire::Kind::kSame, multiprocessors_, codec_.get());
  }

  std::size_t scratch_for(const FrameParams& params) const {
    const std::size_t key = has_exponent(params.dtype) ? encode_scratch_bytes(params) : 0;
    return params.mode < ReuseMode::kExponentDelta
               ? key
               : std::max(key, delta_encode_scratch_bytes(params, room_));
  }

  void launch_job(const EncodeJob& job, std::byte* scratch, EncodeResult* result,
                  DeltaOutcome* outcome, const NvcompCall* nvcomp) {
    if (job.params.mode < ReuseMode::kExponentDelta) {
      launch_framed(job, job.params, scratch, result, nvcomp);
    } else if (!is_delta(job.params)) {
      launch_key(job, scratch, result);
    } else {
      launch_delta(job, DeltaPolicy::kCompare, scratch, result, outcome);
    }
  }

  // A key frame, or a delta frame of exponent-block; raw when that is not longer.
  void launch_framed(const EncodeJob& job, const FrameParams& params, std::byte* scratch,
                     EncodeResult* result, const NvcompCall* nvcomp) {
    launch_encode({.params = with_library(params),
                   .src = job.src.data(),
                   .old_hashes = reinterpret_cast<const BlockHash*>(job.old_hashes.data()),
                   .new_hashes = reinterpret_cast<BlockHash*>(job.new_hashes.data()),
                   .frame = job.frame.data(),
                   .scratch = divide_encode_scratch(params, scratch),
                   .state = reinterpret_cast<EncodeState*>(state_.span().data()),
                   .result = result,
                   .nvcomp = params.coder == Coder::kNvcompAns ? nvcomp : nullptr},
                  multiprocessors_, codec_.get());
  }

  // The frame of a delta mode that needs no reference.
  void launch_key(const EncodeJob& job, std::byte* scratch, EncodeResult* result) {
    if (has_exponent(job.params.dtype)) {
      FrameParams params = job.params;
      params.base_epoch = 0;
      params.base_digest = 0;
      return launch_framed(job, params, scratch, result, nullptr);
    }
    launch_known_frame(delta_call(job, DeltaPolicy::kForce, scratch, result, nullptr),
                       wire::Kind::kRaw, multiprocessors_, codec_.get());
  }

  void launch_delta(const EncodeJob& job, DeltaPolicy policy, std::byte* scratch,
                    EncodeResult* result, DeltaOutcome* outcome) {
    if (is_word_delta(job.params) && job.claim == Claim::kUnchanged) {
      return launch_same(job, result);
    }
    launch_delta_encode(delta_call(job, policy, scratch, result, outcome), multiprocessors_,
                        codec_.get());
  }

  DeltaEncodeCall delta_call(const EncodeJob& job, DeltaPolicy policy, std::byte* scratch,
                             EncodeResult* result, DeltaOutcome* outcome) {
    return {.params = job.params,
            .src = job.src.data(),
            .reference = job.own_reference.data(),
            .frame = job.frame.data(),
            .room = room_,
            .policy = policy,
            .scratch = divide_delta_scratch(job.params, room_, scratch),
            .state = reinterpret_cast<DeltaEncodeState*>(delta_state_.span().data()),
            .result = result,
            .outcome = outcome};
  }

  // What the first attempt at a delta frame left open; rare, so that it may wait in between.
  void settle_delta(const EncodeJob& job, EncodeResult* result, DeltaOutcome* outcome) {
    const auto attempt = [&](const auto& launch) {
      launch(scratch_.reserve(scratch_for(job.params)).data());
      CIERA_CUDA_TRY(cudaStreamSynchronize(codec_.get()));
    };
    if (outcome->lacks_room != 0) {
      room_ = Room::kMost;
      attempt([&](std::byte* scratch) {
        launch_delta(job, DeltaPolicy::kCompare, scratch, result, outcome);
      });
    }
    if (outcome->may_be_key != 0) {
      const std::uint64_t delta_bytes = outcome->delta_bytes;
      attempt([&](std::byte* scratch) { launch_key(job, scratch, result); });
      if (delta_bytes < result->frame_bytes) {
        attempt([&](std::byte* scratch) {
          launch_delta(job, DeltaPolicy::kForce, scratch, result, outcome);
        });
      }
    }
  }

  static std::size_t verdict_bytes(std::size_t jobs) {
    return jobs * sizeof(DecodeVerdict) + sizeof(std::uint64_t);
  }

  const nvcomp::Api& api() const {
    if (nvcomp_ == nullptr) {
      throw Error(ErrorCode::kLibrary, "this backend was made without coder nvcomp-ans");
    }
    return *nvcomp_;
  }

  // What the library adds to what both ends agree on.
  FrameParams with_library(FrameParams params) const {
    params.nvcomp_major = params.coder == Coder::kNvcompAns ? api().major() : 0;
    return params;
  }

  NvcompCall divide_nvcomp(const NvcompSizes& sizes, std::byte* scratch, int* failure) const {
    return nvcomp_ == nullptr ? NvcompCall{}
                              : divide_nvcomp_scratch(*nvcomp_, sizes, scratch, failure);
  }

  static void require_aligned(std::span<const std::byte> words, DType dtype) {
    if (reinterpret_cast<std::uintptr_t>(words.data()) % element_bytes(dtype) != 0) {
      throw Error(ErrorCode::kArgument, "GPU memory of " + std::string(name(dtype)) +
                                            " must be aligned to its element size");
    }
  }

  void transfer(void* to, std::span<const std::byte> from, cudaMemcpyKind direction) {
    const CudaDeviceGuard guard(device_);
    if (!from.empty() && to != from.data()) {
      CIERA_CUDA_TRY(cudaMemcpyAsync(to, from.data(), from.size(), direction, codec_.get()));
    }
  }

  void order(cudaStream_t before, cudaStream_t after) {
    const CudaDeviceGuard guard(device_);
    const auto event = events_.take();
    event->record(before);
    event->hold(after);
  }

  // Frames are decoded one after the other on one stream, so that all share the list of changed
  // blocks, what the delta modes need and nvCOMP's scratch; what a check leaves for the merge is
  // each frame's own.
  std::vector<DecodeCall> decode_calls(std::span<DecodeJob> jobs) {
    std::size_t lists = 0;
    std::size_t slots = 0;
    std::size_t quads = 0;
    std::size_t tiles = 0;
    std::size_t symbols = 0;
    NvcompSizes nvcomp_sizes;
    for (const DecodeJob& job : jobs) {
      require_aligned(job.dst, job.expected.dtype);
      lists = std::max(lists, decode_list_bytes(job.expected));
      slots = std::max(slots, delta_slot_bytes(job.expected));
      quads = std::max(quads, quad_flag_bytes(job.expected));
      tiles += decode_tile_bytes(job.expected);
      if (job.expected.coder == Coder::kNvcompAns) {
        symbols = std::max<std::size_t>(symbols, align256(job.expected.numel + 16));
        nvcomp_sizes.include(nvcomp_decode_sizes(api(), job.expected.numel, codec_.get()));
      }
    }
    std::byte* list =
        scratch_.reserve(lists + slots + quads + symbols + tiles + nvcomp_sizes.bytes()).data();
    std::byte* delta_slots = list + lists;
    std::byte* quad_flags = delta_slots + slots;
    std::byte* nvcomp_symbols = quad_flags + quads;
    std::byte* tile_changed = nvcomp_symbols + symbols;
    nvcomp_decode_ = divide_nvcomp(nvcomp_sizes, tile_changed + tiles, nullptr);
    const std::size_t state_bytes = align256(sizeof(DecodeState));
    std::byte* states = decode_states_.reserve(jobs.size() * state_bytes).data();
    std::byte* verdicts = verdicts_dev_.reserve(verdict_bytes(jobs.size())).data();
    std::vector<DecodeCall> calls;
    for (std::size_t i = 0; i < jobs.size(); ++i) {
      const DecodeJob& job = jobs[i];
      calls.push_back(
          {.expected = with_library(job.expected),
           .frame = job.frame.data(),
           .frame_bytes = job.frame.size(),
           .exponents = job.exponents.empty()
                            ? nullptr
                            : reinterpret_cast<std::uint8_t*>(job.exponents.data()),
           .dst = job.dst.data(),
           .symbols = reinterpret_cast<std::uint8_t*>(nvcomp_symbols),
           .tile_changed = reinterpret_cast<std::uint32_t*>(tile_changed),
           .list = reinterpret_cast<std::uint32_t*>(list),
           .delta_slots = reinterpret_cast<std::uint32_t*>(delta_slots),
           .quad_flags = reinterpret_cast<std::uint8_t*>(quad_flags),
           .state = reinterpret_cast<DecodeState*>(states + i * state_bytes),
           .verdict = reinterpret_cast<DecodeVerdict*>(verdicts) + i,
           .refused = reinterpret_cast<unsigned*>(verdicts + jobs.size() * sizeof(DecodeVerdict)),
           .nvcomp = job.expected.coder == Coder::kNvcompAns ? &nvcomp_decode_ : nullptr});
      tile_changed += decode_tile_bytes(job.expected);
    }
    return calls;
  }

  const int device_;
  const std::shared_ptr<const nvcomp::Api> nvcomp_;  // null unless coder nvcomp-ans is wanted
  NvcompCall nvcomp_decode_{};
  int multiprocessors_ = 1;
  exec::CudaMemory memory_;
  exec::PinnedMemory pinned_;
  exec::CudaStream codec_;
  exec::CudaStream comm_;
  EventPool events_;
  Buffer state_;              // EncodeState
  Buffer delta_state_;        // DeltaEncodeState
  Room room_ = Room::kUsual;  // what was needed once is kept
  Arena scratch_;
  Arena decode_states_;
  Arena verdicts_dev_;
  Arena verdicts_;
  Arena results_;
  Arena ranges_;
};

}  // namespace

CudaSupport cuda_support() {
  if (const std::string problem = runtime_problem(); !problem.empty()) {
    return {false, problem};
  }
  int devices = 0;
  cudaDeviceProp properties{};
  if (cudaGetDeviceCount(&devices) != cudaSuccess ||
      cudaGetDeviceProperties(&properties, 0) != cudaSuccess) {
    return {false, "the GPU cannot be asked for its properties"};
  }
  return {true, std::to_string(devices) + " x " + properties.name + ", compute capability " +
                    std::to_string(properties.major) + "." + std::to_string(properties.minor)};
}

std::unique_ptr<CodecBackend> make_cuda_backend(int device, Coder coder) {
  nvcomp::Loaded nvcomp;
  if (coder == Coder::kNvcompAns) {
    nvcomp = nvcomp::load();
    if (nvcomp.api == nullptr) {
      throw Error(ErrorCode::kLibrary,
                  "coder nvcomp-ans needs nvCOMP: " + nvcomp.reason + "; or use coder rans");
    }
  }
  if (const std::string problem = runtime_problem(); !problem.empty()) {
    throw Error(
        ErrorCode::kNoDevice,
        problem +
            "; use the CPU (backend host, in Python device=\"cpu\"), or a machine with a GPU");
  }
  int devices = 0;
  CIERA_CUDA_TRY(cudaGetDeviceCount(&devices));
  if (device < 0 || device >= devices) {
    throw Error(ErrorCode::kArgument, "GPU " + std::to_string(device) +
                                          " does not exist; give 0 to " +
                                          std::to_string(devices - 1));
  }
  const CudaDeviceGuard guard(device);
  return std::make_unique<CudaBackend>(device, std::move(nvcomp.api));
}

}  // namespace ciera::codec::cuda
