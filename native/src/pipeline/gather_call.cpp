// PLAN, LEASE and ENCODE; the other stages are in gather_exchange.cpp and gather_settle.cpp, what
// concerns buffers that the library owns in gather_buffers.cpp.
#include "pipeline/gather_call.hpp"

#include <algorithm>
#include <cstring>
#include <set>
#include <utility>

#include "base/splitmix64.hpp"
#include "pipeline/handover.hpp"
#include "pipeline/payload.hpp"
#include "pipeline/stopwatch.hpp"
#include "wire/shard_key.hpp"

namespace ciera::pipeline {

GatherCall::GatherCall(Engine& engine, GatherRequest request, std::optional<std::string> rejection)
    : engine_(engine),
      backend_(engine.backend),
      request_(std::move(request)),
      control_(*engine.transport) {
  if (rejection) {
    local_error_.emplace(ErrorCode::kArgument, *rejection);
    rejected_ = true;
    return;
  }
  ready_ = engine_.backend->mark(request_.stream);
}

void GatherCall::run() {
  if (!engine_.broken.empty()) {
    throw Error(ErrorCode::kTransport, describe_segment(0) + ": " + engine_.unusable());
  }
  try {
    run_stages();
  } catch (const Error& error) {
    if (error.code() == ErrorCode::kTransport || error.code() == ErrorCode::kDeadline ||
        error.code() == ErrorCode::kDevice) {
      engine_.broken = error.what();
      throw Error(error.code(), describe_segment(0) + ": " + error.what());
    }
    throw;
  }
}

void GatherCall::run_stages() {
  note_own_writes();
  validate_request();
  lease();
  if (!local_error_ && states_.empty()) {
    learn_layout();
  }
  map_outputs();
  plan();
  hold_buffers();
  encode();
  const std::uint64_t payload_bytes = local_error_ ? 0 : payload_.size();
  const std::vector<SizeRow> rows = agree(RowPhase::kReady, payload_bytes);
  new_shards_.clear();  // agreed: from here on they stay, with or without a reference
  ++engine_.sequence;
  exchange(rows);
  settle(decode());
}

void GatherCall::fail(ErrorCode code, const std::string& text, std::size_t segment) {
  if (!local_error_) {
    local_error_.emplace(code,
                         request_.segments.empty()
                             ? "rank " + std::to_string(engine_.rank) + ": " + text
                             : describe(request_.segments[segment].shard_id, engine_.rank, text));
  }
}

void GatherCall::validate_request() {
  if (local_error_) {
    return;
  }
  if (request_.segments.empty()) {
    fail(ErrorCode::kArgument, "a call needs at least one segment; give [(shard_id, numel), ...]");
    return;
  }
  if (!request_.versions.empty() && request_.versions.size() != request_.segments.size()) {
    fail(ErrorCode::kArgument, "there are " + std::to_string(request_.versions.size()) +
                                   " versions for " + std::to_string(request_.segments.size()) +
                                   " segments; give one a segment, or none");
    return;
  }
  const std::size_t width = element_bytes(request_.dtype);
  std::set<ShardId> seen;
  std::uint64_t total = 0;
  src_offsets_ = {0};
  for (std::size_t s = 0; s < request_.segments.size(); ++s) {
    const Segment& segment = request_.segments[s];
    if (!seen.insert(segment.shard_id).second) {
      fail(ErrorCode::kArgument, "the shard_id stands twice in one call; give each shard its own",
           s);
    }
    std::uint64_t bytes = 0;
    if (__builtin_mul_overflow(segment.numel, width, &bytes) ||
        __builtin_add_overflow(total, bytes, &total)) {
      fail(ErrorCode::kArgument, "the segments' lengths overflow 64 bits", s);
      return;
    }
    keys_.push_back(key_of(segment.shard_id));
    src_offsets_.push_back(total);
  }
  if (total != request_.src.size()) {
    fail(ErrorCode::kArgument, "src holds " + std::to_string(request_.src.size()) +
                                   " bytes where the segments say " + std::to_string(total) +
                                   "; their numel must add up to the length of src");
  }
}

// Finds the state of every shard. `states_` stays empty when one is unknown: then lengths are
// exchanged first.
void GatherCall::lease() {
  if (local_error_) {
    return;
  }
  std::vector<cache::ShardState*> found;
  for (std::size_t s = 0; s < request_.segments.size(); ++s) {
    const Segment& segment = request_.segments[s];
    cache::ShardState* state = engine_.table.find(segment.shard_id);
    found.push_back(state);
    if (state == nullptr) {
      continue;
    }
    if (state->dtype != request_.dtype) {
      fail(ErrorCode::kShardChanged,
           "dtype changed from " + std::string(name(state->dtype)) + " to " +
               std::string(name(request_.dtype)) + "; call reset(shard_id) on every rank first",
           s);
    } else if (state->numels[engine_.rank] != segment.numel) {
      fail(ErrorCode::kShardChanged,
           "length changed from " + std::to_string(state->numels[engine_.rank]) + " to " +
               std::to_string(segment.numel) + "; call reset(shard_id) on every rank first",
           s);
    }
  }
  if (std::ranges::find(found, nullptr) == found.end()) {
    states_ = std::move(found);
  }
}

void GatherCall::learn_layout() {
  agree(RowPhase::kNew, 0);
  std::vector<std::uint64_t> own;
  for (const Segment& segment : request_.segments) {
    own.push_back(segment.numel);
  }
  const std::vector<std::uint64_t> all = control_.exchange_words(own);
  if (!engine_.plain_below_bytes) {  // the first call: the same on every rank
    engine_.plain_below_bytes = policy::plain_below(measure_handover(engine_, control_));
  }
  try {
    for (std::size_t s = 0; s < own.size(); ++s) {
      const ShardId& id = request_.segments[s].shard_id;
      cache::ShardState* state = engine_.table.find(id);
      if (state == nullptr) {
        std::vector<std::uint64_t> numels(engine_.world);
        for (std::size_t r = 0; r < engine_.world; ++r) {
          numels[r] = all[r * own.size() + s];
        }
        require_buffer_of(s, numels);
        state = &engine_.table.add(id, keys_[s], request_.dtype, std::move(numels), engine_.rank,
                                   engine_.options);
        new_shards_.push_back(id);
      }
      states_.push_back(state);
    }
  } catch (const Error& error) {
    fail(error.code(), std::string("no memory for the caches (") + error.what() +
                           "); set cache_budget_bytes lower on every rank");
  }
}

// A buffer that was asked for before the shard was gathered must be what the ranks gather.
void GatherCall::require_buffer_of(std::size_t segment, const std::vector<std::uint64_t>& numels) {
  const auto buffer = engine_.table.buffer(request_.segments[segment].shard_id);
  if (buffer == nullptr || (buffer->dtype() == request_.dtype && buffer->numels() == numels)) {
    return;
  }
  std::string text = "its buffer was made for other lengths or another dtype: the ranks gather " +
                     std::string(name(request_.dtype));
  for (std::size_t r = 0; r < numels.size(); ++r) {
    if (numels[r] != buffer->numels()[r]) {
      text += ", rank " + std::to_string(r) + " " + std::to_string(numels[r]) +
              " values (buffer: " + std::to_string(buffer->numels()[r]) + ")";
      break;
    }
  }
  fail(ErrorCode::kArgument,
       text + "; call reset(shard_id) on every rank and ask for a buffer of these lengths",
       segment);
}

void GatherCall::map_outputs() {
  if (local_error_) {
    return;
  }
  std::vector<std::vector<std::uint64_t>> numels;
  for (const cache::ShardState* state : states_) {
    numels.push_back(state->numels);
  }
  output_map_ = OutputMap::make(request_.layout, request_.dtype, numels);
  if (!output_map_) {
    fail(ErrorCode::kArgument, "the gathered size overflows 64 bits");
    return;
  }
  outputs_ = request_.out;
  try {
    for (std::size_t b = 0; request_.out.empty() && b < output_map_->buffers(); ++b) {
      owned_.emplace_back(engine_.backend->memory(), output_map_->buffer_bytes(b));
      outputs_.push_back(owned_.back().span());
    }
  } catch (const Error& error) {
    fail(error.code(), std::string("no memory for the output (") + error.what() + ")");
    return;
  }
  if (const auto reason = output_map_->misfit(outputs_, request_.src, engine_.rank)) {
    fail(ErrorCode::kArgument, *reason);
  }
}

void GatherCall::plan() {
  if (local_error_) {
    return;
  }
  std::uint64_t largest = 0;  // of all ranks' shares of this call
  for (std::size_t r = 0; r < engine_.world; ++r) {
    std::uint64_t bytes = 0;
    for (const cache::ShardState* state : states_) {
      bytes += state->numels[r] * element_bytes(request_.dtype);
    }
    largest = std::max(largest, bytes);
  }
  const bool plain = largest < engine_.plain_below_bytes.value_or(0);
  for (const cache::ShardState* state : states_) {
    parts_.push_back({plain
                          ? policy::SegmentPlan{}
                          : policy::plan_segment(engine_.options, request_.dtype, state->residence),
                      0,
                      0,
                      {}});
  }
}

bool GatherCall::all_bare() const {
  return std::ranges::all_of(
      parts_, [](const Part& part) { return part.plan.form == policy::PartForm::kBare; });
}

codec::FrameParams GatherCall::params(std::size_t segment, std::size_t rank) const {
  const cache::ShardState& state = *states_[segment];
  return {.mode = parts_[segment].plan.mode,
          .coder = engine_.options.coder,
          .dtype = request_.dtype,
          .block_size = engine_.options.block_size,
          .numel = state.numels[rank],
          .shard_key = state.shard_key,
          .base_epoch = state.epoch,
          .base_digest = state.epoch == 0 ? 0 : state.digests[rank],
          .segment_log2 = engine_.backend->segment_log2(parts_[segment].plan.mode,
                                                        engine_.options.effort, state.numels[rank]),
          .effort = engine_.options.effort,
          .words_held = state.words_everywhere};
}

std::span<const std::byte> GatherCall::src_part(std::size_t segment) const {
  return request_.src.subspan(src_offsets_[segment],
                              src_offsets_[segment + 1] - src_offsets_[segment]);
}

void GatherCall::encode() {
  if (local_error_) {
    return;
  }
  const Stopwatch watch(encode_ns_);
  try {
    engine_.backend->start_after(ready_);
    if (all_bare()) {
      for (std::size_t s = 0; s < parts_.size(); ++s) {
        parts_[s].bytes = src_part(s).size();
      }
      payload_ = request_.src;
      return;
    }
    std::vector<codec::EncodeJob> jobs = encode_jobs();
    engine_.backend->encode(jobs);
    pack(jobs);
    check_versions();
  } catch (const Error& error) {
    fail(error.code(), std::string("encoding failed (") + error.what() + ")");
  } catch (const std::exception& error) {
    fail(ErrorCode::kArgument, std::string("encoding failed (") + error.what() + ")");
  }
}

// Whether the caller says that the segment is what this rank last sent.
bool GatherCall::claims_unchanged(std::size_t segment) const {
  const cache::ShardState& state = *states_[segment];
  const bool possible =
      state.in_words() ? state.own_words != cache::OwnWords::kNowhere : state.words_everywhere;
  return !request_.versions.empty() && request_.versions[segment].has_value() && state.epoch != 0 &&
         possible && request_.versions[segment] == state.version;
}

void GatherCall::check_versions() {
  for (std::size_t s = 0; s < parts_.size(); ++s) {
    const bool compared = states_[s]->own_words != cache::OwnWords::kNowhere;
    if (claims_unchanged(s) && compared && parts_[s].encoded.kind != codec::FrameKind::kSame) {
      fail(ErrorCode::kArgument,
           "the version is that of the last call, but the shard has changed since; give a new "
           "version with every change",
           s);
    }
  }
}

// One job a framed part. The only part of a call is encoded where it is sent from.
std::vector<codec::EncodeJob> GatherCall::encode_jobs() {
  std::vector<std::uint64_t> starts;
  std::uint64_t capacity = 0;
  for (std::size_t s = 0; s < parts_.size(); ++s) {
    starts.push_back(capacity);
    if (parts_[s].plan.form == policy::PartForm::kFrame) {
      capacity = align16(capacity + codec::max_frame_bytes(params(s, engine_.rank)));
    }
  }
  Arena& arena = parts_.size() == 1 ? engine_.send_arena : engine_.frame_arena;
  const auto frames = arena.reserve(capacity);
  std::vector<codec::EncodeJob> jobs;
  for (std::size_t s = 0; s < parts_.size(); ++s) {
    if (parts_[s].plan.form == policy::PartForm::kBare) {
      continue;
    }
    const cache::ShardState& state = *states_[s];
    codec::EncodeJob job{.params = params(s, engine_.rank), .src = src_part(s)};
    if (state.epoch != 0) {
      job.old_hashes = state.hash_cache.span();
    }
    job.new_hashes = state.staged_hashes.span();
    if (state.epoch != 0) {
      job.own_reference = own_reference(s);
    }
    if (state.words_everywhere && state.own_words == cache::OwnWords::kBuffer) {
      job.own_words = state.buffer->part(engine_.rank);
    }
    if (state.in_words() && state.own_words == cache::OwnWords::kNowhere) {
      job.params.base_epoch = 0;  // what peers hold of this rank is lost: a key frame tells them
      job.params.base_digest = 0;
      job.own_reference = {};
    }
    if (claims_unchanged(s) && engine_.options.versions == VersionPolicy::kTrust) {
      job.claim = codec::Claim::kUnchanged;
    }
    job.frame = frames.subspan(starts[s], codec::max_frame_bytes(job.params));
    jobs.push_back(job);
  }
  return jobs;
}

// Puts the parts behind their directory (docs/wire-format.md, section 1).
void GatherCall::pack(const std::vector<codec::EncodeJob>& jobs) {
  std::vector<std::uint64_t> sizes;
  std::uint64_t end = directory_bytes(parts_.size());
  auto job = jobs.begin();
  std::vector<std::span<const std::byte>> sources;
  for (std::size_t s = 0; s < parts_.size(); ++s) {
    Part& part = parts_[s];
    sources.push_back(src_part(s));
    if (part.plan.form == policy::PartForm::kFrame) {
      part.encoded = job->result;
      sources.back() = job->frame.first(job->result.frame_bytes);
      ++job;
    }
    part.offset = align16(end);
    part.bytes = sources.back().size();
    sizes.push_back(part.bytes);
    end = part.offset + part.bytes;
  }
  if (parts_.size() == 1) {
    payload_ = sources[0];
    return;
  }
  codec::CodecBackend& backend = *engine_.backend;
  const auto payload = engine_.send_arena.reserve(end);
  const std::vector<std::byte> directory = make_directory(sizes);
  backend.upload(payload.first(directory.size()), directory);
  end = directory.size();
  for (std::size_t s = 0; s < parts_.size(); ++s) {
    backend.zero(payload.subspan(end, parts_[s].offset - end));
    backend.copy(payload.subspan(parts_[s].offset, parts_[s].bytes), sources[s]);
    end = parts_[s].offset + parts_[s].bytes;
  }
  backend.wait();  // the directory is this function's
  payload_ = payload;
}

std::uint64_t GatherCall::call_digest() const {
  std::uint64_t digest =
      base::mix(engine_.config_digest + static_cast<std::uint64_t>(request_.dtype) + base::kGamma0);
  if (!request_.element_type.empty()) {
    digest = base::mix(digest + wire::shard_key(request_.element_type) + base::kGamma1);
  }
  for (std::size_t s = 0; s < keys_.size(); ++s) {
    const cache::ShardState* state = engine_.table.find(request_.segments[s].shard_id);
    digest = base::mix(digest + keys_[s] + base::kGamma0);
    digest = base::mix(digest + (state == nullptr ? 0 : state->epoch) + base::kGamma1);
  }
  return digest;
}

std::string GatherCall::describe_segment(std::size_t segment) const {
  return request_.segments.empty() ? "rank " + std::to_string(engine_.rank)
                                   : "shard " + to_string(request_.segments[segment].shard_id) +
                                         ", rank " + std::to_string(engine_.rank);
}

}  // namespace ciera::pipeline
