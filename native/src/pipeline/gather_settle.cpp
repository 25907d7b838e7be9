// DECODE and SETTLE: verdicts over what arrived, then commit on every rank or drop on every rank.
#include <algorithm>
#include <cstring>

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

// Everything is checked before anything is used, so that a damaged frame leaves `out` and the
// caches alone.
VerdictRow GatherCall::check_frames() {
  const Stopwatch watch(decode_ns_);
  parts_of_.resize(engine_.world);
  digests_.assign(parts_.size(), std::vector<std::uint64_t>(engine_.world));
  for (std::size_t r = 0; r < engine_.world; ++r) {
    if (r == engine_.rank || received_in_place_) {
      continue;
    }
    if (const VerdictRow row = check_rank(r); row.kind != VerdictClass::kOk) {
      return row;
    }
  }
  for (std::size_t s = 0; s < parts_.size(); ++s) {
    digests_[s][engine_.rank] = parts_[s].encoded.checksum;
  }
  return {};
}

VerdictRow GatherCall::check_rank(std::size_t rank) {
  const std::size_t width = element_bytes(request_.dtype);
  if (all_bare()) {  // no directory, no gaps
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
  auto split = split_payload(payload_of_[rank], parts_.size());
  if (!split) {
    return refused(Verdict::kBadSizes, rank, 0);
  }
  parts_of_[rank] = std::move(*split);
  for (std::size_t s = 0; s < parts_.size(); ++s) {
    const auto part = parts_of_[rank][s];
    if (parts_[s].plan.form == policy::PartForm::kBare) {
      if (part.size() != states_[s]->numels[rank] * width) {
        return refused(Verdict::kBadSizes, rank, s);
      }
      continue;
    }
    codec::host::FrameInfo info;
    const Verdict verdict = codec::host::check(params(s, rank), part, &info, &engine_.pool);
    if (verdict != Verdict::kOk) {
      return refused(verdict, rank, s);
    }
    digests_[s][rank] = info.checksum;
  }
  return {};
}

VerdictRow GatherCall::decode_frames() {
  const Stopwatch watch(decode_ns_);
  copy_own();
  try {
    for (std::size_t r = 0; r < engine_.world && !received_in_place_; ++r) {
      for (std::size_t s = 0; s < parts_.size() && r != engine_.rank; ++s) {
        const auto part = parts_of_[r][s];
        const auto dst = output_map_->slot(outputs_, s, r);
        if (parts_[s].plan.form == policy::PartForm::kBare) {
          std::ranges::copy(part, dst.begin());
          continue;
        }
        cache::ShardState& state = *states_[s];
        std::span<std::byte> exponents;
        if (state.residence == cache::Residence::kStateful) {
          exponents = state.exp_cache[r];
        }
        const auto peer = params(s, r);
        const Verdict verdict = codec::host::decode(
            peer, part, exponents, dst,
            engine_.scratch_arena.reserve(codec::host::decode_scratch_bytes(peer)), &engine_.pool);
        if (verdict != Verdict::kOk) {
          return refused(verdict, r, s);
        }
      }
    }
  } catch (const std::exception&) {
    return {VerdictClass::kFailed, Verdict::kOk, static_cast<std::uint16_t>(engine_.rank), 0};
  }
  return {};
}

void GatherCall::copy_own() {
  for (std::size_t s = 0; s < parts_.size(); ++s) {
    const auto own = output_map_->slot(outputs_, s, engine_.rank);
    const auto src = src_part(s);
    if (!src.empty() && own.data() != src.data()) {
      std::memcpy(own.data(), src.data(), src.size());
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
  for (std::size_t s = 0; s < parts_.size(); ++s) {
    if (states_[s]->residence == cache::Residence::kStateful) {
      bad == rows.end() ? states_[s]->commit(digests_[s]) : states_[s]->drop();
    }
  }
  if (bad == rows.end()) {
    count();
    return;
  }
  const std::size_t judge =
      all_bare() ? engine_.rank : static_cast<std::size_t>(bad - rows.begin());
  // The row comes from a peer: an index outside this call must not be followed.
  const std::size_t segment = bad->segment < parts_.size() ? bad->segment : 0;
  const std::string what =
      bad->kind == VerdictClass::kFrameRefused
          ? "rank " + std::to_string(judge) + " refused what rank " +
                std::to_string(bad->source_rank) + " sent: " + std::string(name(bad->verdict))
          : "rank " + std::to_string(judge) + " could not decode for want of memory";
  throw Error(
      ErrorCode::kFrame,
      describe_segment(segment) + ": " + what +
          "; every rank has dropped its state of this call's shards and out is unspecified: "
          "repeat the call on every rank, it will send key frames");
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
      one.wire_bytes += control_.sent_bytes() + (payload_.size() - parts_bytes);
      one.encode_ns = encode_ns_;
      one.exchange_ns = exchange_ns_;
      one.decode_ns = decode_ns_;
    }
    using Kind = codec::host::FrameKind;
    if (part.plan.form == policy::PartForm::kBare) {
      one.bare_segments = 1;
    } else {
      one.key_frames = part.encoded.kind == Kind::kKey;
      one.delta_frames = part.encoded.kind == Kind::kDelta;
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
