// Ranks as threads of one process.
#pragma once

#include <chrono>
#include <memory>
#include <vector>

#include "ciera/transport.hpp"

namespace ciera {

// One transport a rank, in rank order; use each from its own thread. A call that waits longer than
// `timeout` for its peers throws Error (kDeadline) naming the missing ranks, on every rank that
// waits; kClosed in a forked process. Throws Error (kArgument) for a world size of zero or above
// 65535.
std::vector<std::shared_ptr<Transport>> make_loopback(WorldSize world_size,
                                                      std::chrono::nanoseconds timeout);

}  // namespace ciera
