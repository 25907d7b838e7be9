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
  kDevice,          // the GPU or its driver failed
};

class Error : public std::runtime_error {
 public:
  Error(ErrorCode code, const std::string& message) : std::runtime_error(message), code_(code) {}
  ErrorCode code() const { return code_; }

 private:
  ErrorCode code_;
};

}  // namespace ciera
