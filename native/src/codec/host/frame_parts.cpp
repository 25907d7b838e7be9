#include "codec/host/frame_parts.hpp"

#include <algorithm>
#include <cstring>

#include "codec/host/digest_host.hpp"
#include "exec/thread_pool.hpp"

namespace ciera::codec::host {

using wire::FrameHeader;
using wire::Section;

namespace {

std::uint64_t chunk_values(std::uint32_t block_size) {
  return std::max<std::uint64_t>(1, 65536 / block_size) * block_size;
}

Range chunk_range(std::size_t chunk, std::uint64_t size, std::uint64_t numel) {
  return {chunk * size, std::min(numel, (chunk + 1) * size), numel};
}

}  // namespace

void for_chunks(const FrameParams& params, ThreadPool* pool,
                const std::function<void(Range)>& body) {
  const std::uint64_t size = chunk_values(params.block_size);
  parallel_for(pool, (params.numel + size - 1) / size,
               [&](std::size_t c) { body(chunk_range(c, size, params.numel)); });
}

void write_frame(FrameHeader& header, std::span<std::byte> frame, ThreadPool* pool) {
  std::uint64_t end = wire::header_bytes(header.section_count);
  for (std::uint32_t i = 0; i < header.section_count; ++i) {
    const Section& section = header.sections[i];
    std::memset(frame.data() + end, 0, section.offset - end);
    end = section.offset + section.bytes;
  }
  header.checksum = 0;
  wire::write_header(header, frame.data());
  header.checksum = frame_checksum(frame.first(header.frame_bytes), pool);
  wire::write_header(header, frame.data());
}

Verdict read_bitmap(const FrameParams& expected, const std::byte* bitmap, std::uint64_t* changed,
                    std::uint64_t* values) {
  const std::uint64_t blocks = block_count(expected.numel, expected.block_size);
  for (std::uint64_t b = blocks; b < 8 * bitmap_bytes(blocks); ++b) {
    if (is_set(bitmap, b)) {
      return Verdict::kBadBitmap;
    }
  }
  *changed = 0;
  *values = 0;
  for (std::uint64_t b = 0; b < blocks; ++b) {
    if (is_set(bitmap, b)) {
      ++*changed;
      *values += values_in(b, expected);
    }
  }
  return Verdict::kOk;
}

}  // namespace ciera::codec::host
