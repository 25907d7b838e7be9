// SIZE and EXCHANGE: the rows ranks agree by, and the payloads.
#include <algorithm>
#include <numeric>

#include "pipeline/gather_call.hpp"
#include "pipeline/payload.hpp"
#include "pipeline/stopwatch.hpp"

namespace ciera::pipeline {

// Every rank concludes the same from the same rows: go on, or throw everywhere.
std::vector<SizeRow> GatherCall::agree(RowPhase phase, std::uint64_t payload_bytes) {
  const Stopwatch watch(exchange_ns_);
  const SizeRow own{.sequence = engine_.sequence,
                    .status = local_error_ ? RowStatus::kFailed : RowStatus::kOk,
                    .phase = phase,
                    .held_words = local_error_ || parts_.empty() ? std::uint16_t{0} : held_words(),
                    .call_digest = local_error_ ? 0 : call_digest(),
                    .payload_bytes = payload_bytes};
  const std::vector<SizeRow> rows = control_.exchange(own);
  if (std::ranges::any_of(rows, [](const SizeRow& row) { return row.status != RowStatus::kOk; })) {
    throw_failed(rows);
  }
  const auto differs = [&rows](const SizeRow& row) {
    return row.sequence != rows[0].sequence || row.phase != rows[0].phase ||
           row.call_digest != rows[0].call_digest;
  };
  if (std::ranges::any_of(rows, differs)) {
    throw_disagreement();
  }
  held_by_all_ = own.held_words;
  for (const SizeRow& row : rows) {
    held_by_all_ &= row.held_words;
  }
  return rows;
}

void GatherCall::throw_failed(const std::vector<SizeRow>& rows) {
  const std::vector<std::string> texts =
      control_.exchange_texts(local_error_ ? local_error_->what() : "");
  undo_new_shards();
  ++engine_.sequence;
  if (local_error_) {
    throw *local_error_;
  }
  std::string failures;
  for (std::size_t r = 0; r < rows.size(); ++r) {
    if (rows[r].status != RowStatus::kOk) {
      failures += "; rank " + std::to_string(r) + " failed: " + texts[r];
    }
  }
  throw Error(ErrorCode::kPeerFailed,
              describe_segment(0) + ": the call was given up because a peer could not take part" +
                  failures +
                  "; nothing has changed, mend it there and repeat the call on every rank");
}

void GatherCall::throw_disagreement() {
  // First find the segment that differs, then let every rank say what it has there.
  const auto counts = control_.exchange_words({keys_.size()});
  std::size_t segment = 0;
  if (std::ranges::all_of(counts, [&](std::uint64_t count) { return count == counts[0]; })) {
    std::vector<std::uint64_t> own;
    for (std::size_t s = 0; s < keys_.size(); ++s) {
      const auto* state = engine_.table.find(request_.segments[s].shard_id);
      own.push_back(keys_[s]);
      own.push_back(state == nullptr ? 0 : state->epoch);
    }
    const auto all = control_.exchange_words(own);
    const auto equal = [&](std::size_t word) {
      for (std::size_t r = 1; r < engine_.world; ++r) {
        if (all[r * own.size() + word] != all[word]) {
          return false;
        }
      }
      return true;
    };
    while (segment + 1 < keys_.size() && equal(2 * segment) && equal(2 * segment + 1)) {
      ++segment;
    }
  }
  const auto* state = engine_.table.find(request_.segments[segment].shard_id);
  const Options& options = engine_.options;
  const std::string own =
      "shard_id=" + to_string(request_.segments[segment].shard_id) +
      " dtype=" + std::string(name(request_.dtype)) +
      (request_.element_type.empty() ? "" : " (" + request_.element_type + ")") +
      " epoch=" + (state == nullptr ? "none" : std::to_string(state->epoch)) +
      " segments=" + std::to_string(keys_.size()) + " reuse=" + std::string(name(options.reuse)) +
      " coder=" + std::string(name(options.coder)) +
      " effort=" + std::string(name(options.effort)) +
      " block_size=" + std::to_string(options.block_size) + " cache_budget_bytes=" +
      (options.cache_budget_bytes ? std::to_string(*options.cache_budget_bytes) : "none") +
      " plain_below_bytes=" +
      (options.plain_below_bytes ? std::to_string(*options.plain_below_bytes) : "measured") +
      " call=" + std::to_string(engine_.sequence);
  const auto texts = control_.exchange_texts(own);
  undo_new_shards();
  ++engine_.sequence;
  throw Error(ErrorCode::kRankMismatch,
              describe_segment(segment) + ": the ranks disagree about this call (" +
                  group_by_text(texts) +
                  "); make the same calls with the same options on every rank, and after a failure "
                  "reset() on every rank");
}

void GatherCall::undo_new_shards() {
  for (const ShardId& id : new_shards_) {
    engine_.table.erase(id);
  }
  new_shards_.clear();
  states_.clear();
}

void GatherCall::exchange(const std::vector<SizeRow>& rows) {
  const Stopwatch watch(exchange_ns_);
  std::vector<std::uint64_t> counts;
  for (const SizeRow& row : rows) {
    counts.push_back(row.payload_bytes);
  }
  // A GPU reads frames in wide words; bare bytes land where they belong, at any address.
  const bool bare_flat = all_bare() && request_.layout == OutputLayout::kFlat;
  const std::uint64_t alignment = engine_.backend->kind() == Backend::kCuda && !bare_flat ? 16 : 1;
  const auto aligned = [alignment](std::uint64_t bytes) {
    return (bytes + alignment - 1) / alignment * alignment;
  };
  const std::uint64_t most = *std::ranges::max_element(counts);
  const std::uint64_t least = *std::ranges::min_element(counts);
  const std::uint64_t sum = std::accumulate(counts.begin(), counts.end(), std::uint64_t{0});
  // Where the exchange itself runs: a transport of host memory moves a GPU's frames through it.
  const bool on_gpu = engine_.backend->kind() == Backend::kCuda &&
                      engine_.transport->moves_device_memory() && !bare_flat;
  auto form =
      policy::plan_exchange({least, most, sum, counts.size()}, engine_.transport->count_support(),
                            on_gpu ? Backend::kCuda : Backend::kHost);
  if (form == policy::ExchangeForm::kEqual && aligned(most) != most) {
    form = policy::ExchangeForm::kPadded;
  }
  const bool padded = form == policy::ExchangeForm::kPadded;
  // A bare flat call lands in its output at once: that is the plain all-gather.
  received_in_place_ = bare_flat && !padded;
  std::vector<std::uint64_t> offsets(counts.size());
  std::uint64_t end = 0;
  for (std::size_t r = 0; r < counts.size(); ++r) {
    offsets[r] = end;
    end += aligned(padded ? most : counts[r]);
  }
  const auto recv = received_in_place_ ? outputs_[0] : engine_.recv_arena.reserve(end);
  std::span<const std::byte> send = payload_;
  if (padded) {
    const auto own = recv.subspan(offsets[engine_.rank], aligned(most));
    engine_.backend->copy(own.first(payload_.size()), payload_);
    engine_.backend->zero(own.subspan(payload_.size()));
    send = own;
  }
  sent_bytes_ = send.size();
  transfer(form, send, recv, counts, offsets);
  for (std::size_t r = 0; r < counts.size(); ++r) {
    payload_of_.push_back(recv.subspan(offsets[r], counts[r]));
  }
}

void GatherCall::transfer(policy::ExchangeForm form, std::span<const std::byte> send,
                          std::span<std::byte> recv, std::span<const std::uint64_t> counts,
                          std::span<const std::uint64_t> offsets) {
  Transport& transport = *engine_.transport;
  codec::CodecBackend& backend = *engine_.backend;
  const bool per_rank = form == policy::ExchangeForm::kPerRankCounts;
  if (backend.kind() == Backend::kCuda && transport.moves_device_memory()) {
    backend.comm_after_codec();
    per_rank ? transport.allgatherv_on(backend.comm_stream(), send, recv, counts, offsets)
             : transport.allgather_on(backend.comm_stream(), send, recv);
    backend.codec_after_comm();
    exchange_on_stream_ = true;
    return;
  }
  std::span<std::byte> host_recv = recv;
  if (backend.kind() == Backend::kCuda) {
    const auto host_send = engine_.staging_arena.reserve(send.size() + recv.size());
    host_recv = host_send.subspan(send.size());
    backend.download(host_send.first(send.size()), send);
    backend.wait();
    send = host_send.first(send.size());
  }
  per_rank ? transport.allgatherv(send, host_recv, counts, offsets)
           : transport.allgather(send, host_recv);
  if (backend.kind() == Backend::kCuda) {
    backend.upload(recv, host_recv);
  }
}

// An exchange on a stream is known to have succeeded, or to have missed its deadline, only here.
void GatherCall::wait_exchange() {
  if (exchange_on_stream_) {
    const Stopwatch watch(exchange_ns_);
    engine_.transport->wait_stream(engine_.backend->comm_stream());
    exchange_on_stream_ = false;
  }
}

}  // namespace ciera::pipeline
