// What long native waits owe the interpreter: signals, and its end.
#include <cxxabi.h>
#include <pybind11/pybind11.h>
#include <unistd.h>

#include <memory>

#include "bindings.hpp"

namespace ciera::bindings {

namespace py = pybind11;

namespace {

// Threads other than the main one get no signals in Python.
class SignalInterrupt final : public Interrupt {
 public:
  explicit SignalInterrupt(unsigned long main_thread) : main_thread_(main_thread) {}

  bool watches() const override {
    return PyThread_get_thread_ident() == main_thread_ && !finalizing();
  }
  void check() override {
    const py::gil_scoped_acquire gil;
    if (PyErr_CheckSignals() != 0) {
      throw py::error_already_set();
    }
  }

 private:
  unsigned long main_thread_;
};

}  // namespace

bool finalizing() {
#if PY_VERSION_HEX >= 0x030D0000
  return Py_IsFinalizing() != 0;
#else
  return _Py_IsFinalizing() != 0;
#endif
}

NoGil::~NoGil() {
  // Before 3.14 an interpreter that ends gets rid of threads that ask for it, or have asked for it
  // already, by an unwinding that no destructor lets through. The process is about to exit.
  try {
    while (finalizing() && !was_finalizing_) {
      pause();
    }
    PyEval_RestoreThread(state_);
  } catch (abi::__forced_unwind&) {
    for (;;) {
      pause();
    }
  }
}

std::shared_ptr<Interrupt> make_interrupt() {
  const py::object main_thread = py::module_::import("threading").attr("main_thread")();
  return std::make_shared<SignalInterrupt>(main_thread.attr("ident").cast<unsigned long>());
}

std::shared_ptr<Transport> inert_after_fork(std::shared_ptr<Transport> transport) {
  Transport* plain = transport.get();
  return {plain, [pid = getpid(), transport = std::move(transport)](Transport*) mutable {
            if (pid != getpid()) {
              new std::shared_ptr<Transport>(std::move(transport));  // never taken apart
            }
            transport.reset();
          }};
}

}  // namespace ciera::bindings
