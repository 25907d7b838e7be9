// The structures of DLPack (github.com/dmlc/dlpack, dlpack.h), whose layout is fixed.
#pragma once

#include <cstdint>

namespace ciera::bindings {

struct DlTensor {
  void* data;
  std::int32_t device_type;
  std::int32_t device_id;
  std::int32_t ndim;
  std::uint8_t type_code;
  std::uint8_t type_bits;
  std::uint16_t type_lanes;
  std::int64_t* shape;
  std::int64_t* strides;  // in elements; null: row-major without gaps
  std::uint64_t byte_offset;
};
struct DlManaged {
  DlTensor tensor;
  void* manager;
  void (*deleter)(DlManaged*);
};
struct DlManagedVersioned {
  std::uint32_t major;
  std::uint32_t minor;
  void* manager;
  void (*deleter)(DlManagedVersioned*);
  std::uint64_t flags;
  DlTensor tensor;
};
inline constexpr std::uint64_t kDlReadOnly = 1;
inline constexpr std::uint32_t kDlMajor = 1;
// Capsules that hold a tensor.
inline constexpr const char* kDlName = "dltensor";
inline constexpr const char* kDlVersionedName = "dltensor_versioned";

// One that is made here: one dimension, no gaps.
struct DlpackLayout {
  std::uintptr_t pointer;
  std::int32_t device_type;
  std::int32_t device_id;
  std::uint8_t type_code;
  std::uint8_t type_bits;
};

}  // namespace ciera::bindings
