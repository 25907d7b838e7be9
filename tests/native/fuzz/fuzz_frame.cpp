// Contract: whatever the bytes, `check` and `decode` give a verdict and touch nothing outside their
// arguments, and what an accepted frame decodes to depends on the frame and the reference only,
// never on what lay in the buffers before.
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <span>
#include <vector>

#include "codec/host/digest_host.hpp"
#include "codec/host/frame_codec.hpp"
#include "wire/frame_header.hpp"

namespace host = ciera::codec::host;

namespace {

void require(bool held) {
  if (!held) {
    std::abort();
  }
}

// Decodes twice over different garbage: the words must depend on the frame and the reference only.
void check_accepted(const ciera::codec::FrameParams& params, std::span<const std::byte> frame) {
  std::vector<std::byte> scratch(host::decode_scratch_bytes(params));
  const std::uint64_t cache_bytes =
      params.numel * ciera::codec::reference_bytes(params.mode, params.dtype);
  // A same frame of an exponent mode says that the words lie where it would be decoded to.
  const bool held =
      params.words_held && static_cast<ciera::wire::Kind>(frame[5]) == ciera::wire::Kind::kSame;
  std::vector<std::byte> words[2];
  ciera::Verdict verdicts[2];
  for (int i = 0; i < 2; ++i) {
    std::vector<std::byte> cache(cache_bytes, std::byte{3});
    words[i].assign(params.numel * element_bytes(params.dtype), static_cast<std::byte>(17 * i));
    verdicts[i] = host::decode(params, frame, cache, words[i], scratch, nullptr);
  }
  require(verdicts[0] == verdicts[1]);
  if (held) {
    for (int i = 0; i < 2; ++i) {
      const std::vector<std::byte> before(words[i].size(), static_cast<std::byte>(17 * i));
      require(verdicts[i] == ciera::Verdict::kOk && words[i] == before);
    }
    return;
  }
  require(verdicts[0] != ciera::Verdict::kOk || words[0] == words[1]);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto input = std::as_bytes(std::span(data, size));
  std::vector<std::byte> frame(input.begin(), input.end());
  ciera::wire::FrameHeader header;
  const bool readable =
      ciera::wire::read_header(frame.data(), frame.size(), &header) == ciera::Verdict::kOk;
  // What the receiver expects: the frame's own claims when they are small, so that the checks
  // behind them are reached.
  ciera::codec::FrameParams params{.numel = 1000};
  if (readable && header.numel <= 1 << 20) {
    params = {.mode = header.mode,
              .dtype = header.dtype,
              .block_size = header.block_size,
              .numel = header.numel,
              .shard_key = header.shard_key,
              .base_epoch = header.base_epoch,
              .base_digest = header.base_digest,
              .words_held = header.mode != ciera::ReuseMode::kWordDelta};
    const std::uint64_t checksum = host::frame_checksum(frame, nullptr);
    std::memcpy(frame.data() + ciera::wire::kChecksumOffset, &checksum, sizeof checksum);
  }
  ciera::codec::FrameInfo info;
  if (host::check(params, frame, &info, nullptr) == ciera::Verdict::kOk) {
    require(info.frame_bytes == frame.size());
    check_accepted(params, frame);
  }
  return 0;
}
