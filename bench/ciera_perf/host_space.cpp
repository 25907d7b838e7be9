#include <cstring>
#include <new>

#include "memory_space.hpp"

namespace ciera_perf {
namespace {

constexpr std::align_val_t kAlignment{4096};  // as a training framework's allocator gives

class HostSpace final : public MemorySpace {
 public:
  Buffer allocate(std::size_t bytes) override {
    auto* data = static_cast<std::byte*>(::operator new(bytes, kAlignment));
    return {std::shared_ptr<std::byte>(data, [](void* p) { ::operator delete(p, kAlignment); }),
            bytes};
  }
  void copy_in(std::span<std::byte> to, std::span<const std::byte> host) override {
    std::memcpy(to.data(), host.data(), host.size());
  }
  void copy_out(std::span<std::byte> host, std::span<const std::byte> from) override {
    std::memcpy(host.data(), from.data(), from.size());
  }
  void zero(std::span<std::byte> to) override { std::memset(to.data(), 0, to.size()); }
  ciera::DeviceStream stream() const override { return {}; }
  std::string device_name() const override { return "host memory"; }
};

}  // namespace

std::unique_ptr<MemorySpace> make_host_space() { return std::make_unique<HostSpace>(); }

}  // namespace ciera_perf
