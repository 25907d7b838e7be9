// The NCCL transport of a build without CUDA.
#include "ciera/error.hpp"
#include "ciera/nccl.hpp"

namespace ciera {
namespace {

constexpr const char* kReason = "this build has no CUDA";

[[noreturn]] void throw_absent() {
  throw Error(ErrorCode::kTransport, std::string("nccl transport: ") + kReason);
}

}  // namespace

NcclLibrary nccl_library() { return {.available = false, .detail = kReason}; }

NcclUniqueId make_nccl_unique_id() { throw_absent(); }

std::shared_ptr<Transport> make_nccl(const NcclUniqueId&, Rank, WorldSize, int,
                                     std::chrono::nanoseconds) {
  throw_absent();
}

std::shared_ptr<Transport> adopt_nccl(void*, int, std::chrono::nanoseconds) { throw_absent(); }

}  // namespace ciera
