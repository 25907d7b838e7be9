#include "codec/host/host_backend.hpp"

#include <algorithm>
#include <cstring>
#include <string>
#include <system_error>

#include "ciera/error.hpp"
#include "codec/host/frame_codec.hpp"
#include "codec/rans_table.hpp"
#include "exec/thread_pool.hpp"

namespace ciera::codec::host {
namespace {

std::span<BlockHash> as_hashes(std::span<std::byte> bytes) {
  return {reinterpret_cast<BlockHash*>(bytes.data()), bytes.size() / sizeof(BlockHash)};
}
std::span<const BlockHash> as_hashes(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const BlockHash*>(bytes.data()), bytes.size() / sizeof(BlockHash)};
}

ThreadPool start_pool(std::size_t threads) {
  try {
    return ThreadPool(threads);
  } catch (const std::system_error& error) {
    throw Error(ErrorCode::kArgument, "cannot start " + std::to_string(threads) +
                                          " codec threads (" + error.what() +
                                          "); give a smaller `threads`");
  }
}

class HostBackend final : public CodecBackend {
 public:
  explicit HostBackend(std::size_t threads) : pool_(start_pool(threads)) {}

  Backend kind() const override { return Backend::kHost; }
  MemoryResource& memory() override { return host_memory(); }
  MemoryResource& staging_memory() override { return host_memory(); }
  std::uint32_t segment_log2(ReuseMode, Effort, std::uint64_t) const override {
    return kRansSegmentLog2;
  }

  std::shared_ptr<void> mark(DeviceStream) override { return nullptr; }
  void start_after(const std::shared_ptr<void>&) override {}

  void encode(std::span<EncodeJob> jobs) override {
    for (EncodeJob& job : jobs) {
      const OwnReference words{job.own_words, job.claim};
      if (const auto same = encode_same(job.params, job.src, words, job.frame, &pool_)) {
        job.result = *same;
        continue;
      }
      const auto scratch = scratch_.reserve(encode_scratch_bytes(job.params));
      job.result =
          job.params.mode >= ReuseMode::kExponentDelta
              ? host::encode(job.params, job.src, OwnReference{job.own_reference, job.claim},
                             job.frame, scratch, &pool_)
              : host::encode(job.params, job.src, as_hashes(job.old_hashes),
                             as_hashes(job.new_hashes), job.frame, scratch, &pool_);
    }
  }

  void store_reference(const FrameParams& params, std::span<const std::byte> src,
                       std::span<std::byte> reference) override {
    host::store_reference(params, src, reference, &pool_);
  }

  void start_decode(std::span<DecodeJob> jobs) override {
    std::size_t scratch = 0;
    for (DecodeJob& job : jobs) {
      job.verdict = check(job.expected, job.frame, &job.info, &pool_);
      scratch = std::max(scratch, decode_scratch_bytes(job.expected));
      if (job.verdict != Verdict::kOk) {
        return;
      }
    }
    for (DecodeJob& job : jobs) {
      job.verdict = decode(job.expected, job.frame, job.exponents, job.dst,
                           scratch_.reserve(scratch), &pool_);
      if (job.verdict != Verdict::kOk) {
        return;
      }
    }
  }
  void finish_decode(std::span<DecodeJob>) override {}

  void copy(std::span<std::byte> to, std::span<const std::byte> from) override {
    if (!from.empty() && to.data() != from.data()) {
      std::memmove(to.data(), from.data(), from.size());
    }
  }
  void zero(std::span<std::byte> bytes) override { std::ranges::fill(bytes, std::byte{0}); }
  void upload(std::span<std::byte> to, std::span<const std::byte> from_host) override {
    copy(to, from_host);
  }
  void download(std::span<std::byte> to_host, std::span<const std::byte> from) override {
    copy(to_host, from);
  }
  bool all_zero(std::span<const std::span<const std::byte>> ranges) override {
    return std::ranges::all_of(ranges, [](std::span<const std::byte> range) {
      return std::ranges::all_of(range, [](std::byte b) { return b == std::byte{0}; });
    });
  }
  void wait() override {}

  DeviceStream comm_stream() const override { return {}; }
  void comm_after_codec() override {}
  void codec_after_comm() override {}

  std::uint64_t scratch_bytes() const override { return scratch_.capacity(); }
  void release_scratch() override { scratch_.release(); }

 private:
  ThreadPool pool_;
  Arena scratch_{host_memory()};
};

}  // namespace

std::unique_ptr<CodecBackend> make_host_backend(std::size_t threads) {
  return std::make_unique<HostBackend>(threads);
}

}  // namespace ciera::codec::host
