// A libnvcomp that can be loaded and does nothing. FAKE_NVCOMP_VERSION is what it says it is; with
// FAKE_NVCOMP_FORMER_NAMES temp sizes have their names of before 6, with
// FAKE_NVCOMP_WITHOUT_DECOMPRESS one symbol is missing, FAKE_NVCOMP_ALIGNMENT is what it asks for.
#include <cstddef>
#include <cstdint>

#include "codec/cuda/nvcomp_api.hpp"

#ifndef FAKE_NVCOMP_ALIGNMENT
#define FAKE_NVCOMP_ALIGNMENT 16
#endif

#define FAKE_NVCOMP_API extern "C" __attribute__((visibility("default"))) int

using ciera::nvcomp::Alignments;
using ciera::nvcomp::CompressOptions;
using ciera::nvcomp::DecompressOptions;

FAKE_NVCOMP_API nvcompGetProperties(ciera::nvcomp::Properties* properties) {
  properties->version = FAKE_NVCOMP_VERSION;
  return 0;
}
FAKE_NVCOMP_API nvcompBatchedANSCompressGetRequiredAlignments(CompressOptions, Alignments* to) {
  *to = {1, FAKE_NVCOMP_ALIGNMENT, 8};
  return 0;
}
FAKE_NVCOMP_API nvcompBatchedANSDecompressGetRequiredAlignments(DecompressOptions, Alignments* to) {
  *to = {1, 1, 8};
  return 0;
}
FAKE_NVCOMP_API nvcompBatchedANSCompressGetMaxOutputChunkSize(std::size_t, CompressOptions,
                                                              std::size_t*) {
  return 18;
}
#ifdef FAKE_NVCOMP_FORMER_NAMES
FAKE_NVCOMP_API nvcompBatchedANSCompressGetTempSizeAsync(std::size_t chunks, std::size_t,
                                                         CompressOptions, std::size_t* bytes,
                                                         std::size_t total) {
  *bytes = total + chunks;
  return 0;
}
FAKE_NVCOMP_API nvcompBatchedANSDecompressGetTempSizeAsync(std::size_t chunks, std::size_t,
                                                           DecompressOptions, std::size_t* bytes,
                                                           std::size_t total) {
  *bytes = total + 2 * chunks;
  return 0;
}
#else
FAKE_NVCOMP_API nvcompBatchedANSCompressGetTempSize(std::size_t chunks, std::size_t,
                                                    CompressOptions, std::size_t* bytes,
                                                    std::size_t total, void* stream) {
  *bytes = total + chunks + reinterpret_cast<std::uintptr_t>(stream);
  return 0;
}
FAKE_NVCOMP_API nvcompBatchedANSDecompressGetTempSize(std::size_t chunks, std::size_t,
                                                      DecompressOptions, std::size_t* bytes,
                                                      std::size_t total, void* stream) {
  *bytes = total + 2 * chunks + reinterpret_cast<std::uintptr_t>(stream);
  return 0;
}
#endif
FAKE_NVCOMP_API nvcompBatchedANSCompressAsync() { return 10; }
#ifndef FAKE_NVCOMP_WITHOUT_DECOMPRESS
FAKE_NVCOMP_API nvcompBatchedANSDecompressAsync() { return 10; }
#endif

extern "C" __attribute__((visibility("default"))) const char* nvcompGetStatusString(int status) {
  return status == 18 ? "chunk size too large" : "no error";
}
