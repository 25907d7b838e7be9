// A gathered buffer that the library owns, as Python holds it.
#pragma once

#include <sys/types.h>

#include <memory>

#include "bindings.hpp"

namespace ciera::bindings {

class PyShardBuffer {
 public:
  explicit PyShardBuffer(std::shared_ptr<ShardBuffer> buffer);
  ~PyShardBuffer();
  PyShardBuffer(const PyShardBuffer&) = delete;
  PyShardBuffer& operator=(const PyShardBuffer&) = delete;

  const ShardBuffer& buffer() const { return *buffer_; }

 private:
  pid_t process_;
  std::shared_ptr<ShardBuffer> buffer_;
};

}  // namespace ciera::bindings
