#include "exec/memory.hpp"

#include <new>
#include <string>

#include "ciera/error.hpp"

namespace ciera {
namespace {

constexpr std::align_val_t kAlignment{256};

class HostMemory final : public MemoryResource {
 public:
  std::byte* allocate(std::size_t bytes) override {
    void* data = ::operator new(bytes, kAlignment, std::nothrow);
    if (data == nullptr) {
      throw Error(ErrorCode::kOutOfMemory,
                  "the host gives no " + std::to_string(bytes) + " bytes of memory");
    }
    return static_cast<std::byte*>(data);
  }
  void release(std::byte* data) noexcept override { ::operator delete(data, kAlignment); }
};

}  // namespace

MemoryResource& host_memory() {
  static HostMemory memory;
  return memory;
}

}  // namespace ciera
