// Where a pointer points; a build without CUDA knows no GPU memory.
#pragma once

#include <optional>

namespace ciera::exec {

// The GPU of `memory`, or nothing. Never throws.
std::optional<int> pointer_device(const void* memory);

}  // namespace ciera::exec
