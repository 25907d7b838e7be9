// Times the plain all-gather and CIERA's in turn on the same words.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "ciera/compressed_allgather.hpp"
#include "memory_space.hpp"
#include "mpi_world.hpp"
#include "options.hpp"
#include "steps.hpp"

namespace ciera_perf {

// Times are of the slowest rank: per iteration the maximum, then the mean over iterations. Bytes
// are of all ranks, per call, key frames of the warm-up left out.
struct Result {
  double plain_us = 0;
  double ciera_us = 0;
  double p50_us = 0;  // of CIERA's calls
  double p99_us = 0;
  double raw_bytes = 0;
  double wire_bytes = 0;
  std::optional<std::uint64_t> wrong{};  // elements, all ranks and iterations; nothing: unchecked

  double wire_ratio() const { return wire_bytes > 0 ? raw_bytes / wire_bytes : 0; }
  double speed_up() const { return ciera_us > 0 ? plain_us / ciera_us : 0; }
};

struct Row {
  std::uint64_t size = 0;   // bytes of the gathered buffer
  std::uint64_t count = 0;  // values of one rank
  Result out_of_place{};
  Result in_place{};
};

class Measure {
 public:
  // All references must outlive it.
  Measure(const MpiWorld& world, const PerfOptions& options, ciera::Transport& transport,
          ciera::CompressedAllgather& comm, MemorySpace& space, const StepsSource& source);

  // Collective. `size` is rounded down to whole values of every rank.
  Row run(std::uint64_t size);

 private:
  // Buffers of one size. In place, `send_` is not used: each result buffer holds the own slot.
  struct Buffers {
    Buffer send;
    Buffer plain;
    Buffer ciera;
  };
  enum class Place { kOut, kIn };

  Result run_variant(const Buffers& buffers, Steps& steps, Place place);
  std::span<std::byte> slot(const Buffer& gathered, std::size_t rank) const;
  void prepare(const Buffers& buffers, const Steps& steps, Place place);
  double time_plain(std::span<const std::byte> src, std::span<std::byte> out);
  double time_ciera(const ciera::ShardId& shard_id, std::span<const std::byte> src,
                    std::span<std::byte> out);
  std::uint64_t count_wrong(const Buffers& buffers, const Steps& steps);
  Result summarise(std::vector<double> plain_us, std::vector<double> ciera_us,
                   const ciera::Stats& before, const ciera::Stats& after) const;

  const MpiWorld& world_;
  const PerfOptions& options_;
  ciera::Transport& transport_;
  ciera::CompressedAllgather& comm_;
  MemorySpace& space_;
  const StepsSource& source_;
  std::uint64_t count_ = 0;
};

}  // namespace ciera_perf
