// A libnccl that can be loaded and does nothing. FAKE_NCCL_VERSION is what it says it is; with
// FAKE_NCCL_WITHOUT_BROADCAST one symbol is missing.
#include <cstring>

#define FAKE_NCCL_API extern "C" __attribute__((visibility("default"))) int

FAKE_NCCL_API ncclGetVersion(int* version) {
  *version = FAKE_NCCL_VERSION;
  return 0;
}
FAKE_NCCL_API ncclGetUniqueId(void* id) {
  std::memset(id, 7, 128);
  return 0;
}
FAKE_NCCL_API ncclCommInitRankConfig() { return 5; }
FAKE_NCCL_API ncclCommCount() { return 5; }
FAKE_NCCL_API ncclCommUserRank() { return 5; }
FAKE_NCCL_API ncclCommCuDevice() { return 5; }
FAKE_NCCL_API ncclCommGetAsyncError() { return 5; }
FAKE_NCCL_API ncclCommFinalize() { return 5; }
FAKE_NCCL_API ncclCommAbort() { return 5; }
FAKE_NCCL_API ncclCommDestroy() { return 5; }
FAKE_NCCL_API ncclAllGather() { return 5; }
#ifndef FAKE_NCCL_WITHOUT_BROADCAST
FAKE_NCCL_API ncclBroadcast() { return 5; }
#endif
FAKE_NCCL_API ncclGroupStart() { return 5; }
FAKE_NCCL_API ncclGroupEnd() { return 5; }

extern "C" __attribute__((visibility("default"))) const char* ncclGetErrorString(int result) {
  return result == 5 ? "invalid usage" : "no error";
}
