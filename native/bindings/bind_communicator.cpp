#include <unistd.h>

#include <exception>
#include <utility>
#include <variant>

#include "bind_buffers.hpp"
#include "bindings.hpp"

namespace ciera::bindings {

namespace py = pybind11;

namespace {

// What Python hands over: an array with the buffer protocol, or the address and bytes of GPU memory
// (an array may look like a sequence of two numbers: the buffer comes first).
using Place = std::variant<py::buffer, std::pair<std::uintptr_t, std::size_t>>;

// The Python objects whose memory a call borrows.
struct Borrowed {
  std::vector<py::buffer_info> buffers;
  py::object keep;
};

// Let go by whoever is last, the caller or the thread that completes the call.
std::shared_ptr<Borrowed> make_borrowed(py::object keep) {
  return {new Borrowed{{}, std::move(keep)}, [](Borrowed* borrowed) {
            if (!finalizing()) {
              const py::gil_scoped_acquire gil;
              delete borrowed;
            }
          }};
}

std::span<std::byte> borrow(Borrowed& borrowed, const Place& place, bool writable) {
  if (const auto* memory = std::get_if<std::pair<std::uintptr_t, std::size_t>>(&place)) {
    return {reinterpret_cast<std::byte*>(memory->first), memory->second};
  }
  borrowed.buffers.push_back(std::get<py::buffer>(place).request(writable));
  return bytes_of(borrowed.buffers.back());
}

class PyCall {
 public:
  PyCall(std::shared_ptr<Call> call, std::shared_ptr<Borrowed> borrowed, bool on_gpu)
      : call_(std::move(call)), borrowed_(std::move(borrowed)), on_gpu_(on_gpu) {}
  ~PyCall() {
    if (process_ != getpid()) {
      new std::shared_ptr<Call>(std::move(call_));  // a fork has none of its threads
      return;
    }
    borrowed_.reset();
    const NoGil no_gil;  // giving back GPU memory waits for the GPU
    call_.reset();
  }
  PyCall(const PyCall&) = delete;
  PyCall& operator=(const PyCall&) = delete;

  bool done() {
    require_own_process();
    const bool is_done = call_->done();
    if (is_done) {
      borrowed_.reset();  // the results live on without it
    }
    return is_done;
  }

  void wait(std::optional<double> timeout_s) {
    require_own_process();
    const auto limit = timeout_s ? std::optional(duration_of(*timeout_s)) : std::nullopt;
    std::exception_ptr failure;
    {
      const NoGil no_gil;
      try {
        call_->wait(limit);
      } catch (...) {
        failure = std::current_exception();
      }
    }
    done();
    if (failure) {
      std::rethrow_exception(failure);
    }
  }

  const std::vector<std::span<std::byte>>& outputs() const { return call_->outputs(); }
  bool on_gpu() const { return on_gpu_; }

 private:
  void require_own_process() const {
    if (process_ != getpid()) {
      throw Error(ErrorCode::kClosed, "the call was made in another process (pid " +
                                          std::to_string(process_) +
                                          "); make a new communicator after fork");
    }
  }

  const pid_t process_ = getpid();
  std::shared_ptr<Call> call_;
  std::shared_ptr<Borrowed> borrowed_;
  bool on_gpu_;
};

class PyCommunicator {
 public:
  PyCommunicator(std::shared_ptr<Transport> transport, const Options& options)
      : on_gpu_(options.backend == Backend::kCuda), device_(options.device) {
    std::shared_ptr<Interrupt> interrupt = make_interrupt();
    const NoGil no_gil;  // the first use of a GPU takes long
    comm_ =
        std::make_unique<CompressedAllgather>(std::move(transport), options, std::move(interrupt));
  }

  ~PyCommunicator() {
    try {
      finalizing() ? leave(0) : close({});
    } catch (py::error_already_set& interrupt) {
      // A destructor cannot raise: the signal comes again right after it.
      interrupt.matches(PyExc_KeyboardInterrupt) ? PyErr_SetInterrupt()
                                                 : interrupt.discard_as_unraisable("ciera");
    } catch (const Error&) {
      // In a fork, or while another thread is inside: nothing to wait for.
    }
    const NoGil no_gil;
    comm_.reset();
  }
  PyCommunicator(const PyCommunicator&) = delete;
  PyCommunicator& operator=(const PyCommunicator&) = delete;

  using Versions = std::vector<std::optional<Version>>;
  using Segments = std::vector<std::pair<ShardId, std::uint64_t>>;

  struct Arguments {
    const Segments& segments;
    const std::string& dtype;
    const std::string& element_type;
    const Place& src;
    const std::optional<std::vector<Place>>& out;
    bool per_segment;
    std::uintptr_t stream;
    py::object keep;
    const Versions& versions;
  };

  std::shared_ptr<PyCall> gather(const Arguments& arguments, bool async) {
    const auto borrowed = make_borrowed(arguments.keep);
    GatherRequest request{
        .segments = to_segments(arguments.segments),
        .dtype = parse_dtype(arguments.dtype),
        .src = borrow(*borrowed, arguments.src, false),
        .out = {},
        .layout = arguments.per_segment ? OutputLayout::kPerSegment : OutputLayout::kFlat,
        .stream = {reinterpret_cast<void*>(arguments.stream), device_},
        .versions = arguments.versions,
        .element_type = arguments.element_type,
        .owner = borrowed};
    if (arguments.out) {
      for (const Place& place : *arguments.out) {
        request.out.push_back(borrow(*borrowed, place, true));
      }
    }
    std::shared_ptr<Call> call;
    {
      const NoGil no_gil;
      call =
          async ? comm_->allgather_async(std::move(request)) : comm_->allgather(std::move(request));
    }
    return std::make_shared<PyCall>(std::move(call), async ? borrowed : nullptr, on_gpu_);
  }

  void reject(const Segments& segments, const std::string& message) {
    const NoGil no_gil;
    comm_->reject(to_segments(segments), message);
  }

  void reset(const std::optional<ShardId>& shard_id) {
    const NoGil no_gil;
    shard_id ? comm_->reset(*shard_id) : comm_->reset();
  }

  // Without a dtype: of a shard that is known.
  std::shared_ptr<PyShardBuffer> buffer(const ShardId& shard_id,
                                        const std::optional<std::string>& dtype,
                                        const std::vector<std::uint64_t>& numels) {
    const auto type = dtype ? std::optional(parse_dtype(*dtype)) : std::nullopt;
    std::shared_ptr<ShardBuffer> buffer;
    {
      const NoGil no_gil;
      buffer = type ? comm_->buffer(shard_id, *type, numels) : comm_->buffer(shard_id);
    }
    return std::make_shared<PyShardBuffer>(std::move(buffer));
  }

  Stats stats(const std::optional<ShardId>& shard_id) const {
    const NoGil no_gil;
    return shard_id ? comm_->stats(*shard_id) : comm_->stats();
  }

  std::optional<std::uint64_t> plain_below_bytes() const {
    const NoGil no_gil;
    return comm_->plain_below_bytes();
  }

  Memory memory() const {
    const NoGil no_gil;
    return comm_->memory();
  }

  void close(std::optional<double> patience_s) {
    const auto patience = patience_s ? std::optional(duration_of(*patience_s)) : std::nullopt;
    const NoGil no_gil;
    comm_->close(patience);
  }

  // For the end of the interpreter: nothing of this communicator runs afterwards.
  void leave(double patience_s) {
    try {
      close(patience_s);
    } catch (const Error& error) {
      if (error.code() == ErrorCode::kConcurrentCall) {  // a daemon thread is inside
        const NoGil no_gil;
        comm_->abandon("the interpreter exits");
      }
    }
    const NoGil no_gil;
    comm_->idle_within(kLastMoment);
  }

  static constexpr std::chrono::seconds kLastMoment{3};  // for transports that only look at times

  const CompressedAllgather& native() const { return *comm_; }

 private:
  static std::vector<Segment> to_segments(const Segments& segments) {
    std::vector<Segment> converted;
    for (const auto& [id, numel] : segments) {
      converted.push_back({id, numel});
    }
    return converted;
  }

  bool on_gpu_;
  int device_;
  std::unique_ptr<CompressedAllgather> comm_;
};

py::dict to_dict(const Stats& stats) {
  py::dict dict;
  dict["calls"] = stats.calls;
  dict["values"] = stats.values;
  dict["raw_bytes"] = stats.raw_bytes;
  dict["wire_bytes"] = stats.wire_bytes;
  dict["control_bytes"] = stats.control_bytes;
  dict["key_frames"] = stats.key_frames;
  dict["delta_frames"] = stats.delta_frames;
  dict["same_frames"] = stats.same_frames;
  dict["raw_frames"] = stats.raw_frames;
  dict["bare_segments"] = stats.bare_segments;
  dict["blocks"] = stats.blocks;
  dict["changed_blocks"] = stats.changed_blocks;
  dict["encode_ns"] = stats.encode_ns;
  dict["exchange_ns"] = stats.exchange_ns;
  dict["decode_ns"] = stats.decode_ns;
  dict["stateless_by_budget"] = stats.stateless_by_budget;
  return dict;
}

py::dict to_dict(const Memory& memory) {
  py::dict dict;
  dict["hash_cache"] = memory.hash_cache;
  dict["staged_hashes"] = memory.staged_hashes;
  dict["exp_cache"] = memory.exp_cache;
  dict["word_cache"] = memory.word_cache;
  dict["own_reference"] = memory.own_reference;
  dict["buffers"] = memory.buffers;
  dict["send_arena"] = memory.send_arena;
  dict["recv_arena"] = memory.recv_arena;
  dict["scratch_arena"] = memory.scratch_arena;
  dict["total"] = memory.total();
  return dict;
}

// Arrays over memory that the call owns, each of which keeps the call alive; of GPU memory the
// address and bytes, for an object that does so.
py::list outputs(const std::shared_ptr<PyCall>& self) {
  py::list arrays;
  const py::object owner = py::cast(self);
  for (const auto& bytes : self->outputs()) {
    if (self->on_gpu()) {
      arrays.append(py::make_tuple(reinterpret_cast<std::uintptr_t>(bytes.data()), bytes.size()));
      continue;
    }
    arrays.append(py::array_t<std::uint8_t>(static_cast<py::ssize_t>(bytes.size()),
                                            reinterpret_cast<std::uint8_t*>(bytes.data()), owner));
  }
  return arrays;
}

void bind_call(py::module_& module) {
  py::classh<PyCall>(module, "Call")
      .def("done", &PyCall::done)
      .def("wait", &PyCall::wait, py::arg("timeout_s") = py::none())
      .def("outputs", &outputs);
}

}  // namespace

void bind_communicator(py::module_& module) {
  bind_call(module);
  py::classh<PyCommunicator>(module, "Communicator")
      .def(py::init([](std::shared_ptr<Transport> transport, const std::string& reuse,
                       const std::string& coder, std::uint32_t block_size,
                       std::optional<std::uint64_t> cache_budget_bytes, std::size_t threads,
                       const std::string& backend, int device, const std::string& effort,
                       bool check_versions, bool check_buffers,
                       std::optional<std::uint64_t> plain_below_bytes) {
             return std::make_shared<PyCommunicator>(
                 std::move(transport),
                 Options{.reuse = parse_reuse_mode(reuse),
                         .coder = parse_coder(coder),
                         .effort = parse_effort(effort),
                         .block_size = block_size,
                         .cache_budget_bytes = cache_budget_bytes,
                         .plain_below_bytes = plain_below_bytes,
                         .threads = threads,
                         .versions = check_versions ? VersionPolicy::kCheck : VersionPolicy::kTrust,
                         .buffers = check_buffers ? BufferPolicy::kCheck : BufferPolicy::kTrust,
                         .backend = parse_backend(backend),
                         .device = device});
           }),
           py::arg("transport"), py::kw_only(), py::arg("reuse"), py::arg("coder"),
           py::arg("block_size"), py::arg("cache_budget_bytes"), py::arg("threads"),
           py::arg("backend"), py::arg("device"), py::arg("effort"), py::arg("check_versions"),
           py::arg("check_buffers"), py::arg("plain_below_bytes"))
      .def_property_readonly("rank",
                             [](const PyCommunicator& self) { return value(self.native().rank()); })
      .def_property_readonly(
          "world_size",
          [](const PyCommunicator& self) { return value(self.native().world_size()); })
      .def(
          "gather",
          [](PyCommunicator& self, const PyCommunicator::Segments& segments,
             const std::string& dtype, const std::string& element_type, const Place& src,
             const std::optional<std::vector<Place>>& out, bool per_segment, std::uintptr_t stream,
             py::object keep, const PyCommunicator::Versions& versions, bool async) {
            return self.gather({segments, dtype, element_type, src, out, per_segment, stream,
                                std::move(keep), versions},
                               async);
          },
          py::arg("segments"), py::arg("dtype"), py::arg("element_type"), py::arg("src"),
          py::arg("out"), py::arg("per_segment"), py::arg("stream"), py::arg("keep"),
          py::arg("versions"), py::kw_only(), py::arg("async_op"))
      .def_property_readonly("plain_below_bytes", &PyCommunicator::plain_below_bytes)
      .def("reject", &PyCommunicator::reject, py::arg("segments"), py::arg("message"))
      .def("buffer", &PyCommunicator::buffer, py::arg("shard_id"), py::arg("dtype"),
           py::arg("numels"))
      .def("reset", &PyCommunicator::reset, py::arg("shard_id") = py::none())
      .def(
          "stats",
          [](const PyCommunicator& self, const std::optional<ShardId>& shard_id) {
            return to_dict(self.stats(shard_id));
          },
          py::arg("shard_id") = py::none())
      .def("memory", [](const PyCommunicator& self) { return to_dict(self.memory()); })
      .def("close", &PyCommunicator::close, py::arg("patience_s") = py::none())
      .def("leave", &PyCommunicator::leave, py::arg("patience_s"));
}

}  // namespace ciera::bindings
