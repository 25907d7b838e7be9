// The rows ranks exchange beside payloads, and what ranks conclude from them together.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "ciera/compressed_allgather.hpp"

namespace ciera::pipeline {

enum class RowStatus : std::uint8_t { kOk = 0, kFailed = 1 };
// kNew: at least one shard of the call is unknown to this rank, so lengths have to be exchanged
// first.
enum class RowPhase : std::uint8_t { kNew = 1, kReady = 2 };

// SIZE. Two ranks agree when everything but held_words and payload_bytes is equal.
struct SizeRow {
  std::uint32_t sequence = 0;
  RowStatus status = RowStatus::kOk;
  RowPhase phase = RowPhase::kReady;
  std::uint16_t held_words = 0;   // a bit a segment: this rank will hold all words; kReady
  std::uint64_t call_digest = 0;  // options, wire version; shards, types, epochs, in order
  std::uint64_t payload_bytes = 0;
};
static_assert(sizeof(SizeRow) == 24);

enum class VerdictClass : std::uint8_t { kOk = 0, kFrameRefused = 1, kFailed = 2 };

struct VerdictRow {
  VerdictClass kind = VerdictClass::kOk;
  Verdict verdict = Verdict::kOk;
  std::uint16_t source_rank = 0;
  std::uint32_t segment = 0;
};
static_assert(sizeof(VerdictRow) == 8);

// Exchanges rows and remembers how many bytes of them this rank sent.
class ControlPlane {
 public:
  explicit ControlPlane(Transport& transport) : transport_(transport) {}

  template <class Row>
  std::vector<Row> exchange(const Row& own) {
    std::vector<Row> rows(value(transport_.world_size()));
    gather(std::as_bytes(std::span(&own, 1)), std::as_writable_bytes(std::span(rows)));
    return rows;
  }
  // `own` has the same size on every rank.
  std::vector<std::uint64_t> exchange_words(const std::vector<std::uint64_t>& own);
  // Cut to a fixed length.
  std::vector<std::string> exchange_texts(const std::string& own);

  std::uint64_t sent_bytes() const { return sent_bytes_; }

 private:
  void gather(std::span<const std::byte> own, std::span<std::byte> all);

  Transport& transport_;
  std::uint64_t sent_bytes_ = 0;
};

// "rank 0: TEXT; rank 1: TEXT", equal texts once ("ranks 0, 2: TEXT").
std::string group_by_text(const std::vector<std::string>& texts);

}  // namespace ciera::pipeline
