#include "bindings.hpp"
#include "ciera/nvcomp.hpp"

namespace ciera::bindings {

namespace py = pybind11;

void bind_nvcomp(py::module_& module) {
  module.def("nvcomp_support", [] {
    const NvcompSupport support = [] {
      const py::gil_scoped_release release;  // may load a library
      return nvcomp_support();
    }();
    return py::make_tuple(support.available, support.detail);
  });
}

}  // namespace ciera::bindings
