// A buffer that only grows: steady state allocates nothing.
#pragma once

#include <cstddef>
#include <memory>
#include <span>

namespace ciera {

class Arena {
 public:
  // At least `bytes` of uninitialised memory, aligned for any type. Invalidates what it returned
  // before when it grows.
  std::span<std::byte> reserve(std::size_t bytes) {
    if (bytes > capacity_) {
      data_.reset();
      capacity_ = 0;
      data_ = std::make_unique_for_overwrite<std::byte[]>(bytes);
      capacity_ = bytes;
    }
    return {data_.get(), bytes};
  }
  std::size_t capacity() const { return capacity_; }
  void release() {
    data_.reset();
    capacity_ = 0;
  }

 private:
  std::unique_ptr<std::byte[]> data_;
  std::size_t capacity_ = 0;
};

}  // namespace ciera
