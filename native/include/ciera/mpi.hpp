// Ranks as MPI processes. In the library ciera::ciera_mpi; no mpi.h here.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>

#include "ciera/transport.hpp"

namespace ciera {

// A transport of host memory over a duplicate of a communicator. `fortran_comm` is its
// MPI_Comm_c2f handle, an intracommunicator; it stays the caller's. Collective over it, and so is
// the destruction, which has to come before MPI_Finalize.
//
// MPI must have been initialised with MPI_THREAD_SERIALIZED at least, since calls may come from a
// communicator's own thread; a caller who uses MPI while a call is under way needs
// MPI_THREAD_MULTIPLE, as MPI demands.
//
// A call that waits longer than `timeout` for its peers throws Error (kDeadline). MPI cannot take a
// collective back: after kDeadline, or an abort with a call under way, the buffers of that call
// must live until the process ends, and the transport's communicator is not freed. abort() reaches
// the peers at once with MPI_THREAD_MULTIPLE, else when this rank's call polls, is made or the
// transport is destroyed.
//
// Throws Error (kArgument) when MPI is not initialised, finalised, lacks the thread level or the
// communicator is null or an intercommunicator; Error (kTransport) with MPI's text when MPI fails.
std::shared_ptr<Transport> make_mpi(std::int32_t fortran_comm, std::chrono::nanoseconds timeout);

}  // namespace ciera
