#include "ciera/transport.hpp"

#include <string>

#include "ciera/error.hpp"

namespace ciera {
namespace {

[[noreturn]] void throw_host_only(const Transport& transport) {
  throw Error(ErrorCode::kTransport,
              std::string(transport.name()) + " transport moves host memory only");
}

}  // namespace

void Transport::allgather_on(DeviceStream, std::span<const std::byte>, std::span<std::byte>) {
  throw_host_only(*this);
}

void Transport::allgatherv_on(DeviceStream, std::span<const std::byte>, std::span<std::byte>,
                              std::span<const std::uint64_t>, std::span<const std::uint64_t>) {
  throw_host_only(*this);
}

bool Transport::ask_while_waiting(std::function<void()>) { return false; }

void Transport::wait_stream(DeviceStream) { throw_host_only(*this); }

}  // namespace ciera
