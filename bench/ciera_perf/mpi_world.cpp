#include "mpi_world.hpp"

#include <mpi.h>

#include <array>
#include <cstdlib>

namespace ciera_perf {

// Errors of these calls end the program through MPI's own handler, with its message.

MpiWorld::MpiWorld(int* argc, char*** argv) {
  int level = 0;  // make_mpi looks at it
  MPI_Init_thread(argc, argv, MPI_THREAD_MULTIPLE, &level);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank_);
  MPI_Comm_size(MPI_COMM_WORLD, &size_);
  MPI_Comm local = MPI_COMM_NULL;
  MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, rank_, MPI_INFO_NULL, &local);
  MPI_Comm_rank(local, &local_rank_);
  MPI_Comm_free(&local);
}

MpiWorld::~MpiWorld() { MPI_Finalize(); }

std::int32_t MpiWorld::fortran_comm() const { return MPI_Comm_c2f(MPI_COMM_WORLD); }

std::string MpiWorld::library() const {
  std::array<char, MPI_MAX_LIBRARY_VERSION_STRING> text{};
  int length = 0;
  MPI_Get_library_version(text.data(), &length);
  const std::string whole(text.data(), static_cast<std::size_t>(length));
  return whole.substr(0, whole.find_first_of(",\n"));
}

std::string MpiWorld::host() {
  std::array<char, MPI_MAX_PROCESSOR_NAME> text{};
  int length = 0;
  MPI_Get_processor_name(text.data(), &length);
  return {text.data(), static_cast<std::size_t>(length)};
}

void MpiWorld::barrier() const { MPI_Barrier(MPI_COMM_WORLD); }

void MpiWorld::max(std::span<double> values) const {
  MPI_Allreduce(MPI_IN_PLACE, values.data(), static_cast<int>(values.size()), MPI_DOUBLE, MPI_MAX,
                MPI_COMM_WORLD);
}

void MpiWorld::sum(std::span<std::uint64_t> values) const {
  MPI_Allreduce(MPI_IN_PLACE, values.data(), static_cast<int>(values.size()), MPI_UINT64_T, MPI_SUM,
                MPI_COMM_WORLD);
}

std::vector<std::uint64_t> MpiWorld::gather(std::uint64_t value) const {
  std::vector<std::uint64_t> values(static_cast<std::size_t>(size_));
  MPI_Allgather(&value, 1, MPI_UINT64_T, values.data(), 1, MPI_UINT64_T, MPI_COMM_WORLD);
  return values;
}

std::vector<std::string> MpiWorld::gather(const std::string& text) const {
  constexpr std::size_t kBytes = 256;
  std::string own = text.substr(0, kBytes - 1);
  own.resize(kBytes);
  std::vector<char> all(kBytes * static_cast<std::size_t>(size_));
  MPI_Allgather(own.data(), kBytes, MPI_CHAR, all.data(), kBytes, MPI_CHAR, MPI_COMM_WORLD);
  std::vector<std::string> texts;
  for (std::size_t at = 0; at < all.size(); at += kBytes) {
    texts.emplace_back(all.data() + at);
  }
  return texts;
}

void MpiWorld::broadcast(std::span<std::byte> bytes) const {
  MPI_Bcast(bytes.data(), static_cast<int>(bytes.size()), MPI_BYTE, 0, MPI_COMM_WORLD);
}

void MpiWorld::end_all(int status) const {
  MPI_Abort(MPI_COMM_WORLD, status);
  std::abort();
}

}  // namespace ciera_perf
