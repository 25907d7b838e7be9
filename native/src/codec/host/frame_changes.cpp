#include "codec/host/frame_changes.hpp"

#include <algorithm>
#include <cstring>

#include "codec/host/delta_host.hpp"
#include "codec/host/delta_layout.hpp"
#include "codec/host/frame_parts.hpp"
#include "codec/host/large_copy.hpp"
#include "codec/host/split_host.hpp"
#include "exec/thread_pool.hpp"

namespace ciera::codec::host {
namespace {

using wire::FrameHeader;
using wire::Kind;
using wire::Section;

std::uint64_t value_bytes(const FrameParams& params) {
  return own_reference_bytes(params.mode, params.dtype);
}

// scratch: the changed blocks, exponents (exponent-delta), then what the section coder needs.
struct Work {
  std::uint64_t* blocks;
  std::uint8_t* exponents;
  std::span<std::byte> coder;
};

Work divide(const FrameParams& params, std::span<std::byte> scratch) {
  ScratchDivider divider(scratch);
  Work work{};
  work.blocks = divider.take<std::uint64_t>(block_count(params.numel, params.block_size));
  work.exponents = divider.take<std::uint8_t>(is_word_delta(params) ? 0 : params.numel);
  auto* rest = divider.take<std::byte>(0);
  work.coder = scratch.subspan(static_cast<std::size_t>(rest - scratch.data()));
  return work;
}

std::size_t divided_bytes(const FrameParams& params) {
  return kScratchAlign +
         ScratchDivider::bytes_of<std::uint64_t>(block_count(params.numel, params.block_size)) +
         ScratchDivider::bytes_of<std::uint8_t>(is_word_delta(params) ? 0 : params.numel);
}

// A byte of the bitmap belongs to one chunk: chunks are of 64 blocks or more, whole bytes.
void mark_changed(const FrameParams& params, const std::byte* old, const std::byte* now,
                  std::byte* bitmap, ThreadPool* pool) {
  const std::uint64_t width = value_bytes(params);
  const std::uint64_t blocks = block_count(params.numel, params.block_size);
  const std::uint64_t chunk = std::max<std::uint64_t>(64, 65536 / params.block_size / 8 * 8);
  std::memset(bitmap, 0, bitmap_bytes(blocks));
  parallel_for(pool, ceil_div(blocks, chunk), [&](std::size_t c) {
    for (std::uint64_t b = c * chunk; b < std::min(blocks, (c + 1) * chunk); ++b) {
      const std::uint64_t at = b * params.block_size * width;
      if (std::memcmp(old + at, now + at, values_in(b, params) * width) != 0) {
        bitmap[b / 8] |= std::byte{1} << (b % 8);
      }
    }
  });
}

ChangedBlocks list_changed(const FrameParams& params, const std::byte* bitmap,
                           std::uint64_t* blocks) {
  const std::uint64_t all = block_count(params.numel, params.block_size);
  std::uint64_t count = 0;
  std::uint64_t values = 0;
  for (std::uint64_t b = 0; b < all; ++b) {
    if (is_set(bitmap, b)) {
      blocks[count++] = b;
      values += values_in(b, params);
    }
  }
  return {{blocks, count}, values};
}

// The values of the changed blocks, one block after the other; mode exponent-delta stores
// exponents, packed for FP16, so they are put together in `spare` first.
void store_changes(const FrameParams& params, const ChangedBlocks& changed, const std::byte* now,
                   std::byte* spare, std::byte* to) {
  const std::uint64_t width = value_bytes(params);
  std::byte* gathered = is_word_delta(params) ? to : spare;
  for (const std::uint64_t block : changed.blocks) {
    const std::uint64_t bytes = values_in(block, params) * width;
    std::memcpy(gathered, now + block * params.block_size * width, bytes);
    gathered += bytes;
  }
  if (!is_word_delta(params)) {
    store_exponents(params.dtype, reinterpret_cast<const std::uint8_t*>(spare), changed.values, to);
  }
}

void load_changes(const FrameParams& params, const ChangedBlocks& changed, const std::byte* from,
                  std::byte* spare, std::byte* values) {
  const std::uint64_t width = value_bytes(params);
  if (!is_word_delta(params)) {
    load_exponents(params.dtype, from, changed.values, reinterpret_cast<std::uint8_t*>(spare));
    from = spare;
  }
  for (const std::uint64_t block : changed.blocks) {
    const std::uint64_t bytes = values_in(block, params) * width;
    std::memcpy(values + block * params.block_size * width, from, bytes);
    from += bytes;
  }
}

}  // namespace

std::size_t changes_encode_scratch_bytes(const FrameParams& params) {
  return divided_bytes(params) +
         std::max<std::size_t>(params.numel, delta_encode_scratch_bytes(params));
}

std::size_t changes_decode_scratch_bytes(const FrameParams& params) {
  return divided_bytes(params) +
         std::max<std::size_t>(params.numel, delta_decode_scratch_bytes(params));
}

wire::FrameHeader make_changes(const FrameParams& params, std::span<const std::byte> src,
                               OwnReference reference, std::span<std::byte> frame,
                               std::span<std::byte> scratch, ThreadPool* pool,
                               std::uint64_t* changed_blocks) {
  const bool words = is_word_delta(params);
  *changed_blocks = 0;
  if (words && reference.claim == Claim::kUnchanged) {
    return make_header(params, Kind::kSame);
  }
  const Work work = divide(params, scratch);
  FrameHeader header = make_header(params, Kind::kDelta);
  const std::byte* now = src.data();
  if (!words) {
    std::byte* rest = frame.data() + header.sections[1].offset;
    for_chunks(params, pool,
               [&](Range range) { split(params.dtype, range, src.data(), work.exponents, rest); });
    now = reinterpret_cast<const std::byte*>(work.exponents);
  }
  std::byte* bitmap = frame.data() + header.sections[0].offset;
  mark_changed(params, reference.values.data(), now, bitmap, pool);
  const ChangedBlocks changed = list_changed(params, bitmap, work.blocks);
  *changed_blocks = changed.blocks.size();
  if (words && changed.blocks.empty()) {
    return make_header(params, Kind::kSame);
  }
  Section& section = header.last();
  const std::uint64_t stored = stored_change_bytes(params, changed.values);
  const auto out = frame.subspan(section.offset, stored);
  section.bytes =
      params.coder == Coder::kRans && changed.values != 0
          ? delta_encode(params, changed, reference.values.data(), now, out, work.coder, pool)
          : 0;
  section.coder = section.bytes != 0 ? Coder::kRans : Coder::kRaw;
  if (section.bytes == 0) {
    store_changes(params, changed, now, work.coder.data(), out.data());
    section.bytes = stored;
  }
  wire::lay_out(header);
  return header;
}

Verdict check_changes(const FrameParams& expected, const Section& section,
                      std::span<const std::byte> frame, std::uint64_t values) {
  if (section.coder == Coder::kRans) {
    return delta_check(expected, frame.subspan(section.offset, section.bytes), values);
  }
  return section.bytes == stored_change_bytes(expected, values) ? Verdict::kOk : Verdict::kBadSizes;
}

void copy_bytes(std::span<std::byte> to, std::span<const std::byte> from, ThreadPool* pool) {
  constexpr std::size_t kChunk = 1 << 20;
  if (to.data() == from.data()) {
    return;
  }
  parallel_for(pool, ceil_div(from.size(), kChunk), [&](std::size_t c) {
    const auto part = from.subspan(c * kChunk, std::min(kChunk, from.size() - c * kChunk));
    copy_part(to.data() + c * kChunk, part.data(), part.size(), from.size());
  });
}

Verdict decode_changes(const FrameParams& expected, const FrameHeader& header,
                       std::span<const std::byte> frame, std::span<std::byte> cache,
                       std::span<std::byte> dst, std::span<std::byte> scratch, ThreadPool* pool) {
  if (header.kind == Kind::kSame) {
    copy_bytes(dst, cache, pool);
    return Verdict::kOk;
  }
  const Work work = divide(expected, scratch);
  const ChangedBlocks changed =
      list_changed(expected, frame.data() + header.sections[0].offset, work.blocks);
  const auto section = frame.subspan(header.last().offset, header.last().bytes);
  if (header.last().coder == Coder::kRans) {
    const bool copies = is_word_delta(expected) && dst.data() != cache.data();
    const Verdict verdict = delta_decode(expected, section, changed, cache.data(),
                                         copies ? dst : std::span<std::byte>(), work.coder, pool);
    if (verdict != Verdict::kOk || is_word_delta(expected)) {
      return verdict;
    }
  } else {
    load_changes(expected, changed, section.data(), work.coder.data(), cache.data());
  }
  if (is_word_delta(expected)) {
    copy_bytes(dst, cache, pool);
    return Verdict::kOk;
  }
  const std::byte* rest = frame.data() + header.sections[1].offset;
  const auto* exponents = reinterpret_cast<const std::uint8_t*>(cache.data());
  for_chunks(expected, pool,
             [&](Range range) { merge(expected.dtype, range, exponents, rest, dst.data()); });
  return Verdict::kOk;
}

void store_reference(const FrameParams& params, std::span<const std::byte> src,
                     std::span<std::byte> reference, ThreadPool* pool) {
  if (is_word_delta(params)) {
    copy_bytes(reference, src, pool);
    return;
  }
  for_chunks(params, pool, [&](Range range) {
    extract_exponents(params.dtype, range, src.data(),
                      reinterpret_cast<std::uint8_t*>(reference.data()));
  });
}

}  // namespace ciera::codec::host
