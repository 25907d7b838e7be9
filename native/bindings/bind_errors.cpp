#include "bindings.hpp"

namespace ciera::bindings {

namespace py = pybind11;

namespace {

const char* python_name(ErrorCode code) {
  switch (code) {
    case ErrorCode::kArgument:
      return "ArgumentError";
    case ErrorCode::kShardChanged:
      return "ShardChangedError";
    case ErrorCode::kRankMismatch:
      return "RankMismatchError";
    case ErrorCode::kPeerFailed:
      return "PeerFailedError";
    case ErrorCode::kFrame:
      return "FrameError";
    case ErrorCode::kTransport:
      return "TransportError";
    case ErrorCode::kDeadline:
      return "DeadlineError";
    case ErrorCode::kClosed:
      return "ClosedError";
    case ErrorCode::kConcurrentCall:
      return "ConcurrentCallError";
    case ErrorCode::kOutOfMemory:
      return "OutOfMemoryError";
    case ErrorCode::kDevice:
      return "DeviceError";
    case ErrorCode::kNoDevice:
      return "NoDeviceError";
    case ErrorCode::kWrongDevice:
      return "WrongDeviceError";
    case ErrorCode::kLibrary:
      return "LibraryError";
  }
  return "CieraError";
}

}  // namespace

void bind_errors(py::module_&) {
  py::register_local_exception_translator([](std::exception_ptr raised) {
    try {
      if (raised) {
        std::rethrow_exception(raised);
      }
    } catch (const Error& error) {
      const py::object type = py::module_::import("ciera.errors").attr(python_name(error.code()));
      py::set_error(type, error.what());
    }
  });
}

}  // namespace ciera::bindings
