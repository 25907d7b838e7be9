// The command line, with the flags of nccl-tests where both have them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "ciera/types.hpp"

namespace ciera_perf {

struct PerfOptions {
  std::uint64_t min_bytes = 32ULL << 20;  // of the whole gathered buffer
  std::uint64_t max_bytes = 32ULL << 20;
  std::uint64_t step_factor = 1;  // above 1 it beats step_bytes
  std::uint64_t step_bytes = 1ULL << 20;
  std::size_t iterations = 20;
  std::size_t warm_up = 5;
  bool check = true;
  ciera::DType dtype = ciera::DType::kBf16;
  ciera::ReuseMode reuse = ciera::ReuseMode::kExponentBlock;
  ciera::Coder coder = ciera::Coder::kRans;
  ciera::Effort effort = ciera::Effort::kDefault;
  std::uint32_t block_size = 512;
  std::size_t threads = 0;
  std::optional<std::uint64_t> plain_below{};  // nothing: measured over NCCL, 0 elsewhere
  std::string trace{};                         // empty: synthetic words
  std::string shard = "expert_ffn";
  double change_rate = 0.05;
  std::uint64_t seed = 1;
  std::string json{};  // empty: none; "-": stdout instead of the table
  ciera::Backend backend = ciera::Backend::kHost;
  std::optional<int> device{};  // nothing: the rank's number on its host
  bool one_gpu = false;
  double timeout_s = 600;
  bool help = false;
};

// One line that says which argument is wrong and what it may be.
class UsageError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// Throws UsageError.
PerfOptions parse_options(int argc, char** argv);
std::string help_text();

// The bytes of each row, in order.
std::vector<std::uint64_t> sizes_of(const PerfOptions& options);

// nccl-tests' word: "bfloat16", "half", "float".
std::string dtype_word(ciera::DType dtype);

}  // namespace ciera_perf
