#include <algorithm>
#include <iterator>
#include <utility>
#include <variant>

#include "bindings.hpp"

namespace ciera::bindings {

namespace py = pybind11;

namespace {

// What Python hands over: an array with the buffer protocol, or the address and bytes of GPU memory
// (an array may look like a sequence of two numbers: the buffer comes first).
using Place = std::variant<py::buffer, std::pair<std::uintptr_t, std::size_t>>;

// A call and the Python objects whose memory it borrows.
class PyCall {
 public:
  PyCall() = default;
  ~PyCall() {
    const py::gil_scoped_release release;  // giving back GPU memory waits for the GPU
    call.reset();
  }
  PyCall(const PyCall&) = delete;
  PyCall& operator=(const PyCall&) = delete;

  std::span<std::byte> borrow(const Place& place, bool writable) {
    if (const auto* memory = std::get_if<std::pair<std::uintptr_t, std::size_t>>(&place)) {
      return {reinterpret_cast<std::byte*>(memory->first), memory->second};
    }
    buffers.push_back(std::get<py::buffer>(place).request(writable));
    return bytes_of(buffers.back());
  }

  // Once the call is complete it needs nothing of the caller's, but its results may live on.
  void give_back_when_done() {
    if (call->done()) {
      const auto old_buffers = std::exchange(buffers, {});  // letting go may run Python code
      const py::object old_keep = std::exchange(keep, py::none());
    }
  }

  std::shared_ptr<Call> call;
  std::vector<py::buffer_info> buffers;
  py::object keep = py::none();
  bool on_gpu = false;
};

class PyCommunicator {
 public:
  PyCommunicator(std::shared_ptr<Transport> transport, const Options& options)
      : on_gpu_(options.backend == Backend::kCuda), device_(options.device) {
    const py::gil_scoped_release release;  // the first use of a GPU takes long
    comm_ = std::make_unique<CompressedAllgather>(std::move(transport), options);
  }

  ~PyCommunicator() {
    // The worker may need the GIL (callback transports) and borrows the buffers of `under_way_`.
    const py::gil_scoped_release release;
    comm_.reset();
  }
  PyCommunicator(const PyCommunicator&) = delete;
  PyCommunicator& operator=(const PyCommunicator&) = delete;

  using Versions = std::vector<std::optional<Version>>;
  using Segments = std::vector<std::pair<ShardId, std::uint64_t>>;

  std::shared_ptr<PyCall> gather(const Segments& segments, const std::string& dtype,
                                 const Place& src, const std::optional<std::vector<Place>>& out,
                                 bool per_segment, std::uintptr_t stream, py::object keep,
                                 const Versions& versions, bool async) {
    auto result = std::make_shared<PyCall>();
    result->on_gpu = on_gpu_;
    result->keep = std::move(keep);
    GatherRequest request{.segments = to_segments(segments),
                          .dtype = parse_dtype(dtype),
                          .src = result->borrow(src, false),
                          .out = {},
                          .layout = per_segment ? OutputLayout::kPerSegment : OutputLayout::kFlat,
                          .stream = {reinterpret_cast<void*>(stream), device_},
                          .versions = versions};
    for (const Place& place : out.value_or(std::vector<Place>{})) {
      request.out.push_back(result->borrow(place, true));
    }
    {
      const py::gil_scoped_release release;
      result->call =
          async ? comm_->allgather_async(std::move(request)) : comm_->allgather(std::move(request));
    }
    forget_finished();
    if (async) {
      under_way_.push_back(result);
    } else {
      result->give_back_when_done();
    }
    return result;
  }

  void reject(const Segments& segments, const std::string& message) {
    const py::gil_scoped_release release;
    comm_->reject(to_segments(segments), message);
  }

  void reset(const std::optional<ShardId>& shard_id) {
    const py::gil_scoped_release release;
    shard_id ? comm_->reset(*shard_id) : comm_->reset();
  }

  Stats stats(const std::optional<ShardId>& shard_id) const {
    const py::gil_scoped_release release;
    return shard_id ? comm_->stats(*shard_id) : comm_->stats();
  }

  Memory memory() const {
    const py::gil_scoped_release release;
    return comm_->memory();
  }

  void close() {
    {
      const py::gil_scoped_release release;
      comm_->close();
    }
    forget_finished();
  }

  const CompressedAllgather& native() const { return *comm_; }

 private:
  // The calls go after the list is whole again: their end gives up the GIL.
  void forget_finished() {
    const auto finished = std::partition(under_way_.begin(), under_way_.end(),
                                         [](const auto& call) { return !call->call->done(); });
    const std::vector<std::shared_ptr<PyCall>> going(std::make_move_iterator(finished),
                                                     std::make_move_iterator(under_way_.end()));
    under_way_.erase(finished, under_way_.end());
  }

  static std::vector<Segment> to_segments(const Segments& segments) {
    std::vector<Segment> converted;
    for (const auto& [id, numel] : segments) {
      converted.push_back({id, numel});
    }
    return converted;
  }

  std::vector<std::shared_ptr<PyCall>>
      under_way_;  // keeps borrowed buffers alive if the caller drops the handle
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
  for (const auto& bytes : self->call->outputs()) {
    if (self->on_gpu) {
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
      .def("done", [](const PyCall& self) { return self.call->done(); })
      .def(
          "wait",
          [](PyCall& self, std::optional<double> timeout_s) {
            const auto limit = timeout_s ? std::optional(duration_of(*timeout_s)) : std::nullopt;
            try {
              const py::gil_scoped_release release;
              self.call->wait(limit);
            } catch (const Error&) {
              self.give_back_when_done();
              throw;
            }
            self.give_back_when_done();
          },
          py::arg("timeout_s") = py::none())
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
                       bool check_versions) {
             return std::make_shared<PyCommunicator>(
                 std::move(transport),
                 Options{.reuse = parse_reuse_mode(reuse),
                         .coder = parse_coder(coder),
                         .effort = parse_effort(effort),
                         .block_size = block_size,
                         .cache_budget_bytes = cache_budget_bytes,
                         .threads = threads,
                         .versions = check_versions ? VersionPolicy::kCheck : VersionPolicy::kTrust,
                         .backend = parse_backend(backend),
                         .device = device});
           }),
           py::arg("transport"), py::kw_only(), py::arg("reuse"), py::arg("coder"),
           py::arg("block_size"), py::arg("cache_budget_bytes"), py::arg("threads"),
           py::arg("backend"), py::arg("device"), py::arg("effort"), py::arg("check_versions"))
      .def_property_readonly("rank",
                             [](const PyCommunicator& self) { return value(self.native().rank()); })
      .def_property_readonly(
          "world_size",
          [](const PyCommunicator& self) { return value(self.native().world_size()); })
      .def(
          "start",
          [](PyCommunicator& self, const PyCommunicator::Segments& segments,
             const std::string& dtype, const Place& src,
             const std::optional<std::vector<Place>>& out, bool per_segment, std::uintptr_t stream,
             py::object keep, const PyCommunicator::Versions& versions) {
            return self.gather(segments, dtype, src, out, per_segment, stream, std::move(keep),
                               versions, true);
          },
          py::arg("segments"), py::arg("dtype"), py::arg("src"), py::arg("out"),
          py::arg("per_segment"), py::arg("stream"), py::arg("keep"), py::arg("versions"))
      .def(
          "run",
          [](PyCommunicator& self, const PyCommunicator::Segments& segments,
             const std::string& dtype, const Place& src,
             const std::optional<std::vector<Place>>& out, bool per_segment, std::uintptr_t stream,
             py::object keep, const PyCommunicator::Versions& versions) {
            return self.gather(segments, dtype, src, out, per_segment, stream, std::move(keep),
                               versions, false);
          },
          py::arg("segments"), py::arg("dtype"), py::arg("src"), py::arg("out"),
          py::arg("per_segment"), py::arg("stream"), py::arg("keep"), py::arg("versions"))
      .def("reject", &PyCommunicator::reject, py::arg("segments"), py::arg("message"))
      .def("reset", &PyCommunicator::reset, py::arg("shard_id") = py::none())
      .def(
          "stats",
          [](const PyCommunicator& self, const std::optional<ShardId>& shard_id) {
            return to_dict(self.stats(shard_id));
          },
          py::arg("shard_id") = py::none())
      .def("memory", [](const PyCommunicator& self) { return to_dict(self.memory()); })
      .def("close", &PyCommunicator::close);
}

}  // namespace ciera::bindings
