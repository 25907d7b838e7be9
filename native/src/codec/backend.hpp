// The seam between the orchestrator and where shards lie: one implementation for host memory, one
// for a GPU. The orchestrator never dereferences what it passes here.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "ciera/types.hpp"
#include "codec/frame.hpp"
#include "exec/memory.hpp"

namespace ciera::codec {

struct EncodeJob {
  FrameParams params;
  std::span<const std::byte> src{};         // numel elements
  std::span<const std::byte> old_hashes{};  // BlockHash of the reference; empty in a key frame
  std::span<std::byte> new_hashes{};  // BlockHash of this input; may be empty in exponent-only
  // exponent-delta, word-delta: own exponents or words as of the reference, aligned to an element;
  // empty in a key frame.
  std::span<const std::byte> own_reference{};
  // exponent-block and exponent-delta with params.words_held: own words as of the reference, when
  // they are known. src equal to them, or claimed to be unchanged, makes a same frame.
  std::span<const std::byte> own_words{};
  Claim claim = Claim::kCompare;
  std::span<std::byte> frame{};  // at least max_frame_bytes, aligned to 16
  EncodeResult result{};         // written by encode
};

struct DecodeJob {
  FrameParams expected;
  std::span<const std::byte> frame{};  // exactly one frame, aligned to 16 on a GPU
  // ExpCache of the peer, in word-delta its WordCache (aligned to an element); empty in
  // exponent-only.
  std::span<std::byte> exponents{};
  std::span<std::byte> dst{};      // numel elements; may be the WordCache: then nothing is copied
  FrameInfo info{};                // written when the frame is valid
  Verdict verdict = Verdict::kOk;  // written by finish_decode
};

// Calls come from one thread at a time, except `mark`. What they start runs in the order of the
// calls; `wait` and `finish_decode` block until it has run.
class CodecBackend {
 public:
  virtual ~CodecBackend() = default;

  virtual Backend kind() const = 0;
  virtual MemoryResource& memory() = 0;
  // Host memory that uploads and downloads are fastest with.
  virtual MemoryResource& staging_memory() = 0;
  // 2^n symbols in a rans segment: fewer where many segments must run side by side.
  virtual std::uint32_t segment_log2(ReuseMode mode, Effort effort, std::uint64_t numel) const = 0;

  // What `caller` holds now; later calls run after it. Any thread. Null when there is nothing to
  // wait for.
  virtual std::shared_ptr<void> mark(DeviceStream caller) = 0;
  virtual void start_after(const std::shared_ptr<void>& mark) = 0;

  // Encodes all jobs and fills their results; blocks. Throws Error (kOutOfMemory) before anything
  // is written, or Error (kDevice).
  virtual void encode(std::span<EncodeJob> jobs) = 0;

  // Checks every frame, and only if all of them are valid decodes them. A job whose frame is
  // refused leaves the dst and exponents of all jobs as they were; one whose stream turns out to be
  // damaged while decoding leaves them unspecified. `jobs` must stay until finish_decode.
  virtual void start_decode(std::span<DecodeJob> jobs) = 0;
  virtual void finish_decode(std::span<DecodeJob> jobs) = 0;

  // Makes `reference` (EncodeJob::own_reference of the next frame) what `src` is: its words, in
  // exponent-delta its exponents.
  virtual void store_reference(const FrameParams& params, std::span<const std::byte> src,
                               std::span<std::byte> reference) = 0;

  virtual void copy(std::span<std::byte> to, std::span<const std::byte> from) = 0;
  virtual void zero(std::span<std::byte> bytes) = 0;
  // Between host memory and this backend's; complete after wait().
  virtual void upload(std::span<std::byte> to, std::span<const std::byte> from_host) = 0;
  virtual void download(std::span<std::byte> to_host, std::span<const std::byte> from) = 0;
  // Whether all of these bytes are zero; blocks.
  virtual bool all_zero(std::span<const std::span<const std::byte>> ranges) = 0;
  virtual void wait() = 0;

  // A GPU's stream for exchanges, and the order between it and the codec's: what follows on the one
  // runs after what is on the other now.
  virtual DeviceStream comm_stream() const = 0;
  virtual void comm_after_codec() = 0;
  virtual void codec_after_comm() = 0;

  virtual std::uint64_t scratch_bytes() const = 0;
  virtual void release_scratch() = 0;
};

}  // namespace ciera::codec
