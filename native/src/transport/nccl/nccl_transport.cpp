#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "ciera/error.hpp"
#include "ciera/nccl.hpp"
#include "exec/cuda_device_guard.hpp"
#include "transport/nccl/nccl_api.hpp"
#include "transport/nccl/nccl_comm.hpp"
#include "transport/nccl/nccl_staging.hpp"

namespace ciera {
namespace {

using nccl::Api;
using nccl::Comm;
using nccl::Communicator;
using nccl::Result;

// Host memory goes through the GPU in pieces of about this many bytes of all ranks together.
constexpr std::uint64_t kPieceBytes = 8 << 20;

using Counts = std::span<const std::uint64_t>;

std::shared_ptr<const Api> require_api() {
  nccl::Loaded loaded = nccl::load();
  if (loaded.api == nullptr) {
    throw Error(ErrorCode::kLibrary, "nccl transport: " + loaded.reason);
  }
  return std::move(loaded.api);
}

class NcclTransport final : public Transport {
 public:
  NcclTransport(std::shared_ptr<const Api> api, int device, std::chrono::nanoseconds timeout)
      : comm_(std::move(api), timeout), device_(device) {}

  ~NcclTransport() override {
    if (comm_.broken_but_borrowed()) {
      // Its last call may stay on the GPU until the owner aborts it, and freeing memory waits for
      // the GPU: a leak of two small buffers is better than a destructor that hangs.
      static_cast<void>(staging_.release());
    }
  }
  NcclTransport(const NcclTransport&) = delete;
  NcclTransport& operator=(const NcclTransport&) = delete;

  void init(const NcclUniqueId& id, Rank rank, WorldSize world) {
    rank_ = value(rank);
    world_ = value(world);
    nccl::UniqueId native{};
    static_assert(sizeof(native.internal) == sizeof(id.bytes));
    std::memcpy(native.internal, id.bytes.data(), id.bytes.size());
    guarded([&] {
      comm_.init(native, static_cast<int>(rank_), static_cast<int>(world_));
      prepare();
    });
  }

  void adopt(Comm borrowed) {
    comm_.borrow(borrowed);
    guarded([&] {
      int rank = 0;
      int world = 0;
      int device = 0;
      CIERA_NCCL_TRY(comm_, api().comm_user_rank(comm, &rank));
      CIERA_NCCL_TRY(comm_, api().comm_count(comm, &world));
      CIERA_NCCL_TRY(comm_, api().comm_cu_device(comm, &device));
      if (device != device_) {
        throw Error(ErrorCode::kArgument, "the communicator is for GPU " + std::to_string(device) +
                                              ", not for GPU " + std::to_string(device_));
      }
      rank_ = static_cast<std::uint32_t>(rank);
      world_ = static_cast<std::uint32_t>(world);
      prepare();
    });
  }

  Rank rank() const override { return Rank{rank_}; }
  WorldSize world_size() const override { return WorldSize{world_}; }
  std::string_view name() const override { return "nccl"; }
  std::uint32_t local_world_size() const override { return 1; }
  CountSupport count_support() const override { return CountSupport::kPerRank; }
  bool moves_device_memory() const override { return true; }
  bool is_network() const override { return true; }

  void allgather(std::span<const std::byte> send, std::span<std::byte> recv) override {
    guarded([&] {
      check_equal(send, recv);
      equal_counts_.assign(world_, send.size());
      for (std::size_t r = 0; r < world_; ++r) {
        equal_offsets_[r] = r * send.size();
      }
      exchange_host(send, recv, equal_counts_, equal_offsets_);
    });
  }

  void allgatherv(std::span<const std::byte> send, std::span<std::byte> recv, Counts counts,
                  Counts offsets) override {
    guarded([&] {
      check_counts(send, recv, counts, offsets);
      exchange_host(send, recv, counts, offsets);
    });
  }

  void allgather_on(DeviceStream stream, std::span<const std::byte> send,
                    std::span<std::byte> recv) override {
    guarded([&] {
      check_equal(send, recv);
      if (!send.empty()) {
        CIERA_NCCL_TRY(comm_, api().all_gather(send.data(), recv.data(), send.size(), nccl::kUint8,
                                               comm, stream.handle));
      }
    });
  }

  void allgatherv_on(DeviceStream stream, std::span<const std::byte> send,
                     std::span<std::byte> recv, Counts counts, Counts offsets) override {
    guarded([&] {
      check_counts(send, recv, counts, offsets);
      broadcasts(send.data(), recv.data(), counts, offsets, stream.handle);
    });
  }

  void wait_stream(DeviceStream stream) override {
    guarded([&] { comm_.wait(stream.handle); });
  }

  void abort(std::string_view reason) override {
    comm_.poison(ErrorCode::kTransport,
                 "aborted by rank " + std::to_string(rank_) + ": " + std::string(reason));
  }

 private:
  // Runs a call with the GPU current. Whatever goes wrong breaks the communicator: the ranks no
  // longer agree on which call is next.
  template <class Body>
  void guarded(Body body) {
    try {
      comm_.throw_if_poisoned();
      const exec::CudaDeviceGuard guard(device_);
      body();
    } catch (const std::exception& error) {
      const auto* known = dynamic_cast<const Error*>(&error);
      comm_.poison(known != nullptr ? known->code() : ErrorCode::kTransport, error.what());
      const Error first = comm_.failure();  // an abort by another thread explains this error
      throw Error(first.code(),
                  "nccl transport, rank " + std::to_string(rank_) + ": " + first.what());
    }
  }

  void prepare() {
    staging_ = std::make_unique<nccl::Staging>();
    equal_counts_.resize(world_);
    equal_offsets_.resize(world_);
    parts_.resize(world_);
    places_.resize(world_);
  }

  const Api& api() const { return comm_.api(); }

  void check_equal(std::span<const std::byte> send, std::span<std::byte> recv) const {
    if (recv.size() / world_ != send.size() || recv.size() % world_ != 0) {
      throw Error(ErrorCode::kArgument, "recv holds " + std::to_string(recv.size()) +
                                            " bytes, not " + std::to_string(world_) + " times " +
                                            std::to_string(send.size()));
    }
  }

  void check_counts(std::span<const std::byte> send, std::span<std::byte> recv, Counts counts,
                    Counts offsets) const {
    if (counts.size() != world_ || offsets.size() != world_ || counts[rank_] != send.size()) {
      throw Error(ErrorCode::kArgument,
                  "counts and offsets need one entry a rank, this rank's "
                  "count being the bytes of send");
    }
    for (std::size_t r = 0; r < world_; ++r) {
      if (offsets[r] > recv.size() || counts[r] > recv.size() - offsets[r]) {
        throw Error(ErrorCode::kArgument, "the slot of rank " + std::to_string(r) +
                                              " ends beyond recv (" + std::to_string(recv.size()) +
                                              " bytes)");
      }
    }
  }

  // One broadcast a rank with something to say, as one NCCL operation.
  void broadcasts(const std::byte* send, std::byte* recv, Counts counts, Counts offsets,
                  nccl::Stream stream) {
    if (std::ranges::all_of(counts, [](std::uint64_t count) { return count == 0; })) {
      return;
    }
    CIERA_NCCL_TRY(comm_, grouped_broadcasts(comm, send, recv, counts, offsets, stream));
  }

  Result grouped_broadcasts(Comm comm, const std::byte* send, std::byte* recv, Counts counts,
                            Counts offsets, nccl::Stream stream) const {
    Result result = api().group_start();
    if (result != nccl::kSuccess) {
      return result;
    }
    for (std::uint32_t r = 0; r < world_; ++r) {
      if (counts[r] == 0) {
        continue;
      }
      std::byte* slot = recv + offsets[r];
      const Result added = api().broadcast(r == rank_ ? send : slot, slot, counts[r], nccl::kUint8,
                                           static_cast<int>(r), comm, stream);
      if (added != nccl::kSuccess && added != nccl::kInProgress) {
        result = added;
        break;
      }
    }
    // Also after a failure: a group left open would swallow every later call of this thread.
    const Result ended = api().group_end();
    return result != nccl::kSuccess ? result : ended;
  }

  void exchange_host(std::span<const std::byte> send, std::span<std::byte> recv, Counts counts,
                     Counts offsets) {
    const std::uint64_t largest = *std::ranges::max_element(counts);
    const std::uint64_t piece = std::max<std::uint64_t>(1, kPieceBytes / world_);
    for (std::uint64_t start = 0; start < largest; start += piece) {
      std::uint64_t total = 0;
      for (std::size_t r = 0; r < world_; ++r) {
        parts_[r] = std::min(piece, counts[r] - std::min(start, counts[r]));
        places_[r] = total;
        total += parts_[r];
      }
      exchange_piece(send.subspan(std::min<std::uint64_t>(start, send.size()), parts_[rank_]),
                     total);
      for (std::size_t r = 0; r < world_; ++r) {
        if (parts_[r] != 0) {
          std::memcpy(recv.data() + offsets[r] + start, staging_->pinned() + places_[r], parts_[r]);
        }
      }
    }
  }

  // Brings parts_[r] bytes of each rank to places_[r] of the pinned buffer.
  void exchange_piece(std::span<const std::byte> own, std::uint64_t total) {
    staging_->reserve(total);
    if (!own.empty()) {
      std::memcpy(staging_->pinned() + places_[rank_], own.data(), own.size());
      staging_->upload(places_[rank_], own.size());
    }
    std::byte* const all = staging_->device();
    std::byte* const mine = all + places_[rank_];
    const nccl::Stream stream = staging_->stream();
    // In place on the GPU. Every rank has the same counts, so all take the same branch.
    if (std::ranges::all_of(parts_, [&](std::uint64_t part) { return part == parts_[0]; })) {
      CIERA_NCCL_TRY(comm_, api().all_gather(mine, all, parts_[0], nccl::kUint8, comm, stream));
    } else {
      broadcasts(mine, all, parts_, places_, stream);
    }
    staging_->download(total);
    comm_.wait(stream);
  }

  Communicator comm_;
  const int device_;
  std::uint32_t rank_ = 0;
  std::uint32_t world_ = 0;
  std::unique_ptr<nccl::Staging> staging_;
  // Kept between calls, so that a row exchange allocates nothing.
  std::vector<std::uint64_t> equal_counts_;
  std::vector<std::uint64_t> equal_offsets_;
  std::vector<std::uint64_t> parts_;
  std::vector<std::uint64_t> places_;
};

}  // namespace

NcclLibrary nccl_library() {
  const nccl::Loaded loaded = nccl::load();
  if (loaded.api == nullptr) {
    return {.available = false, .detail = loaded.reason};
  }
  return {.available = true,
          .detail = "NCCL " + nccl::version_text(loaded.api->version) + ", " + loaded.api->path};
}

NcclUniqueId make_nccl_unique_id() {
  Communicator none(require_api(), std::chrono::nanoseconds(0));
  nccl::UniqueId native{};
  CIERA_NCCL_TRY(none, none.api().get_unique_id(&native));
  NcclUniqueId id{};
  std::memcpy(id.bytes.data(), native.internal, id.bytes.size());
  return id;
}

std::shared_ptr<Transport> make_nccl(const NcclUniqueId& id, Rank rank, WorldSize world_size,
                                     int device, std::chrono::nanoseconds timeout) {
  const std::uint32_t world = value(world_size);
  if (world == 0 || world > 65535 || value(rank) >= world) {
    throw Error(ErrorCode::kArgument, "nccl transport: rank " + std::to_string(value(rank)) +
                                          " of " + std::to_string(world) + " is not possible");
  }
  auto transport = std::make_shared<NcclTransport>(require_api(), device, timeout);
  transport->init(id, rank, world_size);
  return transport;
}

std::shared_ptr<Transport> adopt_nccl(void* nccl_comm, int device,
                                      std::chrono::nanoseconds timeout) {
  if (nccl_comm == nullptr) {
    throw Error(ErrorCode::kArgument, "nccl transport: the communicator is null");
  }
  auto transport = std::make_shared<NcclTransport>(require_api(), device, timeout);
  transport->adopt(static_cast<Comm>(nccl_comm));
  return transport;
}

}  // namespace ciera
