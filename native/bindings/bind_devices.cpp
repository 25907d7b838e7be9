// GPUs, and arrays that show their memory through DLPack.
#include <cstring>
#include <optional>
#include <vector>

#include "bindings.hpp"
#include "ciera/devices.hpp"
#include "dlpack.hpp"

namespace ciera::bindings {

namespace py = pybind11;

namespace {

// Holds what a capsule gave until it goes.
class DlpackView {
 public:
  explicit DlpackView(const py::capsule& capsule) {
    const char* name = capsule.name();
    if (name != nullptr && std::strcmp(name, kDlVersionedName) == 0) {
      versioned_ = capsule.get_pointer<DlManagedVersioned>();
      if (versioned_->major != kDlMajor) {
        throw Error(ErrorCode::kArgument, "DLPack " + std::to_string(versioned_->major) +
                                              " is not known; export the array as DLPack 1");
      }
      PyCapsule_SetName(capsule.ptr(), "used_dltensor_versioned");
      tensor_ = &versioned_->tensor;
      read_only_ = (versioned_->flags & kDlReadOnly) != 0;
    } else if (name != nullptr && std::strcmp(name, kDlName) == 0) {
      plain_ = capsule.get_pointer<DlManaged>();
      PyCapsule_SetName(capsule.ptr(), "used_dltensor");
      tensor_ = &plain_->tensor;
    } else {
      throw Error(ErrorCode::kArgument, "the capsule holds no DLPack tensor, or a used one");
    }
  }
  ~DlpackView() {
    if (plain_ != nullptr && plain_->deleter != nullptr) {
      plain_->deleter(plain_);
    }
    if (tensor_ != nullptr && versioned_ != nullptr && versioned_->deleter != nullptr) {
      versioned_->deleter(versioned_);
    }
  }
  DlpackView(const DlpackView&) = delete;
  DlpackView& operator=(const DlpackView&) = delete;

  std::uintptr_t pointer() const {
    return reinterpret_cast<std::uintptr_t>(tensor_->data) + tensor_->byte_offset;
  }
  std::vector<std::int64_t> shape() const {
    return {tensor_->shape, tensor_->shape + tensor_->ndim};
  }
  std::optional<std::vector<std::int64_t>> strides() const {
    if (tensor_->strides == nullptr) {
      return std::nullopt;
    }
    return std::vector<std::int64_t>(tensor_->strides, tensor_->strides + tensor_->ndim);
  }
  const DlTensor& tensor() const { return *tensor_; }
  bool read_only() const { return read_only_; }

 private:
  DlManaged* plain_ = nullptr;
  DlManagedVersioned* versioned_ = nullptr;
  const DlTensor* tensor_ = nullptr;
  bool read_only_ = false;
};

}  // namespace

void bind_devices(py::module_& module) {
  module.def("cuda_support", [] {
    const DeviceSupport support = [] {
      const NoGil no_gil;
      return cuda_support();
    }();
    return py::make_tuple(support.available, support.detail);
  });
  module.def(
      "device_of",
      [](std::uintptr_t pointer) {
        const NoGil no_gil;
        return device_of(reinterpret_cast<const void*>(pointer));
      },
      py::arg("pointer"));
  py::classh<DlpackView>(module, "DlpackView")
      .def(py::init<const py::capsule&>(), py::arg("capsule"))
      .def_property_readonly("pointer", &DlpackView::pointer)
      .def_property_readonly("shape", &DlpackView::shape)
      .def_property_readonly("strides", &DlpackView::strides)
      .def_property_readonly("read_only", &DlpackView::read_only)
      .def_property_readonly("device",
                             [](const DlpackView& self) {
                               return py::make_tuple(self.tensor().device_type,
                                                     self.tensor().device_id);
                             })
      .def_property_readonly("dtype", [](const DlpackView& self) {
        const DlTensor& tensor = self.tensor();
        return py::make_tuple(tensor.type_code, tensor.type_bits, tensor.type_lanes);
      });
}

}  // namespace ciera::bindings
