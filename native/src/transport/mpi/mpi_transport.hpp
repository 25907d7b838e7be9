// The transport behind make_mpi, with the size of its rounds open to tests.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>

#include "ciera/transport.hpp"

namespace ciera::mpi {

// What one collective moves at most: MPI counts and displacements are ints.
inline constexpr std::uint64_t kRoundBytes = 0x7fffffff;

std::shared_ptr<Transport> make_with_rounds(std::int32_t fortran_comm,
                                            std::chrono::nanoseconds timeout,
                                            std::uint64_t round_bytes);

}  // namespace ciera::mpi
