#include <algorithm>

#include "codec/cuda/delta_assemble_kernels.cuh"
#include "codec/cuda/delta_code_kernels.cuh"
#include "codec/cuda/delta_compare_kernels.cuh"
#include "codec/cuda/delta_encode_state.hpp"
#include "codec/cuda/delta_encode_tables.cuh"
#include "codec/cuda/launch_shape.hpp"
#include "exec/cuda_check.hpp"

namespace ciera::codec::cuda {
namespace {

// Hands out parts of scratch, or only adds up their sizes when there is none.
class Divider {
 public:
  explicit Divider(std::byte* scratch) : scratch_(scratch) {}
  template <class T>
  T* take(std::uint64_t count) {
    T* part = scratch_ == nullptr ? nullptr : reinterpret_cast<T*>(scratch_ + used_);
    used_ += align256(count * sizeof(T));
    return part;
  }
  std::uint64_t used() const { return used_; }

 private:
  std::byte* scratch_;
  std::uint64_t used_ = 0;
};

DeltaScratch divide(const FrameParams& params, Room room, Divider& divider) {
  const std::uint64_t blocks = block_count(params.numel, params.block_size);
  const std::uint64_t segments =
      rans_segments(delta_items(params.effort, params.numel), params.segment_log2);
  const bool quads_needed = params.effort == Effort::kDefault;
  const std::uint64_t quads = quads_needed ? ceil_div(params.numel, 32) * 8 : 0;
  const std::uint64_t escapes = quads_needed ? blocks * block_escape_room(params, room) : 0;
  DeltaScratch parts{};
  parts.exponents = divider.take<std::uint8_t>(is_word_delta(params) ? 0 : params.numel);
  parts.quads = divider.take<std::uint16_t>(quads);
  parts.escapes = divider.take<std::byte>(escapes * own_reference_bytes(params.mode, params.dtype));
  parts.escape_kinds = divider.take<std::uint16_t>(escapes);
  parts.block_escapes = divider.take<std::uint32_t>(quads_needed ? blocks : 0);
  parts.marked = divider.take<std::uint8_t>(quads);
  parts.tile_changed = divider.take<std::uint32_t>(delta_tiles(params.numel, params.block_size));
  parts.list = divider.take<std::uint32_t>(blocks + kQuadListPadding);
  parts.segment_first = divider.take<std::uint64_t>(segments);
  parts.segment_escapes = divider.take<std::uint32_t>(segments);
  parts.words = divider.take<std::uint16_t>(segments * segment_words_room(params, room));
  parts.segment_words = divider.take<std::uint32_t>(segments);
  parts.segment_states = divider.take<std::uint32_t>(kRansLanes * segments);
  return parts;
}

bool is_exponent_delta(const FrameParams& params) { return !is_word_delta(params); }

const std::byte* values_of(const DeltaEncodeCall& call) {
  return is_exponent_delta(call.params) ? reinterpret_cast<const std::byte*>(call.scratch.exponents)
                                        : call.src;
}

CompareArgs compare_args(const DeltaEncodeCall& call) {
  const std::byte* now = values_of(call);
  return {.params = call.params,
          .now = now,
          .old = call.reference,
          .wide = is_wide(now) && is_wide(call.reference),
          .bitmap = call.frame + make_header(call.params, wire::Kind::kDelta).sections[0].offset,
          .escape_room = block_escape_room(call.params, call.room),
          .scratch = call.scratch,
          .state = call.state};
}

DeltaCodeArgs code_args(const DeltaEncodeCall& call) {
  return {.params = call.params,
          .now = values_of(call),
          .old = call.reference,
          .escape_room = block_escape_room(call.params, call.room),
          .words_room = segment_words_room(call.params, call.room),
          .policy = call.policy,
          .frame = call.frame,
          .scratch = call.scratch,
          .state = call.state,
          .outcome = call.outcome};
}

template <class Kind, Effort kEffort>
void launch_compare_as(const DeltaEncodeCall& call, int multiprocessors, cudaStream_t stream) {
  const std::uint64_t tiles = delta_tiles(call.params.numel, call.params.block_size);
  delta_compare_kernel<Kind, kEffort>
      <<<grid_for(tiles, 8ULL * multiprocessors), kThreads, 0, stream>>>(compare_args(call));
  CIERA_CUDA_TRY(cudaGetLastError());
}

template <class Kind, Effort kEffort>
void launch_code_as(const DeltaEncodeCall& call, int multiprocessors, cudaStream_t stream) {
  const DeltaCodeArgs args = code_args(call);
  const std::uint64_t segments =
      rans_segments(delta_items(call.params.effort, call.params.numel), call.params.segment_log2);
  delta_count_kernel<Kind, kEffort>
      <<<grid_for(segments, 4ULL * multiprocessors), kThreads, 0, stream>>>(args);
  CIERA_CUDA_TRY(cudaGetLastError());
  delta_encode_table_kernel<<<kTableGrid, kThreads, 0, stream>>>(args);
  CIERA_CUDA_TRY(cudaGetLastError());
  const std::uint32_t warps = code_warps(segments);
  delta_code_kernel<Kind, kEffort>
      <<<grid_for(ceil_div(segments, warps), 1U << 30), 32 * warps, 0, stream>>>(args);
  CIERA_CUDA_TRY(cudaGetLastError());
}

void launch_seal(const DeltaEncodeCall& call, int multiprocessors, cudaStream_t stream) {
  const unsigned grid =
      grid_for(ceil_div(call.params.numel, 64ULL * kThreads), 8ULL * multiprocessors);
  delta_seal_kernel<<<grid, kThreads, 0, stream>>>(call.state, call.frame, call.result);
  CIERA_CUDA_TRY(cudaGetLastError());
}

template <class Format>
void launch_extract(const ExtractArgs& args, int multiprocessors, cudaStream_t stream) {
  const unsigned grid = grid_for(ceil_div(args.numel, 8ULL * kThreads), 8ULL * multiprocessors);
  extract_kernel<Format><<<grid, kThreads, 0, stream>>>(args);
  CIERA_CUDA_TRY(cudaGetLastError());
}

void launch_extract(DType dtype, const ExtractArgs& args, int multiprocessors,
                    cudaStream_t stream) {
  switch (dtype) {
    case DType::kBf16:
      return launch_extract<Bf16>(args, multiprocessors, stream);
    case DType::kFp16:
      return launch_extract<Fp16>(args, multiprocessors, stream);
    default:
      return launch_extract<Fp32>(args, multiprocessors, stream);
  }
}

template <class Kind, class Format>
void launch_as(const DeltaEncodeCall& call, int multiprocessors, cudaStream_t stream) {
  const FrameParams& params = call.params;
  const CompareArgs args = compare_args(call);
  const bool high = params.effort == Effort::kHigh;
  high ? launch_compare_as<Kind, Effort::kHigh>(call, multiprocessors, stream)
       : launch_compare_as<Kind, Effort::kDefault>(call, multiprocessors, stream);
  launch_changed_list({args.bitmap, block_count(params.numel, params.block_size),
                       delta_tile_blocks(params.numel, params.block_size),
                       delta_tiles(params.numel, params.block_size), call.scratch.tile_changed,
                       call.scratch.list, nullptr},
                      multiprocessors, stream);
  high ? launch_code_as<Kind, Effort::kHigh>(call, multiprocessors, stream)
       : launch_code_as<Kind, Effort::kDefault>(call, multiprocessors, stream);
  const unsigned grid = grid_for(ceil_div(params.numel, 64ULL * kThreads), 8ULL * multiprocessors);
  delta_assemble_kernel<Kind, Format><<<grid, kThreads, 0, stream>>>(code_args(call));
  CIERA_CUDA_TRY(cudaGetLastError());
  launch_seal(call, multiprocessors, stream);
}

// Calls body with the kind of value that is differenced, and the format that exponents have.
template <class Body>
void with_kind(const FrameParams& params, const Body& body) {
  const bool words = is_word_delta(params);
  switch (params.dtype) {
    case DType::kBf16:
      return words ? body(FloatWord<Bf16>{}, Bf16{}) : body(ExponentByte{}, Bf16{});
    case DType::kFp16:
      return words ? body(FloatWord<Fp16>{}, Fp16{}) : body(ExponentByte{}, Fp16{});
    case DType::kFp32:
      return words ? body(FloatWord<Fp32>{}, Fp32{}) : body(ExponentByte{}, Fp32{});
    case DType::kOpaque8:
      return body(OpaqueWord<std::uint8_t>{}, Bf16{});
    case DType::kOpaque16:
      return body(OpaqueWord<std::uint16_t>{}, Bf16{});
    case DType::kOpaque32:
      return body(OpaqueWord<std::uint32_t>{}, Bf16{});
    default:
      return body(OpaqueWord<std::uint64_t>{}, Bf16{});
  }
}

}  // namespace

std::size_t delta_encode_scratch_bytes(const FrameParams& params, Room room) {
  Divider divider(nullptr);
  divide(params, room, divider);
  return divider.used();
}

DeltaScratch divide_delta_scratch(const FrameParams& params, Room room, std::byte* scratch) {
  Divider divider(scratch);
  return divide(params, room, divider);
}

void launch_delta_encode(const DeltaEncodeCall& call, int multiprocessors, cudaStream_t stream) {
  if (is_exponent_delta(call.params)) {
    const wire::FrameHeader header = make_header(call.params, wire::Kind::kDelta);
    launch_extract(call.params.dtype,
                   {call.src, call.params.numel, is_wide(call.src), call.scratch.exponents,
                    reinterpret_cast<std::uint8_t*>(call.frame + header.sections[1].offset)},
                   multiprocessors, stream);
  }
  with_kind(call.params, [&]<class Kind, class Format>(Kind, Format) {
    launch_as<Kind, Format>(call, multiprocessors, stream);
  });
}

void launch_known_frame(const DeltaEncodeCall& call, wire::Kind kind, int multiprocessors,
                        cudaStream_t stream) {
  const wire::FrameHeader header = make_header(call.params, kind);
  if (kind == wire::Kind::kRaw && call.params.numel != 0) {
    CIERA_CUDA_TRY(cudaMemcpyAsync(call.frame + header.sections[0].offset, call.src,
                                   header.sections[0].bytes, cudaMemcpyDeviceToDevice, stream));
  }
  set_header_kernel<<<1, 1, 0, stream>>>(call.state, header, call.frame);
  CIERA_CUDA_TRY(cudaGetLastError());
  launch_seal(call, multiprocessors, stream);
}

void launch_extract_exponents(const FrameParams& params, const std::byte* src,
                              std::uint8_t* exponents, int multiprocessors, cudaStream_t stream) {
  launch_extract(params.dtype, {src, params.numel, is_wide(src), exponents, nullptr},
                 multiprocessors, stream);
}

void launch_delta_compare(const DeltaEncodeCall& call, int multiprocessors, cudaStream_t stream) {
  with_kind(call.params, [&]<class Kind, class Format>(Kind, Format) {
    call.params.effort == Effort::kHigh
        ? launch_compare_as<Kind, Effort::kHigh>(call, multiprocessors, stream)
        : launch_compare_as<Kind, Effort::kDefault>(call, multiprocessors, stream);
  });
}

}  // namespace ciera::codec::cuda
