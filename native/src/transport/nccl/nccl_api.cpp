#include "transport/nccl/nccl_api.hpp"

#include <dlfcn.h>

#include <cstdlib>

#include "base/loaded_library.hpp"

namespace ciera::nccl {
namespace {

constexpr const char* kSoname = "libnccl.so.2";
constexpr const char* kPathVariable = "CIERA_NCCL_LIBRARY";
// The first with a configuration for communicators; without it a wait for peers has no deadline.
constexpr int kOldestVersion = 21400;

// The handle, or null and `reason`. One libnccl a process: a second one would not know the
// communicators of the first.
void* open_library(std::string* reason) {
  if (void* present = dlopen(kSoname, RTLD_NOW | RTLD_NOLOAD)) {
    return present;
  }
  const char* wanted = std::getenv(kPathVariable);
  const bool stated = wanted != nullptr && *wanted != '\0';
  void* handle = dlopen(stated ? wanted : kSoname, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  if (handle == nullptr) {
    const char* error = dlerror();
    *reason = std::string(stated ? "CIERA_NCCL_LIBRARY: " : "") +
              (error != nullptr ? error : "libnccl.so.2 cannot be loaded") +
              (stated ? "" : "; install it or set CIERA_NCCL_LIBRARY to its path");
  }
  return handle;
}

std::string fill(Api* api, void* handle) {
  base::Symbols symbols(handle, api->path, "NCCL 2.14 or later");
  symbols.find(&api->get_version, "ncclGetVersion");
  symbols.find(&api->get_unique_id, "ncclGetUniqueId");
  symbols.find(&api->comm_init_rank_config, "ncclCommInitRankConfig");
  symbols.find(&api->comm_count, "ncclCommCount");
  symbols.find(&api->comm_user_rank, "ncclCommUserRank");
  symbols.find(&api->comm_cu_device, "ncclCommCuDevice");
  symbols.find(&api->comm_get_async_error, "ncclCommGetAsyncError");
  symbols.find(&api->comm_finalize, "ncclCommFinalize");
  symbols.find(&api->comm_abort, "ncclCommAbort");
  symbols.find(&api->comm_destroy, "ncclCommDestroy");
  symbols.find(&api->all_gather, "ncclAllGather");
  symbols.find(&api->broadcast, "ncclBroadcast");
  symbols.find(&api->group_start, "ncclGroupStart");
  symbols.find(&api->group_end, "ncclGroupEnd");
  symbols.find(&api->get_error_string, "ncclGetErrorString");
  symbols.find_optional(&api->get_last_error, "ncclGetLastError");
  return symbols.missing();
}

}  // namespace

std::string Api::describe(Result result, Comm comm) const {
  std::string text = get_error_string(result);
  const char* last = get_last_error != nullptr ? get_last_error(comm) : nullptr;
  if (last != nullptr && *last != '\0') {
    text += std::string(": ") + last;
  }
  return text;
}

std::string version_text(int version) {
  return std::to_string(version / 10000) + "." + std::to_string(version / 100 % 100) + "." +
         std::to_string(version % 100);
}

Loaded load() {
  Loaded loaded;
  void* handle = open_library(&loaded.reason);
  if (handle == nullptr) {
    return loaded;
  }
  auto api = std::make_shared<Api>();
  api->path = base::path_of(handle, "ncclGetVersion", kSoname);
  loaded.reason = fill(api.get(), handle);
  if (!loaded.reason.empty()) {
    return loaded;
  }
  if (api->get_version(&api->version) != kSuccess || api->version < kOldestVersion) {
    loaded.reason = api->path + " is NCCL " + version_text(api->version) + "; 2.14 is needed";
    return loaded;
  }
  loaded.api = std::move(api);
  return loaded;
}

}  // namespace ciera::nccl
