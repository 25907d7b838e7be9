// Times the host codec on consecutive steps of one shard.
//   codec_bench FILE DTYPE NUMEL MODE CODER BLOCK_SIZE THREADS SECONDS
// FILE holds the steps' words one after the other. Each pass encodes all steps in order (the first
// as a key frame) and decodes what it encoded. Prints one JSON object: seconds are medians over
// passes of the steady steps' sum.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <span>
#include <string>
#include <vector>

#include "codec/host/frame_codec.hpp"
#include "codec/host/rans.hpp"
#include "exec/thread_pool.hpp"

namespace {

using ciera::codec::BlockHash;
using ciera::codec::FrameParams;
namespace host = ciera::codec::host;

double now_s() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

double median(std::vector<double> times) {
  std::nth_element(times.begin(), times.begin() + static_cast<std::ptrdiff_t>(times.size() / 2),
                   times.end());
  return times[times.size() / 2];
}

struct Pass {
  double encode_s = 0;
  double check_s = 0;
  double decode_s = 0;
  std::uint64_t wire_bytes = 0;
  std::uint64_t changed_blocks = 0;
  std::uint64_t key_bytes = 0;
};

class Bench {
 public:
  Bench(FrameParams params, std::vector<char> words, std::size_t threads)
      : params_(params),
        words_(std::move(words)),
        step_bytes_(params.numel * element_bytes(params.dtype)),
        pool_(threads) {
    frame_.resize(ciera::codec::max_frame_bytes(params_));
    scratch_.resize(
        std::max(host::encode_scratch_bytes(params_), host::decode_scratch_bytes(params_)));
    cache_.resize(params_.numel * ciera::codec::reference_bytes(params_.mode, params_.dtype));
    own_.resize(params_.numel * ciera::codec::own_reference_bytes(params_.mode, params_.dtype));
    out_.resize(step_bytes_);
  }

  std::size_t steps() const { return words_.size() / step_bytes_; }

  Pass run() {
    Pass pass;
    std::vector<BlockHash> hashes(ciera::codec::block_count(params_.numel, params_.block_size));
    std::vector<BlockHash> staged(hashes.size());
    FrameParams params = params_;
    for (std::size_t step = 0; step < steps(); ++step) {
      const auto src = std::as_bytes(std::span(words_).subspan(step * step_bytes_, step_bytes_));
      const double start = now_s();
      const auto result = encode(params, src, hashes, staged);
      const double encoded = now_s();
      const std::span frame(frame_.data(), result.frame_bytes);
      ciera::codec::FrameInfo info;
      const bool good = host::check(params, frame, &info, &pool_) == ciera::Verdict::kOk;
      const double checked = now_s();
      if (!good ||
          host::decode(params, frame, cache_, out_, scratch_, &pool_) != ciera::Verdict::kOk) {
        std::abort();
      }
      const double decoded = now_s();
      if (std::memcmp(out_.data(), src.data(), step_bytes_) != 0) {
        std::abort();
      }
      if (step == 0) {
        pass.key_bytes = result.frame_bytes;
      } else {
        pass.encode_s += encoded - start;
        pass.check_s += checked - encoded;
        pass.decode_s += decoded - encoded;
        pass.wire_bytes += result.frame_bytes;
        pass.changed_blocks += result.changed_blocks;
      }
      if (ciera::is_stateful(params.mode)) {
        std::swap(hashes, staged);
        params.base_epoch = step + 1;
        params.base_digest = result.checksum;
      }
    }
    return pass;
  }

  double copy_s() {
    double seconds = 0;
    for (std::size_t step = 1; step < steps(); ++step) {
      const double start = now_s();
      std::memcpy(out_.data(), words_.data() + step * step_bytes_, step_bytes_);
      seconds += now_s() - start;
    }
    return seconds;
  }

 private:
  // With bringing the own reference up to date: a sender has to.
  ciera::codec::EncodeResult encode(const FrameParams& params, std::span<const std::byte> src,
                                    std::span<const BlockHash> hashes,
                                    std::span<BlockHash> staged) {
    if (params.mode < ciera::ReuseMode::kExponentDelta) {
      return host::encode(params, src, hashes, staged, frame_, scratch_, &pool_);
    }
    const auto result =
        host::encode(params, src, host::OwnReference{own_}, frame_, scratch_, &pool_);
    host::store_reference(params, src, own_, &pool_);
    return result;
  }

  FrameParams params_;
  std::vector<char> words_;
  std::size_t step_bytes_;
  ciera::ThreadPool pool_;
  std::vector<std::byte> frame_;
  std::vector<std::byte> scratch_;
  std::vector<std::byte> cache_;
  std::vector<std::byte> own_;
  std::vector<std::byte> out_;
};

}  // namespace

int main(int argc, char** argv) {
  if (argc != 10) {
    std::fprintf(stderr,
                 "usage: codec_bench FILE DTYPE NUMEL MODE CODER BLOCK_SIZE THREADS SECONDS "
                 "EFFORT\n");
    return 2;
  }
  std::ifstream file(argv[1], std::ios::binary);
  std::vector<char> words{std::istreambuf_iterator<char>(file), {}};
  const auto dtype = ciera::dtype_from_name(argv[2]);
  const auto mode = ciera::reuse_mode_from_name(argv[4]);
  const auto coder = ciera::coder_from_name(argv[5]);
  const auto effort = ciera::effort_from_name(argv[9]);
  if (!dtype || !mode || !coder || !effort || *mode == ciera::ReuseMode::kOff) {
    std::fprintf(stderr, "codec_bench: unknown dtype, mode, coder or effort\n");
    return 2;
  }
  const FrameParams params{.mode = *mode,
                           .coder = *coder,
                           .dtype = *dtype,
                           .block_size = static_cast<std::uint32_t>(std::atoi(argv[6])),
                           .numel = static_cast<std::uint64_t>(std::atoll(argv[3])),
                           .shard_key = 1,
                           .effort = *effort};
  Bench bench(params, std::move(words), static_cast<std::size_t>(std::atoi(argv[7])));
  if (bench.steps() < 2) {
    std::fprintf(stderr, "codec_bench: %s holds fewer than two steps\n", argv[1]);
    return 2;
  }
  std::vector<double> encode_s;
  std::vector<double> check_s;
  std::vector<double> decode_s;
  std::vector<double> copy_s;
  Pass pass = bench.run();  // warm-up
  for (const double end = now_s() + std::atof(argv[8]); now_s() < end || encode_s.size() < 3;) {
    pass = bench.run();
    encode_s.push_back(pass.encode_s);
    check_s.push_back(pass.check_s);
    decode_s.push_back(pass.decode_s);
    copy_s.push_back(bench.copy_s());
  }
  std::printf(
      "{\"steps\": %zu, \"wire_bytes\": %llu, \"key_bytes\": %llu, \"changed_blocks\": %llu, "
      "\"encode_s\": %.9f, \"check_s\": %.9f, \"decode_s\": %.9f, \"memcpy_s\": %.9f}\n",
      bench.steps() - 1, static_cast<unsigned long long>(pass.wire_bytes),
      static_cast<unsigned long long>(pass.key_bytes),
      static_cast<unsigned long long>(pass.changed_blocks), median(encode_s), median(check_s),
      median(decode_s), median(copy_s));
  return 0;
}
