// Where the buffers of a run lie: host memory, or one GPU's.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>

#include "ciera/types.hpp"

namespace ciera_perf {

// Memory of a space, freed with its last copy.
class Buffer {
 public:
  Buffer(std::shared_ptr<std::byte> data, std::size_t size) : data_(std::move(data)), size_(size) {}
  std::span<std::byte> span() const { return {data_.get(), size_}; }

 private:
  std::shared_ptr<std::byte> data_;
  std::size_t size_;
};

// Every function blocks until it is done. Throws std::runtime_error when memory or device fail.
class MemorySpace {
 public:
  virtual ~MemorySpace() = default;
  virtual Buffer allocate(std::size_t bytes) = 0;
  // `host` is host memory of the same length; to and from are of this space.
  virtual void copy_in(std::span<std::byte> to, std::span<const std::byte> host) = 0;
  virtual void copy_out(std::span<std::byte> host, std::span<const std::byte> from) = 0;
  virtual void zero(std::span<std::byte> to) = 0;
  // What the calls under measurement run on; null for the host.
  virtual ciera::DeviceStream stream() const = 0;
  virtual std::string device_name() const = 0;
};

std::unique_ptr<MemorySpace> make_host_space();

#ifdef CIERA_PERF_CUDA
int cuda_device_count();
std::unique_ptr<MemorySpace> make_cuda_space(int device);
#endif

}  // namespace ciera_perf
