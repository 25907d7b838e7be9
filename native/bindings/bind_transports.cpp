#include <algorithm>
#include <vector>

#include "bindings.hpp"
#include "ciera/loopback.hpp"

namespace ciera::bindings {

namespace py = pybind11;

namespace {

// A transport written in Python (mpi4py, torch.distributed). Its methods run with the GIL held, on
// the calling thread or on the communicator's worker.
class CallbackTransport final : public Transport {
 public:
  explicit CallbackTransport(py::object impl)
      : impl_(std::move(impl)),
        rank_(impl_.attr("rank").cast<std::uint32_t>()),
        world_size_(impl_.attr("world_size").cast<std::uint32_t>()),
        name_(impl_.attr("name").cast<std::string>()),
        local_world_size_(impl_.attr("local_world_size").cast<std::uint32_t>()),
        count_support_(impl_.attr("supports_counts").cast<bool>() ? CountSupport::kPerRank
                                                                  : CountSupport::kEqualOnly),
        interruptible_(py::getattr(impl_, "interruptible", py::bool_(false)).cast<bool>()) {
    if (world_size_ == 0 || world_size_ > 65535 || rank_ >= world_size_) {
      throw Error(ErrorCode::kArgument, "transport '" + name_ + "': rank " + std::to_string(rank_) +
                                            " of " + std::to_string(world_size_) +
                                            " is not possible");
    }
  }
  ~CallbackTransport() override {
    if (finalizing()) {
      impl_.release();  // goes with the process
      return;
    }
    const py::gil_scoped_acquire gil;
    impl_ = py::object();
  }
  CallbackTransport(const CallbackTransport&) = delete;
  CallbackTransport& operator=(const CallbackTransport&) = delete;

  Rank rank() const override { return Rank{rank_}; }
  WorldSize world_size() const override { return WorldSize{world_size_}; }
  std::string_view name() const override { return name_; }
  std::uint32_t local_world_size() const override { return local_world_size_; }
  CountSupport count_support() const override { return count_support_; }

  void allgather(std::span<const std::byte> send, std::span<std::byte> recv) override {
    call([&] { impl_.attr("allgather")(view(send), view(recv)); });
  }

  void allgatherv(std::span<const std::byte> send, std::span<std::byte> recv,
                  std::span<const std::uint64_t> counts,
                  std::span<const std::uint64_t> offsets) override {
    call([&] {
      impl_.attr("allgatherv")(view(send), view(recv),
                               std::vector<std::uint64_t>(counts.begin(), counts.end()),
                               std::vector<std::uint64_t>(offsets.begin(), offsets.end()));
    });
  }

  // Python looks for signals itself, where its code waits in Python.
  bool ask_while_waiting(std::function<void()>) override { return interruptible_; }

  void abort(std::string_view reason) override {
    call([&] { impl_.attr("abort")(std::string(reason)); });
  }

 private:
  // A memoryview of nothing must still have an address.
  static py::memoryview view(std::span<const std::byte> bytes) {
    static const std::byte nothing{};
    return py::memoryview::from_memory(bytes.empty() ? &nothing : bytes.data(),
                                       static_cast<py::ssize_t>(bytes.size()));
  }
  static py::memoryview view(std::span<std::byte> bytes) {
    static std::byte nothing{};
    return py::memoryview::from_memory(static_cast<void*>(bytes.empty() ? &nothing : bytes.data()),
                                       static_cast<py::ssize_t>(bytes.size()));
  }

  template <class Body>
  void call(Body body) {
    if (finalizing()) {
      throw Error(ErrorCode::kTransport, name_ + " transport: the interpreter is exiting");
    }
    const py::gil_scoped_acquire gil;
    try {
      body();
    } catch (py::error_already_set& raised) {
      if (!raised.matches(PyExc_Exception)) {
        throw;  // KeyboardInterrupt: not the transport's
      }
      const py::object deadline = py::module_::import("ciera.errors").attr("DeadlineError");
      const ErrorCode code =
          raised.matches(deadline) ? ErrorCode::kDeadline : ErrorCode::kTransport;
      throw Error(code, name_ + " transport: " + py::str(raised.value()).cast<std::string>());
    }
  }

  py::object impl_;
  std::uint32_t rank_;
  std::uint32_t world_size_;
  std::string name_;
  std::uint32_t local_world_size_;
  CountSupport count_support_;
  bool interruptible_;
};

// Waits for peers in native code hold no GIL; a callback takes it itself.
void bind_transport_class(py::module_& module) {
  py::classh<Transport>(module, "Transport")
      .def_property_readonly("rank", [](const Transport& self) { return value(self.rank()); })
      .def_property_readonly("world_size",
                             [](const Transport& self) { return value(self.world_size()); })
      .def_property_readonly("name", [](const Transport& self) { return std::string(self.name()); })
      .def_property_readonly("local_world_size", &Transport::local_world_size)
      .def_property_readonly(
          "supports_counts",
          [](const Transport& self) { return self.count_support() == CountSupport::kPerRank; })
      .def("allgather",
           [](Transport& self, const py::buffer& send, const py::buffer& recv) {
             const auto from = send.request();
             const auto to = recv.request(true);
             const auto from_bytes = bytes_of(from);
             const auto to_bytes = bytes_of(to);
             if (to_bytes.size() != from_bytes.size() * value(self.world_size())) {
               throw Error(ErrorCode::kArgument,
                           "recv must hold world_size times the bytes of send");
             }
             const NoGil no_gil;
             self.allgather(from_bytes, to_bytes);
           })
      .def("allgatherv",
           [](Transport& self, const py::buffer& send, const py::buffer& recv,
              const std::vector<std::uint64_t>& counts, const std::vector<std::uint64_t>& offsets) {
             const std::size_t world = value(self.world_size());
             if (counts.size() != world || offsets.size() != world) {
               throw Error(ErrorCode::kArgument, "counts and offsets need one entry a rank");
             }
             const auto from = send.request();
             const auto to = recv.request(true);
             const auto from_bytes = bytes_of(from);
             const auto to_bytes = bytes_of(to);
             const NoGil no_gil;
             self.allgatherv(from_bytes, to_bytes, counts, offsets);
           })
      .def("abort", [](Transport& self, const std::string& reason) {
        const NoGil no_gil;
        self.abort(reason);
      });
}

}  // namespace

void bind_transports(py::module_& module) {
  bind_transport_class(module);
  module.def(
      "loopback",
      [](std::uint32_t world_size, double timeout_s) {
        std::vector<std::shared_ptr<Transport>> transports =
            make_loopback(WorldSize{world_size}, duration_of(timeout_s));
        std::ranges::transform(transports, transports.begin(), &inert_after_fork);
        return transports;
      },
      py::arg("world_size"), py::arg("timeout_s"));
  module.def(
      "callback_transport",
      [](py::object impl) -> std::shared_ptr<Transport> {
        return inert_after_fork(std::make_shared<CallbackTransport>(std::move(impl)));
      },
      py::arg("impl"));
}

}  // namespace ciera::bindings
