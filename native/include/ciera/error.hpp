// The one exception type of the library. A caller's mistake and a failing environment throw; bad
// data from a peer is a Verdict first and becomes an Error with kFrame on every rank.
#pragma once

#include <stdexcept>
#include <string>

namespace ciera {

enum class ErrorCode {
  kArgument,        // wrong input of this rank
  kShardChanged,    // dtype or length of a shard_id changed without reset
  kRankMismatch,    // the ranks asked for different calls
  kPeerFailed,      // another rank reported its own error in this call
  kFrame,           // a frame was refused
  kTransport,       // the transport failed; the communicator is unusable
  kDeadline,        // a wait outlasted its deadline; the communicator is unusable
  kClosed,          // the communicator is closed
  kConcurrentCall,  // two threads at once
  kOutOfMemory,     // host or GPU memory; nothing has changed
  kDevice,          // the GPU or its driver failed
  kNoDevice,        // no usable GPU: none, driver too old, or a build without CUDA
  kWrongDevice,     // memory of another device than the communicator's
  kLibrary,         // a library that is loaded at run time (NCCL, nvCOMP) is missing or unusable
};

class Error : public std::runtime_error {
 public:
  Error(ErrorCode code, const std::string& message) : std::runtime_error(message), code_(code) {}
  ErrorCode code() const { return code_; }

 private:
  ErrorCode code_;
};

}  // namespace ciera
