// The transport contract over MPI; run by mpirun, since the ranks are processes.
#include <mpi.h>

#include <chrono>
#include <cstdio>
#include <functional>
#include <numeric>
#include <optional>
#include <string>
#include <vector>

#include "ciera/error.hpp"
#include "ciera/mpi.hpp"
#include "transport/mpi/mpi_transport.hpp"

namespace {

using ciera::Error;
using ciera::ErrorCode;
using ciera::Transport;
using Bytes = std::vector<std::byte>;

constexpr std::chrono::seconds kTimeout{30};
int failures = 0;

void expect(bool good, const std::string& what) {
  if (!good) {
    ++failures;
    std::fprintf(stderr, "mpi_contract: not so: %s\n", what.c_str());
  }
}

std::optional<Error> error_of(const std::function<void()>& body) {
  try {
    body();
  } catch (const Error& error) {
    return error;
  }
  return std::nullopt;
}

int world_comm() { return MPI_Comm_c2f(MPI_COMM_WORLD); }

std::byte pattern(std::size_t rank, std::size_t i) {
  return static_cast<std::byte>(1 + (rank * 89 + i * 7 + i / 251) % 255);
}

Bytes part(std::size_t rank, std::size_t size) {
  Bytes bytes(size);
  for (std::size_t i = 0; i < size; ++i) {
    bytes[i] = pattern(rank, i);
  }
  return bytes;
}

void equal_sizes_arrive(Transport& transport, std::size_t size, bool in_place) {
  const std::size_t world = value(transport.world_size());
  const std::size_t rank = value(transport.rank());
  Bytes send = part(rank, size);
  Bytes recv(world * size);
  Bytes want;
  for (std::size_t r = 0; r < world; ++r) {
    const Bytes one = part(r, size);
    want.insert(want.end(), one.begin(), one.end());
  }
  std::span<const std::byte> from = send;
  if (in_place) {
    std::copy(send.begin(), send.end(), recv.begin() + static_cast<std::ptrdiff_t>(rank * size));
    from = std::span(recv).subspan(rank * size, size);
  }
  transport.allgather(from, recv);
  expect(recv == want, "allgather of " + std::to_string(size) + (in_place ? " in place" : ""));
}

// Slots in an order and with gaps that differ from rank to rank; gaps keep their bytes.
void uneven_sizes_arrive(Transport& transport, std::size_t size, bool in_place) {
  const std::size_t world = value(transport.world_size());
  const std::size_t rank = value(transport.rank());
  std::vector<std::uint64_t> counts(world);
  std::vector<std::uint64_t> offsets(world);
  std::size_t end = 5;
  for (std::size_t k = 0; k < world; ++k) {
    const std::size_t r = (k + rank) % world;
    counts[r] = r == 1 ? 0 : size + 7 * r;
    offsets[r] = end;
    end += counts[r] + 3 + rank;
  }
  Bytes recv(end);
  Bytes want(end);
  for (std::size_t r = 0; r < world; ++r) {
    const Bytes one = part(r, counts[r]);
    std::copy(one.begin(), one.end(), want.begin() + static_cast<std::ptrdiff_t>(offsets[r]));
  }
  Bytes send = part(rank, counts[rank]);
  std::span<const std::byte> from = send;
  if (in_place) {
    const auto slot = std::span(recv).subspan(offsets[rank], counts[rank]);
    std::copy(send.begin(), send.end(), slot.begin());
    from = slot;
  }
  transport.allgatherv(from, recv, counts, offsets);
  expect(recv == want, "allgatherv of " + std::to_string(size) + (in_place ? " in place" : ""));
}

void bytes_arrive(Transport& transport, std::initializer_list<std::size_t> sizes) {
  for (const std::size_t size : sizes) {
    for (const bool in_place : {false, true}) {
      equal_sizes_arrive(transport, size, in_place);
      uneven_sizes_arrive(transport, size, in_place);
    }
  }
}

// Peers pass through a barrier first, so that the deadline is certain to pass.
void a_missing_peer_is_a_deadline() {
  const auto transport = ciera::make_mpi(world_comm(), std::chrono::milliseconds(50));
  static Bytes recv;  // lives on: the collective is never completed
  if (value(transport->world_size()) > 1 && value(transport->rank()) == 0) {
    recv.resize(4 * value(transport->world_size()));
    const Bytes send(4);
    for (int i = 0; i < 2; ++i) {
      const auto error = error_of([&] { transport->allgather(send, recv); });
      expect(error && error->code() == ErrorCode::kDeadline, "a deadline, on every call after");
    }
  }
  MPI_Barrier(MPI_COMM_WORLD);
  static std::vector<std::shared_ptr<Transport>> kept;  // its ranks would not all free it
  kept.push_back(transport);
}

void an_abort_reaches_every_rank() {
  const auto transport = ciera::make_mpi(world_comm(), kTimeout);
  static Bytes recv;
  recv.resize(value(transport->world_size()));
  if (value(transport->rank()) + 1 == value(transport->world_size())) {
    transport->abort("pulled the plug");
  }
  const Bytes send(1);
  const auto error = error_of([&] { transport->allgather(send, recv); });
  expect(error && error->code() == ErrorCode::kTransport &&
             std::string(error->what()).find("pulled the plug") != std::string::npos,
         "the reason of an abort");
}

void wrong_arguments_are_refused() {
  const auto null = error_of([] { ciera::make_mpi(MPI_Comm_c2f(MPI_COMM_NULL), kTimeout); });
  expect(null && null->code() == ErrorCode::kArgument, "a null communicator");
  const auto transport = ciera::make_mpi(world_comm(), kTimeout);
  Bytes recv(value(transport->world_size()) * 4 + 1);
  const Bytes send(4);
  const auto error = error_of([&] { transport->allgather(send, recv); });
  expect(error && error->code() == ErrorCode::kTransport, "buffers that do not fit");
}

}  // namespace

int main(int argc, char** argv) {
  int level = 0;
  MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &level);
  {
    const auto transport = ciera::make_mpi(world_comm(), kTimeout);
    bytes_arrive(*transport, {0, 1, 15, 4096, 100'003});
    // Rounds of a few bytes take the route of counts beyond an int.
    for (const std::uint64_t round_bytes : {1, 64, 1000}) {
      const auto rounds = ciera::mpi::make_with_rounds(world_comm(), kTimeout, round_bytes);
      bytes_arrive(*rounds, {0, 1, 15, 64, 1001});
    }
  }
  wrong_arguments_are_refused();
  a_missing_peer_is_a_deadline();
  an_abort_reaches_every_rank();
  int all_failures = 0;
  MPI_Allreduce(&failures, &all_failures, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
  MPI_Finalize();
  return all_failures == 0 ? 0 : 1;
}
