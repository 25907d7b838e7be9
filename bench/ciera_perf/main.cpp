// ciera_perf: what nccl-tests' all_gather_perf shows, for CIERA against a plain all-gather.
// Exit status: 0, 1 when a value was wrong or the run failed, 2 for a wrong command line.
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "ciera/compressed_allgather.hpp"
#include "ciera/mpi.hpp"
#include "measure.hpp"
#include "memory_space.hpp"
#include "mpi_world.hpp"
#include "options.hpp"
#include "report.hpp"
#include "steps.hpp"
#if defined(CIERA_PERF_CUDA) && __has_include("ciera/nccl.hpp")
#include "ciera/nccl.hpp"
#define CIERA_PERF_NCCL 1
#endif

namespace ciera_perf {
namespace {

// What the calls under measurement run on.
struct Place {
  std::unique_ptr<MemorySpace> space;
  std::shared_ptr<ciera::Transport> transport;
  int device = 0;
};

#ifdef CIERA_PERF_NCCL
Place make_cuda_place(const MpiWorld& world, const PerfOptions& options,
                      std::chrono::nanoseconds timeout) {
  if (options.one_gpu) {  // NCCL refuses two ranks of one host on one GPU; before it starts
    const std::string host = MpiWorld::host() + "-" + std::to_string(world.rank());
    setenv("NCCL_HOSTID", host.c_str(), 1);
    setenv("NCCL_SOCKET_IFNAME", "lo", 1);
  }
  const int count = cuda_device_count();
  if (count == 0) {
    throw std::runtime_error("--backend cuda: no GPU here");
  }
  const int device = options.device.value_or(options.one_gpu ? 0 : world.local_rank() % count);
  Place place{.space = make_cuda_space(device), .transport = nullptr, .device = device};
  ciera::NcclUniqueId id{};
  if (world.rank() == 0) {
    id = ciera::make_nccl_unique_id();
  }
  world.broadcast(id.bytes);
  place.transport =
      ciera::make_nccl(id, ciera::Rank{static_cast<std::uint32_t>(world.rank())},
                       ciera::WorldSize{static_cast<std::uint32_t>(world.size())}, device, timeout);
  return place;
}
#endif

Place make_place(const MpiWorld& world, const PerfOptions& options) {
  const auto timeout = std::chrono::duration_cast<std::chrono::nanoseconds>(
      std::chrono::duration<double>(options.timeout_s));
#ifdef CIERA_PERF_NCCL
  if (options.backend == ciera::Backend::kCuda) {
    return make_cuda_place(world, options, timeout);
  }
#endif
  return {make_host_space(), ciera::make_mpi(world.fortran_comm(), timeout)};
}

std::unique_ptr<StepsSource> make_source(const PerfOptions& options) {
  if (options.trace.empty()) {
    return make_synthetic(options.dtype, options.change_rate, options.seed);
  }
  return make_traced(options.trace, options.shard, options.dtype, options.seed);
}

// What the command line alone cannot tell.
void check_fits(const PerfOptions& options, const MpiWorld& world) {
  const std::uint64_t least =
      ciera::element_bytes(options.dtype) * static_cast<std::uint64_t>(world.size());
  if (options.min_bytes < least) {
    throw UsageError("-b " + std::to_string(options.min_bytes) + ": give " + std::to_string(least) +
                     " or more, one element a rank");
  }
#ifndef CIERA_PERF_NCCL
  if (options.backend == ciera::Backend::kCuda) {
    throw UsageError("--backend cuda: this build has no NCCL transport; give host");
  }
#endif
}

// Whether every rank's message is empty; else the first rank that has one says it.
bool all_well(const MpiWorld& world, const std::string& message) {
  const std::vector<std::uint64_t> bad = world.gather(std::uint64_t{message.empty() ? 0U : 1U});
  for (std::size_t r = 0; r < bad.size(); ++r) {
    if (bad[r] != 0) {
      if (r == static_cast<std::size_t>(world.rank())) {
        std::fprintf(stderr, "ciera_perf: %s\n", message.c_str());
      }
      return false;
    }
  }
  return true;
}

int run(const MpiWorld& world, const PerfOptions& options, const StepsSource& source, Place& place,
        Report* report) {
  ciera::CompressedAllgather comm(place.transport, {.reuse = options.reuse,
                                                    .coder = options.coder,
                                                    .effort = options.effort,
                                                    .block_size = options.block_size,
                                                    .plain_below_bytes = options.plain_below,
                                                    .threads = options.threads,
                                                    .backend = options.backend,
                                                    .device = place.device});
  const auto ranks = world.gather("Pid " + std::to_string(getpid()) + " on " + MpiWorld::host() +
                                  " " + place.space->device_name());
  if (report != nullptr) {
    report->begin(world.library(), ranks);
  }
  Measure measure(world, options, *place.transport, comm, *place.space, source);
  std::uint64_t wrong = 0;
  for (const std::uint64_t size : sizes_of(options)) {
    const Row row = measure.run(size);
    wrong += row.out_of_place.wrong.value_or(0) + row.in_place.wrong.value_or(0);
    if (report != nullptr) {
      report->add(row);
    }
  }
  if (report != nullptr) {
    report->end(comm.plain_below_bytes().value_or(0));
  }
  return wrong == 0 ? 0 : 1;
}

int main_of_rank(int argc, char** argv, const MpiWorld& world) {
  PerfOptions options;
  std::unique_ptr<StepsSource> source;
  std::unique_ptr<Report> report;
  std::string message;
  try {
    options = parse_options(argc, argv);
    if (!options.help) {
      check_fits(options, world);
      source = make_source(options);
      report = world.rank() == 0 ? std::make_unique<Report>(options, world.size()) : nullptr;
    }
  } catch (const std::exception& error) {
    message = error.what();
  }
  if (!all_well(world, message)) {
    return 2;
  }
  if (options.help) {
    if (world.rank() == 0) {
      std::fputs(help_text().c_str(), stdout);
    }
    return 0;
  }
  try {
    Place place = make_place(world, options);
    return run(world, options, *source, place, report.get());
  } catch (const std::exception& error) {
    std::fprintf(stderr, "ciera_perf: rank %d: %s\n", world.rank(), error.what());
    world.end_all(1);  // the peers may be waiting for this rank
  }
}

}  // namespace
}  // namespace ciera_perf

int main(int argc, char** argv) {
  const ciera_perf::MpiWorld world(&argc, &argv);
  return ciera_perf::main_of_rank(argc, argv, world);
}
