// Ranks that reach each other through NCCL. The library is found at run time; a build without CUDA
// has these functions too, and they say so.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <memory>
#include <string>

#include "ciera/transport.hpp"

namespace ciera {

// What one rank makes and gives to all others by its own means, so that they find each other.
struct NcclUniqueId {
  std::array<std::byte, 128> bytes;
};

// Whether libnccl can be used: its version and path, or why it cannot be loaded. Looked for in this
// order: a libnccl.so.2 already in the process, the path in CIERA_NCCL_LIBRARY when that is set,
// the loader's search path.
struct NcclLibrary {
  bool available = false;
  std::string detail;
};
NcclLibrary nccl_library();

// Throws Error (kTransport) when there is no libnccl or it fails.
NcclUniqueId make_nccl_unique_id();

// Collective: returns when all ranks of the group have called it with the same id and size, each
// with its own rank and GPU (`device`, a CUDA ordinal). Throws Error: kDeadline when a peer does
// not come within `timeout`, kArgument for an impossible rank or size, kDevice when the GPU fails,
// kTransport for everything else.
//
// The transport moves GPU memory (the `_on` calls, in the order of a stream) and host memory
// (staged through the GPU: meant for small rows). `timeout` bounds each wait for peers; when it
// passes, the communicator is aborted and every later call throws. All calls restore the thread's
// current GPU. local_world_size() is 1: NCCL does not tell which ranks share a host.
std::shared_ptr<Transport> make_nccl(const NcclUniqueId& id, Rank rank, WorldSize world_size,
                                     int device, std::chrono::nanoseconds timeout);

// The same over an ncclComm_t that belongs to somebody else and must outlive the transport; made
// by the libnccl that nccl_library() names. Not collective. It is borrowed, so it is neither
// destroyed nor aborted: after a deadline or abort() this transport's calls throw, but what is on
// the GPU ends only when the owner aborts the communicator. While this transport is used, the
// owner must not issue calls on it.
std::shared_ptr<Transport> adopt_nccl(void* nccl_comm, int device,
                                      std::chrono::nanoseconds timeout);

}  // namespace ciera
