#include <cstring>

#include "bindings.hpp"
#include "ciera/nccl.hpp"

namespace ciera::bindings {

namespace py = pybind11;

namespace {

NcclUniqueId parse_unique_id(const py::bytes& bytes) {
  const std::string_view text(bytes);
  NcclUniqueId id{};
  if (text.size() != id.bytes.size()) {
    throw Error(ErrorCode::kArgument, "an NCCL unique id has " + std::to_string(id.bytes.size()) +
                                          " bytes, not " + std::to_string(text.size()));
  }
  std::memcpy(id.bytes.data(), text.data(), text.size());
  return id;
}

py::bytes unique_id() {
  NcclUniqueId id{};
  {
    const NoGil no_gil;  // opens the network interfaces
    id = make_nccl_unique_id();
  }
  return {reinterpret_cast<const char*>(id.bytes.data()), id.bytes.size()};
}

}  // namespace

void bind_nccl(py::module_& module) {
  module.def("nccl_library", [] {
    const NcclLibrary library = [] {
      const NoGil no_gil;
      return nccl_library();
    }();
    return py::make_tuple(library.available, library.detail);
  });
  module.def("nccl_unique_id", &unique_id);
  module.def(
      "nccl",
      [](const py::bytes& bytes, std::uint32_t rank, std::uint32_t world_size, int device,
         double timeout_s) {
        const NcclUniqueId id = parse_unique_id(bytes);
        const NoGil no_gil;
        return inert_after_fork(
            make_nccl(id, Rank{rank}, WorldSize{world_size}, device, duration_of(timeout_s)));
      },
      py::arg("unique_id"), py::arg("rank"), py::arg("world_size"), py::arg("device"),
      py::arg("timeout_s"));
  module.def(
      "adopt_nccl",
      [](std::uintptr_t comm_pointer, int device, double timeout_s) {
        const NoGil no_gil;
        return inert_after_fork(
            adopt_nccl(reinterpret_cast<void*>(comm_pointer), device, duration_of(timeout_s)));
      },
      py::arg("comm_pointer"), py::arg("device"), py::arg("timeout_s"));
}

}  // namespace ciera::bindings
