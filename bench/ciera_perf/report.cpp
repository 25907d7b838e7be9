#include "report.hpp"

#include <array>
#include <cmath>
#include <cstdarg>

namespace ciera_perf {
namespace {

[[gnu::format(printf, 1, 2)]] std::string text(const char* format, ...) {
  std::array<char, 1024> line{};
  std::va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(line.data(), line.size(), format, arguments);
  va_end(arguments);
  return line.data();
}

std::string quoted(const std::string& raw) {
  std::string json = "\"";
  for (const char c : raw) {
    if (c == '"' || c == '\\') {
      json += '\\';
    }
    json += static_cast<unsigned char>(c) < 0x20 ? text("\\u%04x", static_cast<unsigned>(c))
                                                 : std::string(1, c);
  }
  return json + "\"";
}

const char* backend_word(ciera::Backend backend) {
  return backend == ciera::Backend::kCuda ? "cuda" : "host";
}

constexpr char kResultNames[] = "%9s %7s %7s %9s %7s %7s %11s %6s %8s %6s %9s %9s";

std::string result_names() {
  return text(kResultNames, "plain", "algbw", "busbw", "CIERA", "algbw", "busbw", "wire", "ratio",
              "speed-up", "#wrong", "p50", "p99");
}

std::string result_units() {
  return text(kResultNames, "(us)", "(GB/s)", "(GB/s)", "(us)", "(GB/s)", "(GB/s)", "(B)", "", "",
              "", "(us)", "(us)");
}

}  // namespace

Report::Report(const PerfOptions& options, int ranks) : options_(options), ranks_(ranks) {
  if (options.json == "-") {
    json_ = stdout;
    return;
  }
  table_ = stdout;
  if (!options.json.empty()) {
    json_ = std::fopen(options.json.c_str(), "w");
    if (json_ == nullptr) {
      throw UsageError("--json " + options.json + ": give a file that can be written, or -");
    }
  }
}

Report::~Report() {
  if (json_ != nullptr && json_ != stdout) {
    std::fclose(json_);
  }
}

double Report::algbw(std::uint64_t size, double us) const {
  return us > 0 ? static_cast<double>(size) / us / 1e3 : 0;
}

double Report::busbw(std::uint64_t size, double us) const {
  return algbw(size, us) * (ranks_ - 1) / ranks_;
}

void Report::begin(const std::string& mpi_library, const std::vector<std::string>& ranks) {
  if (table_ == nullptr) {
    return;
  }
  const std::string data = options_.trace.empty()
                               ? text("synthetic, change rate %g", options_.change_rate)
                               : options_.trace + ", shard " + options_.shard;
  std::fprintf(table_, "# ciera_perf %s, %s\n", CIERA_VERSION, mpi_library.c_str());
  std::fprintf(table_,
               "# minBytes %llu maxBytes %llu step: %llu(%s) warmup iters: %zu iters: %zu "
               "validation: %d\n",
               static_cast<unsigned long long>(options_.min_bytes),
               static_cast<unsigned long long>(options_.max_bytes),
               static_cast<unsigned long long>(options_.step_factor > 1 ? options_.step_factor
                                                                        : options_.step_bytes),
               options_.step_factor > 1 ? "factor" : "bytes", options_.warm_up, options_.iterations,
               options_.check ? 1 : 0);
  std::fprintf(
      table_, "# reuse %s coder %s effort %s block size %u backend %s\n# data: %s, seed %llu\n#\n",
      std::string(ciera::name(options_.reuse)).c_str(),
      std::string(ciera::name(options_.coder)).c_str(),
      std::string(ciera::name(options_.effort)).c_str(), options_.block_size,
      backend_word(options_.backend), data.c_str(), static_cast<unsigned long long>(options_.seed));
  for (std::size_t r = 0; r < ranks.size(); ++r) {
    std::fprintf(table_, "#  Rank %2zu %s\n", r, ranks[r].c_str());
  }
  const int width = static_cast<int>(result_names().size());
  std::fprintf(table_, "#\n# %34s %*s %*s\n", "", width, "out-of-place", width, "in-place");
  std::fprintf(table_, "# %11s %12s %9s %s %s\n", "size", "count", "type", result_names().c_str(),
               result_names().c_str());
  std::fprintf(table_, "# %11s %12s %9s %s %s\n", "(B)", "(elements)", "", result_units().c_str(),
               result_units().c_str());
  std::fflush(table_);
}

void Report::add(const Row& row) {
  std::string line =
      text("%13llu %12llu %9s", static_cast<unsigned long long>(row.size),
           static_cast<unsigned long long>(row.count), dtype_word(options_.dtype).c_str());
  for (const Result* result : {&row.out_of_place, &row.in_place}) {
    const std::string wrong = result->wrong ? std::to_string(*result->wrong) : "N/A";
    line += text(
        " %9.1f %7.2f %7.2f %9.1f %7.2f %7.2f %11.0f %6.3f %8.3f %6s %9.1f %9.1f", result->plain_us,
        algbw(row.size, result->plain_us), busbw(row.size, result->plain_us), result->ciera_us,
        algbw(row.size, result->ciera_us), busbw(row.size, result->ciera_us), result->wire_bytes,
        result->wire_ratio(), result->speed_up(), wrong.c_str(), result->p50_us, result->p99_us);
    ++results_;
    wrong_ += result->wrong.value_or(0);
    plain_busbw_sum_ += busbw(row.size, result->plain_us);
    ciera_busbw_sum_ += busbw(row.size, result->ciera_us);
    log_speed_up_sum_ += std::log(result->speed_up());
  }
  if (table_ != nullptr) {
    std::fprintf(table_, "%s\n", line.c_str());
    std::fflush(table_);
  }
  if (json_ != nullptr) {
    add_json(row);
  }
}

std::string Report::json_result(const Result& result, std::uint64_t size) const {
  return text(
      "{\"plain_us\": %.3f, \"plain_algbw\": %.6f, \"plain_busbw\": %.6f, \"ciera_us\": %.3f, "
      "\"ciera_algbw\": %.6f, \"ciera_busbw\": %.6f, \"raw_bytes\": %.1f, \"wire_bytes\": %.1f, "
      "\"wire_ratio\": %.6f, \"speed_up\": %.6f, \"wrong\": %s, \"p50_us\": %.3f, "
      "\"p99_us\": %.3f}",
      result.plain_us, algbw(size, result.plain_us), busbw(size, result.plain_us), result.ciera_us,
      algbw(size, result.ciera_us), busbw(size, result.ciera_us), result.raw_bytes,
      result.wire_bytes, result.wire_ratio(), result.speed_up(),
      result.wrong ? std::to_string(*result.wrong).c_str() : "null", result.p50_us, result.p99_us);
}

void Report::add_json(const Row& row) {
  const std::string data =
      options_.trace.empty()
          ? text("\"change_rate\": %g", options_.change_rate)
          : "\"trace\": " + quoted(options_.trace) + ", \"shard\": " + quoted(options_.shard);
  std::fprintf(
      json_,
      "{\"size\": %llu, \"count\": %llu, \"datatype\": \"%s\", \"ranks\": %d, \"backend\": \"%s\", "
      "\"reuse\": \"%s\", \"coder\": \"%s\", \"effort\": \"%s\", \"block_size\": %u, \"iters\": "
      "%zu, "
      "\"warmup_iters\": %zu, %s, \"seed\": %llu, \"out_of_place\": %s, \"in_place\": %s}\n",
      static_cast<unsigned long long>(row.size), static_cast<unsigned long long>(row.count),
      dtype_word(options_.dtype).c_str(), ranks_, backend_word(options_.backend),
      std::string(ciera::name(options_.reuse)).c_str(),
      std::string(ciera::name(options_.coder)).c_str(),
      std::string(ciera::name(options_.effort)).c_str(), options_.block_size, options_.iterations,
      options_.warm_up, data.c_str(), static_cast<unsigned long long>(options_.seed),
      json_result(row.out_of_place, row.size).c_str(), json_result(row.in_place, row.size).c_str());
  std::fflush(json_);
}

void Report::end(std::uint64_t plain_below) {
  if (table_ == nullptr) {
    return;
  }
  const auto results = static_cast<double>(results_);
  const std::string verdict =
      options_.check ? std::to_string(wrong_) + (wrong_ == 0 ? " OK" : " FAILED") : "N/A";
  std::fprintf(table_, "# Out of bounds values : %s\n", verdict.c_str());
  std::fprintf(table_, "# Avg bus bandwidth    : plain %.4f, CIERA %.4f\n",
               plain_busbw_sum_ / results, ciera_busbw_sum_ / results);
  std::fprintf(table_, "# Handed over below    : %llu bytes a rank\n",
               static_cast<unsigned long long>(plain_below));
  std::fprintf(table_, "# Avg speed-up         : %.4f (geometric mean)\n#\n",
               std::exp(log_speed_up_sum_ / results));
}

}  // namespace ciera_perf
