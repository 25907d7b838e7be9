// What a transport in one process needs of a GPU's streams, without CUDA's headers.
#pragma once

#include <cstddef>
#include <memory>
#include <span>

#include "ciera/types.hpp"

namespace ciera::exec {

// Whether this build has CUDA; without it the functions below throw Error (kNoDevice).
bool has_streams();

// A point on a stream, which other streams can be made to wait for.
std::shared_ptr<void> record_point(DeviceStream stream);
void hold_until(DeviceStream stream, const std::shared_ptr<void>& point);
// Enqueues a copy between memory of the stream's GPU, or of GPUs of this process.
void copy_on(DeviceStream stream, std::span<std::byte> to, std::span<const std::byte> from);
// Blocks until everything on the stream has run.
void wait_for(DeviceStream stream);

}  // namespace ciera::exec
