// MPI for the program itself: start and end, and small exchanges between ranks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace ciera_perf {

class MpiWorld {
 public:
  MpiWorld(int* argc, char*** argv);
  ~MpiWorld();
  MpiWorld(const MpiWorld&) = delete;
  MpiWorld& operator=(const MpiWorld&) = delete;

  int rank() const { return rank_; }
  int size() const { return size_; }
  int local_rank() const { return local_rank_; }
  std::int32_t fortran_comm() const;
  std::string library() const;  // MPI's name and version
  static std::string host();

  void barrier() const;
  void max(std::span<double> values) const;
  void sum(std::span<std::uint64_t> values) const;
  std::vector<std::uint64_t> gather(std::uint64_t value) const;  // on all ranks
  std::vector<std::string> gather(const std::string& text) const;
  void broadcast(std::span<std::byte> bytes) const;  // of rank 0
  // Ends all processes: for a rank whose peers may be waiting for it.
  [[noreturn]] void end_all(int status) const;

 private:
  int rank_ = 0;
  int size_ = 1;
  int local_rank_ = 0;
};

}  // namespace ciera_perf
