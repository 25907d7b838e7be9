#include <algorithm>

#include "codec/cuda/launch_shape.hpp"
#include "codec/cuda/nvcomp_kernels.cuh"
#include "codec/cuda/nvcomp_state.hpp"
#include "exec/cuda_check.hpp"

namespace ciera::codec::cuda {
namespace {

constexpr std::uint64_t kZeroBytes = 4096;  // what surplus chunks point at when decompressing

unsigned grid_of(std::uint64_t chunks) { return static_cast<unsigned>(ceil_div(chunks, kThreads)); }

NvcompEncodeArgs encode_args(const EncodeCall& call) {
  return {call.params, call.nvcomp->arrays, call.scratch.exponents,
          call.state,  call.frame,          call.nvcomp->failure};
}

}  // namespace

std::size_t NvcompSizes::bytes() const {
  // Six lists of 8 bytes an entry, one of 4.
  return 6 * align256(8 * chunks) + align256(4 * chunks) + align256(chunk_room) +
         align256(temp_bytes);
}

void NvcompSizes::include(const NvcompSizes& other) {
  chunks = std::max(chunks, other.chunks);
  chunk_room = std::max(chunk_room, other.chunk_room);
  chunk_stride = std::max(chunk_stride, other.chunk_stride);
  temp_bytes = std::max(temp_bytes, other.temp_bytes);
}

NvcompSizes nvcomp_encode_sizes(const nvcomp::Api& api, std::uint64_t numel, cudaStream_t stream) {
  const std::uint64_t chunks = nvcomp_chunks(numel);
  if (chunks == 0) {
    return {};
  }
  const std::uint64_t stride = align256(api.compressed_bytes_limit(kNvcompChunkBytes));
  return {chunks, chunks * stride, stride,
          api.compress_temp_bytes(chunks, kNvcompChunkBytes, stream)};
}

NvcompSizes nvcomp_decode_sizes(const nvcomp::Api& api, std::uint64_t numel, cudaStream_t stream) {
  const std::uint64_t chunks = nvcomp_chunks(numel);
  if (chunks == 0) {
    return {};
  }
  return {chunks, kZeroBytes, 0, api.decompress_temp_bytes(chunks, kNvcompChunkBytes, stream)};
}

NvcompCall divide_nvcomp_scratch(const nvcomp::Api& api, const NvcompSizes& sizes,
                                 std::byte* scratch, int* failure) {
  const auto take = [&scratch](std::uint64_t bytes) {
    std::byte* part = scratch;
    scratch += align256(bytes);
    return part;
  };
  const std::uint64_t list = 8 * sizes.chunks;
  NvcompArrays arrays{};
  arrays.from = reinterpret_cast<const void**>(take(list));
  arrays.from_bytes = reinterpret_cast<std::size_t*>(take(list));
  arrays.to = reinterpret_cast<void**>(take(list));
  arrays.to_bytes = reinterpret_cast<std::size_t*>(take(list));
  arrays.places = reinterpret_cast<std::uint64_t*>(take(list));
  arrays.out_bytes = reinterpret_cast<std::size_t*>(take(list));
  arrays.statuses = reinterpret_cast<nvcomp::Status*>(take(4 * sizes.chunks));
  arrays.chunks = take(sizes.chunk_room);
  arrays.chunk_stride = sizes.chunk_stride;
  arrays.temp = take(sizes.temp_bytes);
  return {&api, arrays, sizes.temp_bytes, failure};
}

void launch_nvcomp_encode(const EncodeCall& call, cudaStream_t stream) {
  const NvcompEncodeArgs args = encode_args(call);
  const NvcompArrays& arrays = args.arrays;
  const std::uint64_t chunks = nvcomp_chunks(call.params.numel);
  if (chunks > 0) {
    nvcomp_list_exponents_kernel<<<grid_of(chunks), kThreads, 0, stream>>>(args, chunks);
    CIERA_CUDA_TRY(cudaGetLastError());
    CIERA_NVCOMP_TRY(*call.nvcomp->api, call.nvcomp->api->compress(
                                            arrays.from, arrays.from_bytes, kNvcompChunkBytes,
                                            chunks, arrays.temp, call.nvcomp->temp_bytes, arrays.to,
                                            arrays.to_bytes, {}, arrays.statuses, stream));
  }
  nvcomp_decide_kernel<<<1, kThreads, 0, stream>>>(args);
  CIERA_CUDA_TRY(cudaGetLastError());
}

void launch_nvcomp_assemble(const EncodeCall& call, int multiprocessors, cudaStream_t stream) {
  const std::uint64_t chunks = nvcomp_chunks(call.params.numel);
  if (chunks == 0) {
    return;
  }
  const auto grid = static_cast<unsigned>(
      std::min<std::uint64_t>(chunks, 8ULL * static_cast<std::uint64_t>(multiprocessors)));
  nvcomp_assemble_kernel<<<grid, kThreads, 0, stream>>>(encode_args(call));
  CIERA_CUDA_TRY(cudaGetLastError());
}

void launch_nvcomp_decode(const DecodeCall& call, cudaStream_t stream) {
  const NvcompArrays& arrays = call.nvcomp->arrays;
  const std::uint64_t chunks = nvcomp_chunks(call.expected.numel);
  if (chunks == 0) {
    return;
  }
  CIERA_CUDA_TRY(cudaMemsetAsync(arrays.chunks, 0, kZeroBytes, stream));
  nvcomp_list_chunks_kernel<<<grid_of(chunks), kThreads, 0, stream>>>(call, arrays, chunks);
  CIERA_CUDA_TRY(cudaGetLastError());
  CIERA_NVCOMP_TRY(
      *call.nvcomp->api,
      call.nvcomp->api->decompress(arrays.from, arrays.from_bytes, arrays.to_bytes,
                                   arrays.out_bytes, chunks, arrays.temp, call.nvcomp->temp_bytes,
                                   arrays.to, {}, arrays.statuses, stream));
  nvcomp_verify_kernel<<<grid_of(chunks), kThreads, 0, stream>>>(call, arrays);
  CIERA_CUDA_TRY(cudaGetLastError());
}

}  // namespace ciera::codec::cuda
