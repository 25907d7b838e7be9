// What the binding files of the module share.
#pragma once

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <chrono>
#include <memory>
#include <span>
#include <string>

#include "ciera/compressed_allgather.hpp"

namespace ciera::bindings {

// The contiguous bytes of a buffer object; throws TypeError otherwise. The buffer_info keeps the
// export alive.
std::span<std::byte> bytes_of(const pybind11::buffer_info& info);

// Seconds as a duration of at most a century; throws Error (kArgument) for NaN and negative ones.
std::chrono::nanoseconds duration_of(double seconds);

// The value with that name; throws Error (kArgument) listing the possible ones.
ReuseMode parse_reuse_mode(const std::string& text);
Coder parse_coder(const std::string& text);
Effort parse_effort(const std::string& text);
DType parse_dtype(const std::string& text);
Backend parse_backend(const std::string& text);

// Whether the interpreter has begun to end: threads must not enter it any more.
bool finalizing();

// Lets other threads run Python while this one is in native code.
class NoGil {
 public:
  NoGil() : was_finalizing_(finalizing()), state_(PyEval_SaveThread()) {}
  ~NoGil();
  NoGil(const NoGil&) = delete;
  NoGil& operator=(const NoGil&) = delete;

 private:
  bool was_finalizing_;  // then this is the thread that ends it
  PyThreadState* state_;
};

// Python's signals, for waits of the main thread.
std::shared_ptr<Interrupt> make_interrupt();

// A transport that is left alone in forked processes, which have none of its threads.
std::shared_ptr<Transport> inert_after_fork(std::shared_ptr<Transport> transport);

void bind_errors(pybind11::module_& module);
void bind_transports(pybind11::module_& module);
void bind_buffers(pybind11::module_& module);
void bind_communicator(pybind11::module_& module);
void bind_codec(pybind11::module_& module);
void bind_nccl(pybind11::module_& module);
void bind_devices(pybind11::module_& module);
void bind_nvcomp(pybind11::module_& module);

}  // namespace ciera::bindings
