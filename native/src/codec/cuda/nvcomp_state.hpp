// What is handed to nvCOMP, in GPU memory, and the launches around its calls. The host does not
// know how many exponents a frame has: calls are made for the most it can have, and surplus chunks
// have no bytes.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "codec/cuda/decode_state.hpp"
#include "codec/cuda/encode_state.hpp"
#include "codec/cuda/nvcomp_api.hpp"

namespace ciera::codec::cuda {

// Lists have an entry a chunk.
struct NvcompArrays {
  const void** from;
  std::size_t* from_bytes;
  void** to;
  std::size_t* to_bytes;   // compressing: what came out; decompressing: what there is room for
  std::uint64_t* places;   // compressing: where chunks begin behind the section's table
  std::size_t* out_bytes;  // decompressing: what came out
  nvcomp::Status* statuses;
  std::byte* chunks;  // compressing: room for each chunk; decompressing: zeros, for surplus chunks
  std::uint64_t chunk_stride;
  std::byte* temp;
};

struct NvcompCall {
  const nvcomp::Api* api;
  NvcompArrays arrays;
  std::size_t temp_bytes;
  int* failure;  // host memory that the GPU can write: a status, when compressing fails
};

// How much of it calls need that use it one after the other: the most of each.
struct NvcompSizes {
  std::uint64_t chunks = 0;
  std::uint64_t chunk_room = 0;    // bytes of NvcompArrays::chunks
  std::uint64_t chunk_stride = 0;  // the same for all calls
  std::size_t temp_bytes = 0;

  std::size_t bytes() const;
  void include(const NvcompSizes& other);
};
// Throw Error (kLibrary).
NvcompSizes nvcomp_encode_sizes(const nvcomp::Api& api, std::uint64_t numel, cudaStream_t stream);
NvcompSizes nvcomp_decode_sizes(const nvcomp::Api& api, std::uint64_t numel, cudaStream_t stream);

// `scratch`: sizes.bytes(), aligned to 256.
NvcompCall divide_nvcomp_scratch(const nvcomp::Api& api, const NvcompSizes& sizes,
                                 std::byte* scratch, int* failure);

// Between compaction and assembly: compresses, and decides the frame. Throws Error (kLibrary,
// kDevice).
void launch_nvcomp_encode(const EncodeCall& call, cudaStream_t stream);
// After assembly: the section, when it is coded.
void launch_nvcomp_assemble(const EncodeCall& call, int multiprocessors, cudaStream_t stream);
// Before the merge: exponents of a coded section to `call.symbols`, or verdict bad_stream.
void launch_nvcomp_decode(const DecodeCall& call, cudaStream_t stream);

}  // namespace ciera::codec::cuda
