// Gathered buffers that the library owns, and how arrays of Python come to lie over them.
#include "bind_buffers.hpp"

#include <unistd.h>

#include <utility>

#include "dlpack.hpp"

namespace ciera::bindings {

namespace py = pybind11;

namespace {

// What an exported tensor keeps, until whoever took it lets go; any thread.
struct Exported {
  std::int64_t shape;
  PyObject* owner;
};

void let_go(void* manager) {
  auto* exported = static_cast<Exported*>(manager);
  if (!finalizing()) {
    const py::gil_scoped_acquire gil;
    Py_DECREF(exported->owner);
    delete exported;
  }
}

DlTensor make_tensor(const DlpackLayout& layout, Exported* exported) {
  return {.data = reinterpret_cast<void*>(layout.pointer),
          .device_type = layout.device_type,
          .device_id = layout.device_id,
          .ndim = 1,
          .type_code = layout.type_code,
          .type_bits = layout.type_bits,
          .type_lanes = 1,
          .shape = &exported->shape,
          .strides = nullptr,
          .byte_offset = 0};
}

template <class Managed>
void delete_managed(Managed* managed) {
  let_go(managed->manager);
  delete managed;
}

// A capsule that nobody has taken the tensor out of takes it along.
template <class Managed>
void delete_unused(PyObject* capsule, const char* name) {
  if (PyCapsule_IsValid(capsule, name) != 0) {
    auto* managed = static_cast<Managed*>(PyCapsule_GetPointer(capsule, name));
    managed->deleter(managed);
  }
}

py::object export_dlpack(const DlpackLayout& layout, std::int64_t numel, const py::object& owner,
                         bool versioned) {
  auto* exported = new Exported{numel, owner.inc_ref().ptr()};
  PyObject* capsule = nullptr;
  if (versioned) {
    auto* managed = new DlManagedVersioned{.major = kDlMajor,
                                           .minor = 0,
                                           .manager = exported,
                                           .deleter = delete_managed<DlManagedVersioned>,
                                           .flags = 0,
                                           .tensor = make_tensor(layout, exported)};
    capsule = PyCapsule_New(managed, kDlVersionedName, [](PyObject* self) {
      delete_unused<DlManagedVersioned>(self, kDlVersionedName);
    });
  } else {
    auto* managed = new DlManaged{.tensor = make_tensor(layout, exported),
                                  .manager = exported,
                                  .deleter = delete_managed<DlManaged>};
    capsule = PyCapsule_New(managed, kDlName,
                            [](PyObject* self) { delete_unused<DlManaged>(self, kDlName); });
  }
  if (capsule == nullptr) {
    throw py::error_already_set();
  }
  return py::reinterpret_steal<py::object>(capsule);
}

}  // namespace

PyShardBuffer::PyShardBuffer(std::shared_ptr<ShardBuffer> buffer)
    : process_(getpid()), buffer_(std::move(buffer)) {}

PyShardBuffer::~PyShardBuffer() {
  if (process_ != getpid()) {
    new std::shared_ptr<ShardBuffer>(std::move(buffer_));  // a fork has none of its GPU
    return;
  }
  const NoGil no_gil;  // giving back GPU memory waits for the GPU
  buffer_.reset();
}

void bind_buffers(py::module_& module) {
  py::classh<PyShardBuffer>(module, "ShardBuffer")
      .def_property_readonly("place",
                             [](const PyShardBuffer& self) {
                               const auto bytes = self.buffer().bytes();
                               return py::make_tuple(reinterpret_cast<std::uintptr_t>(bytes.data()),
                                                     bytes.size());
                             })
      .def_property_readonly(
          "dtype",
          [](const PyShardBuffer& self) { return std::string(name(self.buffer().dtype())); })
      .def_property_readonly("numels",
                             [](const PyShardBuffer& self) { return self.buffer().numels(); })
      .def_property_readonly("attached",
                             [](const PyShardBuffer& self) { return self.buffer().attached(); });
  module.def(
      "export_dlpack",
      [](std::uintptr_t pointer, std::int64_t numel, std::pair<int, int> device,
         std::pair<int, int> dtype, const py::object& owner, bool versioned) {
        return export_dlpack(
            {pointer, device.first, device.second, static_cast<std::uint8_t>(dtype.first),
             static_cast<std::uint8_t>(dtype.second)},
            numel, owner, versioned);
      },
      py::arg("pointer"), py::arg("numel"), py::arg("device"), py::arg("dtype"), py::arg("owner"),
      py::arg("versioned"));
}

}  // namespace ciera::bindings
