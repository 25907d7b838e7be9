// The parts of frames that code changes against a reference: delta and same frames of
// exponent-delta and word-delta (docs/wire-format.md, sections 2 and 11).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "codec/frame.hpp"
#include "codec/host/frame_codec.hpp"
#include "wire/frame_header.hpp"

namespace ciera::codec::host {

std::size_t changes_encode_scratch_bytes(const FrameParams& params);
std::size_t changes_decode_scratch_bytes(const FrameParams& params);

// Writes the sections of a delta frame, or none when it is a same frame, and returns its header,
// laid out.
wire::FrameHeader make_changes(const FrameParams& params, std::span<const std::byte> src,
                               OwnReference reference, std::span<std::byte> frame,
                               std::span<std::byte> scratch, ThreadPool* pool,
                               std::uint64_t* changed_blocks);

// `values`: of the changed blocks.
Verdict check_changes(const FrameParams& expected, const wire::Section& section,
                      std::span<const std::byte> frame, std::uint64_t values);

// Arguments as of decode.
Verdict decode_changes(const FrameParams& expected, const wire::FrameHeader& header,
                       std::span<const std::byte> frame, std::span<std::byte> cache,
                       std::span<std::byte> dst, std::span<std::byte> scratch, ThreadPool* pool);

// Of equal length.
bool equal_bytes(std::span<const std::byte> a, std::span<const std::byte> b, ThreadPool* pool);
// Nothing when they are the same memory.
void copy_bytes(std::span<std::byte> to, std::span<const std::byte> from, ThreadPool* pool);

}  // namespace ciera::codec::host
