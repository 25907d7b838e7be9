#include <algorithm>

#include "bindings.hpp"
#include "wire/frame_header.hpp"

namespace ciera::bindings {

namespace py = pybind11;

std::span<std::byte> bytes_of(const py::buffer_info& info) {
  py::ssize_t expected = info.itemsize;
  for (py::ssize_t axis = info.ndim - 1; axis >= 0; --axis) {
    const auto i = static_cast<std::size_t>(axis);
    if (info.shape[i] > 1 && info.strides[i] != expected) {
      throw py::type_error("the buffer is not contiguous");
    }
    expected *= info.shape[i];
  }
  return {static_cast<std::byte*>(info.ptr), static_cast<std::size_t>(info.size * info.itemsize)};
}

std::chrono::nanoseconds duration_of(double seconds) {
  constexpr double kMost = 100.0 * 365 * 24 * 3600;
  if (!(seconds >= 0)) {
    throw Error(ErrorCode::kArgument,
                "timeout " + std::to_string(seconds) + " is not possible; give seconds >= 0");
  }
  return std::chrono::nanoseconds(static_cast<std::int64_t>(std::min(seconds, kMost) * 1e9));
}

ReuseMode parse_reuse_mode(const std::string& text) {
  if (const auto mode = reuse_mode_from_name(text)) {
    return *mode;
  }
  throw Error(ErrorCode::kArgument,
              "unknown reuse mode '" + text +
                  "'; give one of off, exponent-only, exponent-block, exponent-delta, word-delta");
}

Coder parse_coder(const std::string& text) {
  if (const auto coder = coder_from_name(text)) {
    return *coder;
  }
  throw Error(ErrorCode::kArgument,
              "unknown coder '" + text + "'; give one of raw, rans, nvcomp-ans");
}

Effort parse_effort(const std::string& text) {
  if (const auto effort = effort_from_name(text)) {
    return *effort;
  }
  throw Error(ErrorCode::kArgument, "unknown effort '" + text + "'; give one of default, high");
}

DType parse_dtype(const std::string& text) {
  if (const auto dtype = dtype_from_name(text)) {
    return *dtype;
  }
  throw Error(ErrorCode::kArgument,
              "unknown dtype '" + text + "'; give one of bf16, fp16, fp32, opaque8 to opaque128");
}

Backend parse_backend(const std::string& text) {
  if (text == "host" || text == "cuda") {
    return text == "cuda" ? Backend::kCuda : Backend::kHost;
  }
  throw Error(ErrorCode::kArgument, "unknown backend '" + text + "'; give one of host, cuda");
}

}  // namespace ciera::bindings

PYBIND11_MODULE(_native, module) {
  module.doc() = "Native core of ciera; use the package's public names instead.";
  module.attr("__version__") = CIERA_VERSION;
  module.attr("WIRE_VERSION") = static_cast<int>(ciera::wire::kVersion);
  ciera::bindings::bind_errors(module);
  ciera::bindings::bind_transports(module);
  ciera::bindings::bind_nccl(module);
  ciera::bindings::bind_devices(module);
  ciera::bindings::bind_nvcomp(module);
  ciera::bindings::bind_buffers(module);
  ciera::bindings::bind_communicator(module);
  ciera::bindings::bind_codec(module);
}
