// The backend for host memory.
#pragma once

#include <cstddef>
#include <memory>

#include "codec/backend.hpp"

namespace ciera::codec::host {

// `threads` codec threads, the caller's included. Throws Error (kArgument) when the system gives
// fewer.
std::unique_ptr<CodecBackend> make_host_backend(std::size_t threads);

}  // namespace ciera::codec::host
