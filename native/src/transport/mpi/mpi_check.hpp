// Turns MPI's return codes into Error.
#pragma once

#include <mpi.h>

#include <string>

#include "ciera/error.hpp"

namespace ciera::mpi {

inline std::string error_text(int code) {
  char text[MPI_MAX_ERROR_STRING] = {};
  int length = 0;
  if (MPI_Error_string(code, text, &length) != MPI_SUCCESS) {
    return "MPI error " + std::to_string(code);
  }
  return {text, static_cast<std::size_t>(length)};
}

inline void check(int code, int rank, const char* call, const char* file, int line) {
  if (code != MPI_SUCCESS) {
    throw Error(ErrorCode::kTransport, "mpi transport, rank " + std::to_string(rank) + ": " +
                                           error_text(code) + " from " + call + " (" + file + ":" +
                                           std::to_string(line) + ")");
  }
}

}  // namespace ciera::mpi

// `rank` is this process's, for the message.
#define CIERA_MPI_TRY(rank, call) ::ciera::mpi::check((call), (rank), #call, __FILE__, __LINE__)
