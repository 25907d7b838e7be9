// DECODE and SETTLE: verdicts over what arrived, then commit on every rank or drop on every rank.
#include <algorithm>

#include "pipeline/gather_call.hpp"
#include "pipeline/payload.hpp"
#include "pipeline/stopwatch.hpp"

namespace ciera::pipeline {
namespace {

VerdictRow refused(Verdict verdict, std::size_t rank, std::size_t segment) {
  return {VerdictClass::kFrameRefused, verdict, static_cast<std::uint16_t>(rank),
          static_cast<std::uint32_t>(segment)};
}

}  // namespace

VerdictRow GatherCall::decode() {
  const std::uint64_t exchanged_ns = exchange_ns_;
  const VerdictRow verdict = decode_timed();
  decode_ns_ -= exchange_ns_ - exchanged_ns;  // what was waiting for the exchange
  return verdict;
}

VerdictRow GatherCall::decode_timed() {
  const Stopwatch watch(decode_ns_);
  digests_.assign(parts_.size(), std::vector<std::uint64_t>(engine_.world));
  for (std::size_t s = 0; s < parts_.size(); ++s) {
    digests_[s][engine_.rank] = parts_[s].encoded.checksum;
  }
  try {
    if (const VerdictRow row = split_payloads(); row.kind != VerdictClass::kOk) {
      return row;
    }
    std::vector<codec::DecodeJob> jobs = decode_jobs();
    return run_decode(jobs);
  } catch (const Error& error) {
    if (error.code() == ErrorCode::kTransport || error.code() == ErrorCode::kDeadline) {
      throw;
    }
    fail(error.code(), std::string("decoding failed (") + error.what() + ")");
  } catch (const std::exception& error) {
    fail(ErrorCode::kOutOfMemory, std::string("decoding failed (") + error.what() + ")");
  }
  return {VerdictClass::kFailed, Verdict::kOk, static_cast<std::uint16_t>(engine_.rank), 0};
}

// Finds every peer's parts; bad_sizes or bad_padding when a directory does not fit its payload.
VerdictRow GatherCall::split_payloads() {
  parts_of_.resize(engine_.world);
  std::vector<std::vector<std::byte>> directories(engine_.world);
  if (parts_.size() > 1 && !all_bare()) {
    wait_exchange();
    for (std::size_t r = 0; r < engine_.world; ++r) {
      directories[r].resize(
          std::min<std::uint64_t>(directory_bytes(parts_.size()), payload_of_[r].size()));
      engine_.backend->download(directories[r], payload_of_[r].first(directories[r].size()));
    }
    engine_.backend->wait();
  }
  for (std::size_t r = 0; r < engine_.world; ++r) {
    if (r == engine_.rank || received_in_place_) {
      continue;
    }
    if (all_bare()) {
      if (const VerdictRow row = split_bare(r); row.kind != VerdictClass::kOk) {
        return row;
      }
      continue;
    }
    auto split = split_payload(directories[r], payload_of_[r], parts_.size());
    if (!split) {
      return refused(Verdict::kBadSizes, r, 0);
    }
    if (!split->gaps.empty() && !engine_.backend->all_zero(split->gaps)) {
      return refused(Verdict::kBadPadding, r, 0);
    }
    parts_of_[r] = std::move(split->parts);
    for (std::size_t s = 0; s < parts_.size(); ++s) {
      if (parts_[s].plan.form == policy::PartForm::kBare &&
          parts_of_[r][s].size() != states_[s]->numels[r] * element_bytes(request_.dtype)) {
        return refused(Verdict::kBadSizes, r, s);
      }
    }
  }
  return {};
}

// A call of bare segments only has no directory and no gaps.
VerdictRow GatherCall::split_bare(std::size_t rank) {
  const std::size_t width = element_bytes(request_.dtype);
  std::uint64_t offset = 0;
  for (std::size_t s = 0; s < parts_.size(); ++s) {
    const std::uint64_t bytes = states_[s]->numels[rank] * width;
    if (bytes > payload_of_[rank].size() - offset) {
      return refused(Verdict::kBadSizes, rank, s);
    }
    parts_of_[rank].push_back(payload_of_[rank].subspan(offset, bytes));
    offset += bytes;
  }
  return offset == payload_of_[rank].size() ? VerdictRow{} : refused(Verdict::kBadSizes, rank, 0);
}

// One job for each framed part of each peer, rank by rank.
std::vector<codec::DecodeJob> GatherCall::decode_jobs() {
  std::vector<codec::DecodeJob> jobs;
  move_words_into_buffers();
  for (std::size_t r = 0; r < engine_.world; ++r) {
    for (std::size_t s = 0; s < parts_.size() && r != engine_.rank; ++s) {
      if (parts_[s].plan.form == policy::PartForm::kBare) {
        continue;
      }
      codec::DecodeJob job{.expected = params(s, r), .frame = parts_of_[r][s]};
      if (states_[s]->stateful()) {
        job.exponents = states_[s]->peer_cache(r);
      }
      job.dst =
          held_[s].buffer != nullptr ? held_[s].buffer->part(r) : output_map_->slot(outputs_, s, r);
      jobs.push_back(job);
    }
  }
  return jobs;
}

VerdictRow GatherCall::run_decode(std::vector<codec::DecodeJob>& jobs) {
  codec::CodecBackend& backend = *engine_.backend;
  const auto is_refused = [](const codec::DecodeJob& job) { return job.verdict != Verdict::kOk; };
  backend.start_decode(jobs);
  if (std::ranges::none_of(jobs, is_refused)) {
    copy_bare_and_own();
  }
  wait_exchange();
  backend.finish_decode(jobs);
  auto job = jobs.begin();
  for (std::size_t r = 0; r < engine_.world; ++r) {
    for (std::size_t s = 0; s < parts_.size() && r != engine_.rank; ++s) {
      if (parts_[s].plan.form == policy::PartForm::kFrame) {
        if (is_refused(*job)) {
          return refused(job->verdict, r, s);
        }
        digests_[s][r] = job->info.checksum;
        ++job;
      }
    }
  }
  return {};
}

void GatherCall::copy_bare_and_own() {
  for (std::size_t s = 0; s < parts_.size(); ++s) {
    if (parts_[s].plan.form == policy::PartForm::kFrame && held_[s].buffer != nullptr) {
      copy_held(s);
      continue;
    }
    engine_.backend->copy(output_map_->slot(outputs_, s, engine_.rank), src_part(s));
    if (parts_[s].plan.form == policy::PartForm::kFrame || received_in_place_) {
      continue;
    }
    for (std::size_t r = 0; r < engine_.world; ++r) {
      if (r != engine_.rank) {
        engine_.backend->copy(output_map_->slot(outputs_, s, r), parts_of_[r][s]);
      }
    }
  }
}

void GatherCall::settle(const VerdictRow& own_verdict) {
  std::vector<VerdictRow> rows;
  if (!all_bare()) {
    const Stopwatch watch(exchange_ns_);
    rows = control_.exchange(own_verdict);
  } else {
    rows.push_back(own_verdict);  // nothing was decoded: only the transport could have failed
  }
  const auto bad = std::ranges::find_if(
      rows, [](const VerdictRow& row) { return row.kind != VerdictClass::kOk; });
  if (bad == rows.end()) {
    commit();
    count();
    return;
  }
  for (cache::ShardState* state : states_) {
    if (state->stateful()) {
      state->drop();
    }
  }
  if (local_error_) {
    throw *local_error_;
  }
  const std::size_t judge =
      all_bare() ? engine_.rank : static_cast<std::size_t>(bad - rows.begin());
  // The row comes from a peer: an index outside this call must not be followed.
  const std::size_t segment = bad->segment < parts_.size() ? bad->segment : 0;
  const std::string what =
      bad->kind == VerdictClass::kFrameRefused
          ? "rank " + std::to_string(judge) + " refused what rank " +
                std::to_string(bad->source_rank) + " sent: " + std::string(name(bad->verdict))
          : "rank " + std::to_string(judge) + " failed while decoding, its own error says why";
  throw Error(
      ErrorCode::kFrame,
      describe_segment(segment) + ": " + what +
          "; every rank has dropped its state of this call's shards and out is unspecified: "
          "repeat the call on every rank, it will send key frames");
}

void GatherCall::commit() {
  constexpr std::size_t kLastBit = 15;
  bool stored = false;
  for (std::size_t s = 0; s < parts_.size(); ++s) {
    cache::ShardState& state = *states_[s];
    if (!state.stateful()) {
      continue;
    }
    if (parts_[s].plan.form == policy::PartForm::kBare) {  // the reference is what it was
      state.words_everywhere = false;
      state.version.reset();  // which therefore is not what the last call's token stands for
      if (!state.in_words()) {
        state.guards.clear();
      }
      continue;
    }
    stored = keep_own_words(s) || stored;
    state.words_everywhere = !state.in_words() && (held_by_all_ >> std::min(s, kLastBit) & 1) != 0;
    state.commit(digests_[s], parts_[s].encoded.kind,
                 request_.versions.empty() ? std::optional<Version>() : request_.versions[s]);
  }
  if (stored) {
    engine_.backend->wait();  // src is the caller's again when the call is complete
  }
  for (std::size_t s = 0; s < parts_.size(); ++s) {
    if (states_[s]->stateful() && parts_[s].plan.form == policy::PartForm::kFrame) {
      renew_guards(s);
    }
  }
}

void GatherCall::count() {
  const std::size_t width = element_bytes(request_.dtype);
  std::uint64_t parts_bytes = 0;
  for (const Part& part : parts_) {
    parts_bytes += part.bytes;
  }
  for (std::size_t s = 0; s < parts_.size(); ++s) {
    const Part& part = parts_[s];
    const std::uint64_t numel = request_.segments[s].numel;
    Stats one{.calls = 1, .values = numel, .raw_bytes = numel * width, .wire_bytes = part.bytes};
    if (s == 0) {
      one.control_bytes = control_.sent_bytes();
      one.wire_bytes += control_.sent_bytes() + (sent_bytes_ - parts_bytes);
      one.encode_ns = encode_ns_;
      one.exchange_ns = exchange_ns_;
      one.decode_ns = decode_ns_;
    }
    using Kind = codec::FrameKind;
    if (part.plan.form == policy::PartForm::kBare) {
      one.bare_segments = 1;
    } else {
      one.key_frames = part.encoded.kind == Kind::kKey;
      one.delta_frames = part.encoded.kind == Kind::kDelta;
      one.same_frames = part.encoded.kind == Kind::kSame;
      one.raw_frames = part.encoded.kind == Kind::kRaw;
      one.blocks = part.encoded.blocks;
      one.changed_blocks = part.encoded.changed_blocks;
    }
    one.stateless_by_budget = states_[s]->residence == cache::Residence::kStatelessByBudget;
    states_[s]->stats += one;
    if (s > 0) {
      one.calls = 0;  // in the total a call counts once
    }
    engine_.total += one;
  }
}

}  // namespace ciera::pipeline
