// The table, as nccl-tests prints it, and JSON lines. Only rank 0 has one.
#pragma once

#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

#include "measure.hpp"
#include "options.hpp"

namespace ciera_perf {

class Report {
 public:
  // Throws UsageError when the JSON file cannot be written.
  Report(const PerfOptions& options, int ranks);
  ~Report();
  Report(const Report&) = delete;
  Report& operator=(const Report&) = delete;

  // `ranks`: one line a rank.
  void begin(const std::string& mpi_library, const std::vector<std::string>& ranks);
  void add(const Row& row);
  // `plain_below`: where CIERA hands over to the plain call, bytes of a rank.
  void end(std::uint64_t plain_below);

 private:
  void add_json(const Row& row);
  std::string json_result(const Result& result, std::uint64_t size) const;
  double algbw(std::uint64_t size, double us) const;  // GB/s of user bytes
  double busbw(std::uint64_t size, double us) const;

  const PerfOptions& options_;
  int ranks_;
  std::FILE* table_ = nullptr;
  std::FILE* json_ = nullptr;
  std::size_t results_ = 0;
  std::uint64_t wrong_ = 0;
  double plain_busbw_sum_ = 0;
  double ciera_busbw_sum_ = 0;
  double log_speed_up_sum_ = 0;
};

}  // namespace ciera_perf
