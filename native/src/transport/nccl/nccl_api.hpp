// The part of NCCL's C interface that is used, found at run time in libnccl.so.2. Declared here
// because this part has been stable since 2.14 and the build must not need nccl.h.
#pragma once

#include <climits>
#include <cstddef>
#include <memory>
#include <string>

namespace ciera::nccl {

// Layouts and numbers below are NCCL's.
struct OpaqueComm;
using Comm = OpaqueComm*;
using Stream = void*;  // a cudaStream_t

struct UniqueId {
  char internal[128];
};

enum Result : int { kSuccess = 0, kInProgress = 7 };
enum DataType : int { kInt8 = 0, kUint8 = 1 };

// ncclConfig_t as of 2.14. NCCL takes its `size` and `version` at their word and fills what later
// versions added with defaults. The last member lies where 2.17 put its first new field and holds
// NCCL's "undefined".
struct Config {
  std::size_t size = sizeof(Config);
  unsigned int magic = 0xcafebeef;
  unsigned int version = 21400;
  int blocking = 0;
  int undefined = INT_MIN;
};
static_assert(sizeof(Config) == 24);

// Every pointer is set but those marked optional.
struct Api {
  std::string path;
  int version = 0;

  Result (*get_version)(int*) = nullptr;
  Result (*get_unique_id)(UniqueId*) = nullptr;
  Result (*comm_init_rank_config)(Comm*, int, UniqueId, int, Config*) = nullptr;
  Result (*comm_count)(Comm, int*) = nullptr;
  Result (*comm_user_rank)(Comm, int*) = nullptr;
  Result (*comm_cu_device)(Comm, int*) = nullptr;
  Result (*comm_get_async_error)(Comm, Result*) = nullptr;
  Result (*comm_finalize)(Comm) = nullptr;
  Result (*comm_abort)(Comm) = nullptr;
  Result (*comm_destroy)(Comm) = nullptr;
  Result (*all_gather)(const void*, void*, std::size_t, DataType, Comm, Stream) = nullptr;
  Result (*broadcast)(const void*, void*, std::size_t, DataType, int, Comm, Stream) = nullptr;
  Result (*group_start)() = nullptr;
  Result (*group_end)() = nullptr;
  const char* (*get_error_string)(Result) = nullptr;
  const char* (*get_last_error)(Comm) = nullptr;  // optional

  // "unhandled system error: socket refused": NCCL's words for a result.
  std::string describe(Result result, Comm comm) const;
};

// The table, or why there is none.
struct Loaded {
  std::shared_ptr<const Api> api;
  std::string reason;
};

// In the order of nccl_library(). A library stays in the process: NCCL has threads of its own.
Loaded load();

// "2.28.9" for 22809.
std::string version_text(int version);

}  // namespace ciera::nccl
