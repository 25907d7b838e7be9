// Owned memory of one space, host or GPU, behind one interface.
#pragma once

#include <cstddef>
#include <span>
#include <utility>

namespace ciera {

class MemoryResource {
 public:
  virtual ~MemoryResource() = default;
  // `bytes` > 0 of uninitialised memory, aligned to 256. Throws Error (kOutOfMemory).
  virtual std::byte* allocate(std::size_t bytes) = 0;
  virtual void release(std::byte* data) noexcept = 0;
};

// The process's heap.
MemoryResource& host_memory();

// A span that owns its memory. The resource must outlive it.
class Buffer {
 public:
  Buffer() = default;
  Buffer(MemoryResource& resource, std::size_t bytes)
      : resource_(&resource),
        data_(bytes == 0 ? nullptr : resource.allocate(bytes)),
        size_(bytes) {}
  ~Buffer() { reset(); }
  Buffer(Buffer&& other) noexcept
      : resource_(other.resource_),
        data_(std::exchange(other.data_, nullptr)),
        size_(std::exchange(other.size_, 0)) {}
  Buffer& operator=(Buffer&& other) noexcept {
    std::swap(resource_, other.resource_);
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    return *this;
  }

  std::span<std::byte> span() const { return {data_, size_}; }
  std::size_t size() const { return size_; }
  void reset() {
    if (data_ != nullptr) {
      resource_->release(data_);
    }
    data_ = nullptr;
    size_ = 0;
  }

 private:
  MemoryResource* resource_ = nullptr;
  std::byte* data_ = nullptr;
  std::size_t size_ = 0;
};

// A buffer that only grows: steady state allocates nothing.
class Arena {
 public:
  explicit Arena(MemoryResource& resource) : resource_(&resource) {}

  // At least `bytes` of uninitialised memory. Invalidates what it returned before when it grows.
  std::span<std::byte> reserve(std::size_t bytes) {
    if (bytes > buffer_.size()) {
      buffer_.reset();
      buffer_ = Buffer(*resource_, bytes);
    }
    return buffer_.span().first(bytes);
  }
  std::size_t capacity() const { return buffer_.size(); }
  void release() { buffer_.reset(); }

 private:
  MemoryResource* resource_;
  Buffer buffer_;
};

}  // namespace ciera
