#include "codec/cuda/nvcomp_api.hpp"

#include <dlfcn.h>

#include <algorithm>
#include <cstdlib>
#include <utility>

#include "base/loaded_library.hpp"
#include "ciera/error.hpp"

namespace ciera::nvcomp {
namespace {

constexpr const char* kSonames[] = {"libnvcomp.so.6", "libnvcomp.so.5"};
constexpr const char* kPathVariable = "CIERA_NVCOMP_LIBRARY";
constexpr std::uint32_t kOldestMajor = 5;
constexpr std::uint32_t kNewestMajor = 6;

// The handle, or null and `reason`.
void* open_library(std::string* reason) {
  for (const char* soname : kSonames) {
    if (void* present = dlopen(soname, RTLD_NOW | RTLD_NOLOAD)) {
      return present;
    }
  }
  constexpr int kFlags = RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE;
  if (const char* wanted = std::getenv(kPathVariable); wanted != nullptr && *wanted != '\0') {
    void* handle = dlopen(wanted, kFlags);
    if (handle == nullptr) {
      const char* error = dlerror();
      *reason = std::string(kPathVariable) + ": " + (error != nullptr ? error : wanted);
    }
    return handle;
  }
  for (const char* soname : kSonames) {
    if (void* handle = dlopen(soname, kFlags)) {
      return handle;
    }
    const char* error = dlerror();
    *reason += std::string(reason->empty() ? "" : "; ") + (error != nullptr ? error : soname);
  }
  *reason += "; install nvCOMP or set CIERA_NVCOMP_LIBRARY to its path";
  return nullptr;
}

// The reason, empty when all are there.
std::string fill(Api* api, void* handle) {
  base::Symbols symbols(handle, api->path, "nvCOMP 5 or 6");
  symbols.find(&api->get_properties, "nvcompGetProperties");
  symbols.find(&api->get_status_string, "nvcompGetStatusString");
  symbols.find(&api->compress_alignments, "nvcompBatchedANSCompressGetRequiredAlignments");
  symbols.find(&api->decompress_alignments, "nvcompBatchedANSDecompressGetRequiredAlignments");
  symbols.find(&api->compress_max_output, "nvcompBatchedANSCompressGetMaxOutputChunkSize");
  symbols.find_either(&api->compress_temp, "nvcompBatchedANSCompressGetTempSize",
                      &api->compress_temp_5, "nvcompBatchedANSCompressGetTempSizeAsync");
  symbols.find_either(&api->decompress_temp, "nvcompBatchedANSDecompressGetTempSize",
                      &api->decompress_temp_5, "nvcompBatchedANSDecompressGetTempSizeAsync");
  symbols.find(&api->compress, "nvcompBatchedANSCompressAsync");
  symbols.find(&api->decompress, "nvcompBatchedANSDecompressAsync");
  return symbols.missing();
}

std::string check_version(Api* api) {
  Properties properties{};
  if (api->get_properties(&properties) != kSuccess) {
    return api->path + " does not tell its version";
  }
  api->version = properties.version;
  if (api->major() < kOldestMajor || api->major() > kNewestMajor) {
    return api->path + " is nvCOMP " + version_text(api->version) + "; nvCOMP 5 or 6 is needed";
  }
  return {};
}

std::string check_alignments(const Api& api) {
  Alignments in{};
  Alignments out{};
  if (api.compress_alignments({}, &in) != kSuccess ||
      api.decompress_alignments({}, &out) != kSuccess) {
    return api.path + " does not tell what alignment it needs";
  }
  const std::size_t most = std::max({in.input, in.output, out.input, out.output});
  if (most > kMostAlignment) {
    return api.path + " needs chunks aligned to " + std::to_string(most) + " bytes; a frame has " +
           std::to_string(kMostAlignment);
  }
  return {};
}

}  // namespace

std::size_t Api::compress_temp_bytes(std::size_t chunks, std::size_t chunk_bytes,
                                     Stream stream) const {
  std::size_t bytes = 0;
  const std::size_t total = chunks * chunk_bytes;
  if (compress_temp != nullptr) {
    CIERA_NVCOMP_TRY(*this, compress_temp(chunks, chunk_bytes, {}, &bytes, total, stream));
  } else {
    CIERA_NVCOMP_TRY(*this, compress_temp_5(chunks, chunk_bytes, {}, &bytes, total));
  }
  return bytes;
}

std::size_t Api::decompress_temp_bytes(std::size_t chunks, std::size_t chunk_bytes,
                                       Stream stream) const {
  std::size_t bytes = 0;
  const std::size_t total = chunks * chunk_bytes;
  if (decompress_temp != nullptr) {
    CIERA_NVCOMP_TRY(*this, decompress_temp(chunks, chunk_bytes, {}, &bytes, total, stream));
  } else {
    CIERA_NVCOMP_TRY(*this, decompress_temp_5(chunks, chunk_bytes, {}, &bytes, total));
  }
  return bytes;
}

std::size_t Api::compressed_bytes_limit(std::size_t chunk_bytes) const {
  std::size_t bytes = 0;
  CIERA_NVCOMP_TRY(*this, compress_max_output(chunk_bytes, {}, &bytes));
  return bytes;
}

std::string version_text(std::uint32_t version) {
  return std::to_string(version / 1000) + "." + std::to_string(version / 100 % 10) + "." +
         std::to_string(version % 100);
}

void check(const Api& api, Status status, const char* call, const char* file, int line) {
  if (status != kSuccess) {
    throw Error(ErrorCode::kLibrary, std::string("nvCOMP: ") + call +
                                         " failed: " + api.get_status_string(status) + " at " +
                                         file + ":" + std::to_string(line));
  }
}

Loaded load() {
  Loaded loaded;
  void* handle = open_library(&loaded.reason);
  if (handle == nullptr) {
    return loaded;
  }
  loaded.reason.clear();  // an older name may have been tried in vain
  auto api = std::make_shared<Api>();
  api->path = base::path_of(handle, "nvcompGetProperties", "libnvcomp");
  loaded.reason = fill(api.get(), handle);
  if (loaded.reason.empty()) {
    loaded.reason = check_version(api.get());
  }
  if (loaded.reason.empty()) {
    loaded.reason = check_alignments(*api);
  }
  if (loaded.reason.empty()) {
    loaded.api = std::move(api);
  }
  return loaded;
}

}  // namespace ciera::nvcomp
