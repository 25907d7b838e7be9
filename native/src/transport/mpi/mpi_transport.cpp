#include "transport/mpi/mpi_transport.hpp"

#include <mpi.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <limits>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "ciera/error.hpp"
#include "ciera/mpi.hpp"
#include "transport/mpi/mpi_check.hpp"

namespace ciera {
namespace mpi {
namespace {

constexpr int kAbortTag = 1;
constexpr std::size_t kReasonBytes = 256;

struct Group {
  MPI_Comm comm = MPI_COMM_NULL;
  int rank = 0;
  int size = 1;
  int local_size = 1;
};

class MpiTransport final : public Transport {
 public:
  MpiTransport(const Group& group, std::chrono::nanoseconds timeout, std::uint64_t round_bytes,
               bool any_thread)
      : group_(group),
        timeout_(timeout),
        max_part_(std::max<std::uint64_t>(1, round_bytes / static_cast<std::uint64_t>(group.size))),
        max_span_(round_bytes),
        any_thread_(any_thread),
        parts_(static_cast<std::size_t>(group.size)),
        places_(static_cast<std::size_t>(group.size)) {}

  ~MpiTransport() override {
    int finalized = 0;
    if (MPI_Finalized(&finalized) != MPI_SUCCESS || finalized != 0) {
      return;
    }
    if (aborted_) {
      tell_peers();
    }
    // After a failure the peers may never come to this collective.
    if (!aborted_ && !failure_) {
      MPI_Comm_free(&group_.comm);
    }
  }
  MpiTransport(const MpiTransport&) = delete;
  MpiTransport& operator=(const MpiTransport&) = delete;

  Rank rank() const override { return Rank{static_cast<std::uint32_t>(group_.rank)}; }
  WorldSize world_size() const override {
    return WorldSize{static_cast<std::uint32_t>(group_.size)};
  }
  std::string_view name() const override { return "mpi"; }
  std::uint32_t local_world_size() const override {
    return static_cast<std::uint32_t>(group_.local_size);
  }
  CountSupport count_support() const override { return CountSupport::kPerRank; }

  void allgather(std::span<const std::byte> send, std::span<std::byte> recv) override {
    keep_failure([&] {
      const auto world = static_cast<std::uint64_t>(group_.size);
      if (recv.size() / world != send.size() || recv.size() % world != 0) {
        fail(ErrorCode::kTransport, "allgather of " + std::to_string(send.size()) + " bytes into " +
                                        std::to_string(recv.size()) + ", need world size times");
      }
      place_own(send, recv.subspan(static_cast<std::size_t>(group_.rank) * send.size()));
      for (std::uint64_t start = 0; start < send.size(); start += max_part_) {
        gather_equal(recv, start, std::min<std::uint64_t>(max_part_, send.size() - start));
      }
    });
  }

  void allgatherv(std::span<const std::byte> send, std::span<std::byte> recv,
                  std::span<const std::uint64_t> counts,
                  std::span<const std::uint64_t> offsets) override {
    keep_failure([&] {
      check_counts(send, recv, counts, offsets);
      place_own(send, recv.subspan(offsets[static_cast<std::size_t>(group_.rank)]));
      const std::uint64_t longest = *std::max_element(counts.begin(), counts.end());
      for (std::uint64_t start = 0; start < longest; start += max_part_) {
        gather_uneven(recv, counts, offsets, start);
      }
    });
  }

  void abort(std::string_view reason) override {
    const std::lock_guard lock(abort_mutex_);
    if (aborted_) {
      return;
    }
    set_reason("aborted by rank " + std::to_string(group_.rank) + ": " + std::string(reason));
    told_ = false;
    aborted_ = true;
    if (any_thread_) {
      tell_peers_locked();
    }
  }

 private:
  // Runs a call; its failure is what every later call throws.
  template <typename Body>
  void keep_failure(const Body& body) {
    if (failure_) {
      throw Error(*failure_);
    }
    try {
      listen();
      body();
    } catch (const Error& error) {
      failure_ = std::make_unique<Error>(error);
      throw;
    }
  }

  [[noreturn]] void fail(ErrorCode code, const std::string& what) const {
    throw Error(code, "mpi transport, rank " + std::to_string(group_.rank) + ": " + what);
  }

  void check_counts(std::span<const std::byte> send, std::span<std::byte> recv,
                    std::span<const std::uint64_t> counts,
                    std::span<const std::uint64_t> offsets) const {
    if (counts.size() != parts_.size() || offsets.size() != parts_.size() ||
        send.size() != counts[static_cast<std::size_t>(group_.rank)]) {
      fail(ErrorCode::kTransport,
           "allgatherv needs a count and an offset a rank, and send of the "
           "own count");
    }
    for (std::size_t r = 0; r < counts.size(); ++r) {
      if (offsets[r] > recv.size() || counts[r] > recv.size() - offsets[r]) {
        fail(ErrorCode::kTransport, "allgatherv: the slot of rank " + std::to_string(r) +
                                        " ends beyond the receive buffer");
      }
    }
  }

  // Every collective is in place, as MPI asks all ranks to agree on that.
  static void place_own(std::span<const std::byte> send, std::span<std::byte> slot) {
    if (!send.empty() && send.data() != slot.data()) {
      std::memcpy(slot.data(), send.data(), send.size());
    }
  }

  // Bytes [start, start + part) of every rank's slot.
  void gather_equal(std::span<std::byte> recv, std::uint64_t start, std::uint64_t part) {
    const std::uint64_t slot_bytes = recv.size() / static_cast<std::uint64_t>(group_.size);
    const int count = static_cast<int>(part);
    MPI_Request request = MPI_REQUEST_NULL;
    if (part == slot_bytes) {
      CIERA_MPI_TRY(group_.rank, MPI_Iallgather(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, recv.data(),
                                                count, MPI_BYTE, group_.comm, &request));
      finish(request, "MPI_Iallgather");
      return;
    }
    // One element a rank, a whole slot from the next: slots may be further apart than an int tells.
    MPI_Datatype bytes = MPI_DATATYPE_NULL;
    MPI_Datatype strided = MPI_DATATYPE_NULL;
    CIERA_MPI_TRY(group_.rank, MPI_Type_contiguous(count, MPI_BYTE, &bytes));
    CIERA_MPI_TRY(group_.rank,
                  MPI_Type_create_resized(bytes, 0, static_cast<MPI_Aint>(slot_bytes), &strided));
    CIERA_MPI_TRY(group_.rank, MPI_Type_commit(&strided));
    CIERA_MPI_TRY(group_.rank,
                  MPI_Iallgather(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, recv.data() + start, 1,
                                 strided, group_.comm, &request));
    CIERA_MPI_TRY(group_.rank, MPI_Type_free(&strided));  // MPI keeps it until the call is complete
    CIERA_MPI_TRY(group_.rank, MPI_Type_free(&bytes));
    finish(request, "MPI_Iallgather");
  }

  // Bytes [start, start + max_part_) of every rank's slot, as far as they go.
  void gather_uneven(std::span<std::byte> recv, std::span<const std::uint64_t> counts,
                     std::span<const std::uint64_t> offsets, std::uint64_t start) {
    std::uint64_t first = std::numeric_limits<std::uint64_t>::max();
    std::uint64_t last = 0;
    for (std::size_t r = 0; r < counts.size(); ++r) {
      parts_[r] = static_cast<int>(
          std::min<std::uint64_t>(max_part_, counts[r] - std::min(start, counts[r])));
      if (parts_[r] != 0) {
        first = std::min(first, offsets[r] + start);
        last = std::max(last, offsets[r] + start);
      }
    }
    if (last - first <= max_span_) {
      for (std::size_t r = 0; r < counts.size(); ++r) {
        places_[r] = parts_[r] == 0 ? 0 : static_cast<int>(offsets[r] + start - first);
      }
      gather_parts(recv.data() + first);
      return;
    }
    gather_staged(recv, offsets, start);
  }

  // Slots too far apart for int displacements: through a buffer where they are not. A matter of
  // this rank alone, the peers see the same collective.
  void gather_staged(std::span<std::byte> recv, std::span<const std::uint64_t> offsets,
                     std::uint64_t start) {
    int total = 0;
    for (std::size_t r = 0; r < parts_.size(); ++r) {
      places_[r] = total;
      total += parts_[r];
    }
    staging_.resize(static_cast<std::size_t>(total));
    const auto own = static_cast<std::size_t>(group_.rank);
    if (parts_[own] != 0) {
      std::memcpy(staging_.data() + places_[own], recv.data() + offsets[own] + start,
                  static_cast<std::size_t>(parts_[own]));
    }
    gather_parts(staging_.data());
    for (std::size_t r = 0; r < parts_.size(); ++r) {
      if (r != own && parts_[r] != 0) {
        std::memcpy(recv.data() + offsets[r] + start, staging_.data() + places_[r],
                    static_cast<std::size_t>(parts_[r]));
      }
    }
  }

  void gather_parts(std::byte* base) {
    MPI_Request request = MPI_REQUEST_NULL;
    CIERA_MPI_TRY(group_.rank,
                  MPI_Iallgatherv(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, base, parts_.data(),
                                  places_.data(), MPI_BYTE, group_.comm, &request));
    finish(request, "MPI_Iallgatherv");
  }

  void finish(MPI_Request& request, const char* call) {
    const auto deadline = std::chrono::steady_clock::now() + timeout_;
    for (unsigned polls = 1;; ++polls) {
      int done = 0;
      CIERA_MPI_TRY(group_.rank, MPI_Test(&request, &done, MPI_STATUS_IGNORE));
      if (done != 0) {
        return;
      }
      if (polls % 64 == 0) {  // the clock and the probe cost more than a poll
        listen();
        if (std::chrono::steady_clock::now() > deadline) {
          const auto ms = std::chrono::duration_cast<std::chrono::milliseconds>(timeout_);
          fail(ErrorCode::kDeadline, std::string(call) + ": a peer did not come within " +
                                         std::to_string(ms.count()) + " ms");
        }
      }
      std::this_thread::yield();  // ranks may share a core
    }
  }

  // Throws when this rank or a peer has aborted.
  void listen() {
    if (aborted_) {
      tell_peers();
      const std::lock_guard lock(abort_mutex_);
      fail(ErrorCode::kTransport, reason_.data());
    }
    int found = 0;
    MPI_Status status;
    CIERA_MPI_TRY(group_.rank, MPI_Iprobe(MPI_ANY_SOURCE, kAbortTag, group_.comm, &found, &status));
    if (found != 0) {
      std::array<char, kReasonBytes> reason{};
      CIERA_MPI_TRY(group_.rank,
                    MPI_Recv(reason.data(), static_cast<int>(reason.size()), MPI_CHAR,
                             status.MPI_SOURCE, kAbortTag, group_.comm, MPI_STATUS_IGNORE));
      reason.back() = '\0';
      fail(ErrorCode::kTransport, reason.data());
    }
  }

  void tell_peers() {
    const std::lock_guard lock(abort_mutex_);
    tell_peers_locked();
  }

  // Short messages leave at once; nothing waits for them. A peer that cannot be told meets its own
  // deadline.
  void tell_peers_locked() {
    if (told_) {
      return;
    }
    told_ = true;
    for (int r = 0; r < group_.size; ++r) {
      MPI_Request request = MPI_REQUEST_NULL;
      if (r != group_.rank && MPI_Isend(reason_.data(), static_cast<int>(reason_.size()), MPI_CHAR,
                                        r, kAbortTag, group_.comm, &request) == MPI_SUCCESS) {
        MPI_Request_free(&request);
      }
    }
  }

  void set_reason(const std::string& text) {
    std::copy_n(text.data(), std::min(text.size(), reason_.size() - 1), reason_.data());
  }

  Group group_;
  const std::chrono::nanoseconds timeout_;
  const std::uint64_t max_part_;  // bytes of one rank in one collective
  const std::uint64_t max_span_;  // between slots addressed by int displacements
  const bool any_thread_;         // MPI_THREAD_MULTIPLE
  std::vector<int> parts_;
  std::vector<int> places_;
  std::vector<std::byte> staging_;
  std::unique_ptr<Error> failure_;

  std::mutex abort_mutex_;
  std::atomic<bool> aborted_ = false;
  bool told_ = false;
  std::array<char, kReasonBytes> reason_{};
};

// The thread level MPI runs with.
int check_environment() {
  int initialized = 0;
  int finalized = 0;
  int level = MPI_THREAD_SINGLE;
  if (MPI_Initialized(&initialized) != MPI_SUCCESS || initialized == 0 ||
      MPI_Finalized(&finalized) != MPI_SUCCESS || finalized != 0) {
    throw Error(ErrorCode::kArgument, "mpi transport: MPI is not initialised or is finalised");
  }
  if (MPI_Query_thread(&level) != MPI_SUCCESS || level < MPI_THREAD_SERIALIZED) {
    throw Error(ErrorCode::kArgument,
                "mpi transport: initialise MPI with MPI_THREAD_SERIALIZED or MPI_THREAD_MULTIPLE");
  }
  return level;
}

Group duplicate(MPI_Comm comm) {
  int inter = 0;
  if (comm == MPI_COMM_NULL || MPI_Comm_test_inter(comm, &inter) != MPI_SUCCESS || inter != 0) {
    throw Error(ErrorCode::kArgument, "mpi transport: need an intracommunicator's handle");
  }
  Group group;
  CIERA_MPI_TRY(-1, MPI_Comm_rank(comm, &group.rank));
  CIERA_MPI_TRY(group.rank, MPI_Comm_dup(comm, &group.comm));  // our messages never meet theirs
  CIERA_MPI_TRY(group.rank, MPI_Comm_set_errhandler(group.comm, MPI_ERRORS_RETURN));
  CIERA_MPI_TRY(group.rank, MPI_Comm_size(group.comm, &group.size));
  MPI_Comm host = MPI_COMM_NULL;
  CIERA_MPI_TRY(group.rank, MPI_Comm_split_type(group.comm, MPI_COMM_TYPE_SHARED, group.rank,
                                                MPI_INFO_NULL, &host));
  CIERA_MPI_TRY(group.rank, MPI_Comm_size(host, &group.local_size));
  CIERA_MPI_TRY(group.rank, MPI_Comm_free(&host));
  return group;
}

}  // namespace

std::shared_ptr<Transport> make_with_rounds(std::int32_t fortran_comm,
                                            std::chrono::nanoseconds timeout,
                                            std::uint64_t round_bytes) {
  const int level = check_environment();
  const Group group = duplicate(MPI_Comm_f2c(static_cast<MPI_Fint>(fortran_comm)));
  return std::make_shared<MpiTransport>(group, timeout, std::min(round_bytes, kRoundBytes),
                                        level == MPI_THREAD_MULTIPLE);
}

}  // namespace mpi

std::shared_ptr<Transport> make_mpi(std::int32_t fortran_comm, std::chrono::nanoseconds timeout) {
  return mpi::make_with_rounds(fortran_comm, timeout, mpi::kRoundBytes);
}

}  // namespace ciera
