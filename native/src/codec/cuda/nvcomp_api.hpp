// The part of nvCOMP's C interface that is used, found at run time in libnvcomp.so.6 or .so.5.
// Declared here because the build must not need nvCOMP: what is used is the same in both.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

namespace ciera::nvcomp {

// Layouts and numbers below are nvCOMP's.
using Stream = void*;  // a cudaStream_t

enum Status : int { kSuccess = 0, kInternal = 10000 };

struct Properties {
  std::uint32_t version;  // 1000 major + 100 minor + patch
  std::uint32_t cudart_version;
};

struct Alignments {
  std::size_t input;
  std::size_t output;
  std::size_t temp;
};

// Both kinds of options take 64 bytes and go by value. All zero means: plain bytes, exact
// statistics, everything else is nvCOMP's choice. Later versions give meaning to more bytes, each
// with zero for what it was before.
struct CompressOptions {
  int type = 0;       // rANS, the only one
  int data_type = 0;  // char
  char reserved[56] = {};
};
struct DecompressOptions {
  int backend = 0;    // nvCOMP's choice
  int data_type = 0;  // char, as the compressor was told
  char reserved[56] = {};
};
static_assert(sizeof(CompressOptions) == 64 && sizeof(DecompressOptions) == 64);

// What nvCOMP may ask of addresses at most: sections and chunks lie on multiples of 16.
inline constexpr std::size_t kMostAlignment = 16;

// Every pointer is set, except that temp sizes have one of two names. Lists of chunks, sizes and
// statuses are arrays in GPU memory; the number of chunks is the host's.
struct Api {
  std::string path;
  std::uint32_t version = 0;

  Status (*get_properties)(Properties*) = nullptr;
  const char* (*get_status_string)(Status) = nullptr;
  Status (*compress_alignments)(CompressOptions, Alignments*) = nullptr;
  Status (*decompress_alignments)(DecompressOptions, Alignments*) = nullptr;
  Status (*compress_max_output)(std::size_t chunk_bytes, CompressOptions,
                                std::size_t* max_bytes) = nullptr;
  // As of 6.
  Status (*compress_temp)(std::size_t chunks, std::size_t chunk_bytes, CompressOptions,
                          std::size_t* temp_bytes, std::size_t total_bytes, Stream) = nullptr;
  Status (*decompress_temp)(std::size_t chunks, std::size_t chunk_bytes, DecompressOptions,
                            std::size_t* temp_bytes, std::size_t total_bytes, Stream) = nullptr;
  // Before 6.
  Status (*compress_temp_5)(std::size_t chunks, std::size_t chunk_bytes, CompressOptions,
                            std::size_t* temp_bytes, std::size_t total_bytes) = nullptr;
  Status (*decompress_temp_5)(std::size_t chunks, std::size_t chunk_bytes, DecompressOptions,
                              std::size_t* temp_bytes, std::size_t total_bytes) = nullptr;
  Status (*compress)(const void* const* from, const std::size_t* from_bytes,
                     std::size_t chunk_bytes, std::size_t chunks, void* temp,
                     std::size_t temp_bytes, void* const* to, std::size_t* to_bytes,
                     CompressOptions, Status* statuses, Stream) = nullptr;
  Status (*decompress)(const void* const* from, const std::size_t* from_bytes,
                       const std::size_t* to_bytes, std::size_t* out_bytes, std::size_t chunks,
                       void* temp, std::size_t temp_bytes, void* const* to, DecompressOptions,
                       Status* statuses, Stream) = nullptr;

  std::uint32_t major() const { return version / 1000; }
  // Bytes of GPU memory for `chunks` chunks of at most `chunk_bytes`; enqueues nothing. Throws
  // Error (kLibrary).
  std::size_t compress_temp_bytes(std::size_t chunks, std::size_t chunk_bytes, Stream) const;
  std::size_t decompress_temp_bytes(std::size_t chunks, std::size_t chunk_bytes, Stream) const;
  // Bytes that a chunk may take when it is compressed. Throws Error (kLibrary).
  std::size_t compressed_bytes_limit(std::size_t chunk_bytes) const;
};

// The table, or why there is none.
struct Loaded {
  std::shared_ptr<const Api> api;
  std::string reason;
};

// In the order of nvcomp_support(). A library stays in the process.
Loaded load();

// "6.0.0" for 6000.
std::string version_text(std::uint32_t version);

// Throws Error (kLibrary) with call text, nvCOMP's own text, file and line unless `status` is
// success. Through CIERA_NVCOMP_TRY only.
void check(const Api& api, Status status, const char* call, const char* file, int line);

}  // namespace ciera::nvcomp

#define CIERA_NVCOMP_TRY(api, call) ::ciera::nvcomp::check((api), (call), #call, __FILE__, __LINE__)
