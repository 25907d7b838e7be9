#include "measure.hpp"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <numeric>
#include <string>

namespace ciera_perf {
namespace {

double now_us() {
  return std::chrono::duration<double, std::micro>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

std::uint64_t digest(std::span<const std::byte> bytes) {
  std::uint64_t sum = bytes.size();
  for (std::size_t at = 0; at < bytes.size(); at += 8) {
    std::uint64_t word = 0;
    std::memcpy(&word, bytes.data() + at, std::min<std::size_t>(8, bytes.size() - at));
    sum = mixed(sum ^ word);
  }
  return sum;
}

std::uint64_t differing(std::span<const std::byte> a, std::span<const std::byte> b,
                        std::size_t element_bytes) {
  if (std::memcmp(a.data(), b.data(), a.size()) == 0) {
    return 0;
  }
  std::uint64_t count = 0;
  for (std::size_t at = 0; at < a.size(); at += element_bytes) {
    count += std::memcmp(a.data() + at, b.data() + at, element_bytes) != 0 ? 1 : 0;
  }
  return count;
}

// The smallest value that `percent` of the values do not exceed.
double percentile(std::vector<double> values, std::size_t percent) {
  const std::size_t index = (values.size() * percent + 99) / 100 - 1;
  const auto at = values.begin() + static_cast<std::ptrdiff_t>(index);
  std::nth_element(values.begin(), at, values.end());
  return *at;
}

double mean(const std::vector<double>& values) {
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

}  // namespace

Measure::Measure(const MpiWorld& world, const PerfOptions& options, ciera::Transport& transport,
                 ciera::CompressedAllgather& comm, MemorySpace& space, const StepsSource& source)
    : world_(world),
      options_(options),
      transport_(transport),
      comm_(comm),
      space_(space),
      source_(source) {}

Row Measure::run(std::uint64_t size) {
  const std::size_t element = ciera::element_bytes(options_.dtype);
  const auto ranks = static_cast<std::uint64_t>(world_.size());
  count_ = size / ranks / element;
  const std::size_t own_bytes = count_ * element;
  const Buffers buffers{space_.allocate(own_bytes), space_.allocate(own_bytes * ranks),
                        space_.allocate(own_bytes * ranks)};
  const auto steps = source_.make(static_cast<std::size_t>(world_.rank()), count_);
  Row row{.size = own_bytes * ranks, .count = count_};
  row.out_of_place = run_variant(buffers, *steps, Place::kOut);
  row.in_place = run_variant(buffers, *steps, Place::kIn);
  return row;
}

Result Measure::run_variant(const Buffers& buffers, Steps& steps, Place place) {
  const auto rank = static_cast<std::size_t>(world_.rank());
  const bool in_place = place == Place::kIn;
  const std::span<std::byte> plain_src = in_place ? slot(buffers.plain, rank) : buffers.send.span();
  const std::span<std::byte> ciera_src = in_place ? slot(buffers.ciera, rank) : buffers.send.span();
  const ciera::ShardId shard_id = std::string(in_place ? "in place" : "out of place");
  ciera::Stats before;
  std::vector<double> plain_us;
  std::vector<double> ciera_us;
  std::uint64_t wrong = 0;
  comm_.reset();  // the shards of another size
  for (std::size_t i = 0; i < options_.warm_up + options_.iterations; ++i) {
    if (i == options_.warm_up) {
      before = comm_.stats(shard_id);
    }
    steps.advance();
    prepare(buffers, steps, place);
    double plain = 0;
    double ciera = 0;
    // Who goes first changes: the second finds the words in the processor's caches.
    for (const bool plain_turn : {i % 2 == 0, i % 2 != 0}) {
      if (plain_turn) {
        plain = time_plain(plain_src, buffers.plain.span());
      } else {
        ciera = time_ciera(shard_id, ciera_src, buffers.ciera.span());
      }
    }
    if (i >= options_.warm_up) {
      plain_us.push_back(plain);
      ciera_us.push_back(ciera);
    }
    wrong += options_.check ? count_wrong(buffers, steps) : 0;
  }
  Result result =
      summarise(std::move(plain_us), std::move(ciera_us), before, comm_.stats(shard_id));
  if (options_.check) {
    world_.sum({&wrong, 1});
    result.wrong = wrong;
  }
  return result;
}

std::span<std::byte> Measure::slot(const Buffer& gathered, std::size_t rank) const {
  const std::size_t bytes = count_ * ciera::element_bytes(options_.dtype);
  return gathered.span().subspan(rank * bytes, bytes);
}

void Measure::prepare(const Buffers& buffers, const Steps& steps, Place place) {
  if (options_.check) {  // nothing of the step before may pass for a result
    space_.zero(buffers.plain.span());
    space_.zero(buffers.ciera.span());
  }
  if (place == Place::kOut) {
    space_.copy_in(buffers.send.span(), steps.words());
    return;
  }
  const auto rank = static_cast<std::size_t>(world_.rank());
  space_.copy_in(slot(buffers.plain, rank), steps.words());
  space_.copy_in(slot(buffers.ciera, rank), steps.words());
}

double Measure::time_plain(std::span<const std::byte> src, std::span<std::byte> out) {
  world_.barrier();
  const double start = now_us();
  if (options_.backend == ciera::Backend::kCuda) {
    transport_.allgather_on(space_.stream(), src, out);
    transport_.wait_stream(space_.stream());
  } else {
    transport_.allgather(src, out);
  }
  return now_us() - start;
}

double Measure::time_ciera(const ciera::ShardId& shard_id, std::span<const std::byte> src,
                           std::span<std::byte> out) {
  world_.barrier();
  const double start = now_us();
  comm_.allgather({.segments = {{shard_id, count_}},
                   .dtype = options_.dtype,
                   .src = src,
                   .out = {out},
                   .stream = space_.stream()});
  if (options_.backend == ciera::Backend::kCuda) {
    transport_.wait_stream(space_.stream());
  }
  return now_us() - start;
}

// The plain result is held against digests that travelled by MPI, a wrong slot counting whole;
// CIERA's against the plain one, value by value.
std::uint64_t Measure::count_wrong(const Buffers& buffers, const Steps& steps) {
  const std::vector<std::uint64_t> digests = world_.gather(digest(steps.words()));
  std::vector<std::byte> plain(steps.words().size());
  std::vector<std::byte> ciera(steps.words().size());
  std::uint64_t wrong = 0;
  for (std::size_t r = 0; r < digests.size(); ++r) {
    space_.copy_out(plain, slot(buffers.plain, r));
    space_.copy_out(ciera, slot(buffers.ciera, r));
    wrong += digest(plain) == digests[r]
                 ? differing(plain, ciera, ciera::element_bytes(options_.dtype))
                 : count_;
  }
  return wrong;
}

Result Measure::summarise(std::vector<double> plain_us, std::vector<double> ciera_us,
                          const ciera::Stats& before, const ciera::Stats& after) const {
  world_.max(plain_us);
  world_.max(ciera_us);
  std::vector<std::uint64_t> bytes{after.raw_bytes - before.raw_bytes,
                                   after.wire_bytes - before.wire_bytes};
  world_.sum(bytes);
  const auto calls = static_cast<double>(options_.iterations);
  return {.plain_us = mean(plain_us),
          .ciera_us = mean(ciera_us),
          .p50_us = percentile(ciera_us, 50),
          .p99_us = percentile(ciera_us, 99),
          .raw_bytes = static_cast<double>(bytes[0]) / calls,
          .wire_bytes = static_cast<double>(bytes[1]) / calls};
}

}  // namespace ciera_perf
