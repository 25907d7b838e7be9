// What a call does with shards whose gathered buffer the library owns.
#include <algorithm>

#include "pipeline/gather_call.hpp"
#include "pipeline/shard_buffers.hpp"

namespace ciera::pipeline {

// A shard that is gathered from its buffer was written there before: what this rank last sent is
// lost, whatever becomes of the call. What a refused call would have gathered is not known: any
// buffer may have been written to.
void GatherCall::note_own_writes() {
  if (rejected_) {
    engine_.table.forget_own_words();
    return;
  }
  const auto met = engine_.table.overlapping(request_.src);
  cache::ShardState* state = met ? engine_.table.find(met->shard_id) : nullptr;
  if (state != nullptr && state->own_words == cache::OwnWords::kBuffer &&
      overlap(request_.src, met->buffer->part(engine_.rank))) {
    state->own_words = cache::OwnWords::kNowhere;
  }
}

void GatherCall::hold_buffers() {
  held_.assign(request_.segments.size(), {});
  for (std::size_t s = 0; s < states_.size() && !local_error_; ++s) {
    Held& held = held_[s];
    held.buffer = states_[s]->buffer.get();
    if (held.buffer == nullptr) {
      continue;
    }
    held.in_place =
        !src_part(s).empty() && src_part(s).data() == held.buffer->part(engine_.rank).data();
    held.is_out = true;
    for (std::size_t r = 0; r < engine_.world; ++r) {
      const auto slot = output_map_->slot(outputs_, s, r);
      held.is_out = held.is_out && (slot.empty() || slot.data() == held.buffer->part(r).data());
    }
  }
  refuse_overlaps();
  for (std::size_t s = 0; s < states_.size() && !local_error_; ++s) {
    try {
      check_guards(s);
      make_room(s);
    } catch (const Error& error) {
      fail(error.code(),
           std::string("the shard's buffer cannot be used (") + error.what() +
               "); set cache_budget_bytes lower on every rank",
           s);
    } catch (const std::exception& error) {
      fail(ErrorCode::kOutOfMemory,
           std::string("the shard's buffer cannot be used (") + error.what() + ")", s);
    }
  }
}

// Memory of buffers is written by the calls of their shards alone.
void GatherCall::refuse_overlaps() {
  const auto segment_of = [this](const ShardId& id) {
    const auto found = std::ranges::find(request_.segments, id, &Segment::shard_id);
    return static_cast<std::size_t>(found - request_.segments.begin());
  };
  for (std::size_t b = 0; b < outputs_.size() && !local_error_; ++b) {
    if (const auto met = engine_.table.overlapping(outputs_[b])) {
      const std::size_t s = segment_of(met->shard_id);
      if (s == held_.size() || !held_[s].is_out) {
        fail(ErrorCode::kArgument,
             "out overlaps the buffer of shard " + to_string(met->shard_id) +
                 " and is not its place in it; give that whole buffer to a call of its shard alone "
                 "or per segment, or give separate memory",
             s == held_.size() ? 0 : s);
      }
    }
  }
  for (std::size_t s = 0; s < states_.size() && !local_error_; ++s) {
    const auto met = engine_.table.overlapping(src_part(s));
    const std::size_t other = met ? segment_of(met->shard_id) : held_.size();
    if (other != held_.size() && !(other == s && held_[s].in_place)) {
      fail(ErrorCode::kArgument,
           "the shard lies in the buffer of shard " + to_string(met->shard_id) +
               ", which this call writes, and is not this rank's part of it; gather in place or "
               "from separate memory",
           s);
    }
  }
}

void GatherCall::check_guards(std::size_t segment) {
  const cache::ShardState& state = *states_[segment];
  if (state.guards.empty() || state.epoch == 0) {
    return;
  }
  engine_.backend->start_after(ready_);
  const std::vector<std::uint64_t> now = digest_parts(engine_, state);
  for (std::size_t r = 0; r < engine_.world; ++r) {
    const bool read = r != engine_.rank || state.own_words == cache::OwnWords::kBuffer;
    if (read && now[r] != state.guards[r]) {
      fail(ErrorCode::kArgument,
           "the part of rank " + std::to_string(r) +
               " in the shard's buffer was written to since the last call, which would make later "
               "results wrong; write to this rank's part alone and gather it in place from then "
               "on, and call reset(shard_id) on every rank first",
           segment);
      return;
    }
  }
}

// Before anything is agreed: memory for words that cannot stay in the buffer in this call. A bare
// part leaves the reference what it was, and lands where that lies.
void GatherCall::make_room(std::size_t segment) {
  cache::ShardState& state = *states_[segment];
  const Held& held = held_[segment];
  if (held.buffer == nullptr || !state.stateful() || !state.in_words()) {
    return;
  }
  if (parts_[segment].plan.form == policy::PartForm::kFrame) {
    if (held.in_place && state.own_reference.size() == 0) {
      engine_.table.allocate_own_reference(state, engine_.rank);
    }
    return;
  }
  if (state.epoch == 0 || !held.is_out) {
    return;
  }
  if (state.own_words == cache::OwnWords::kBuffer) {
    engine_.table.allocate_own_reference(state, engine_.rank);
    engine_.backend->copy(state.own_reference.span(), held.buffer->part(engine_.rank));
    state.own_words = cache::OwnWords::kOwnReference;
  }
  if (state.words_in_buffer) {
    move_words_out(engine_, state);
  }
  state.guards.clear();
}

std::span<const std::byte> GatherCall::own_reference(std::size_t segment) const {
  const cache::ShardState& state = *states_[segment];
  return state.in_words() && state.own_words == cache::OwnWords::kBuffer
             ? state.buffer->part(engine_.rank)
             : state.own_reference.span();
}

// Which segments' words this rank will hold all of when the call is committed. The last bit stands
// for all segments from there on.
std::uint16_t GatherCall::held_words() const {
  constexpr std::size_t kBits = 16;
  std::uint16_t held = 0xFFFF;
  for (std::size_t s = 0; s < parts_.size(); ++s) {
    const cache::ShardState& state = *states_[s];
    if (held_[s].buffer == nullptr || !state.stateful() || state.in_words() ||
        parts_[s].plan.form == policy::PartForm::kBare) {
      held = static_cast<std::uint16_t>(held & ~(1U << std::min(s, kBits - 1)));
    }
  }
  return held;
}

void GatherCall::move_words_into_buffers() {
  for (std::size_t s = 0; s < parts_.size(); ++s) {
    cache::ShardState& state = *states_[s];
    if (parts_[s].plan.form == policy::PartForm::kFrame && state.buffer != nullptr &&
        state.stateful() && state.in_words() && !state.words_in_buffer) {
      move_words_in(engine_, state);
    }
  }
}

// The own part, and with another out all of it. A same frame leaves the own part as it is: it may
// rest on the caller's word, which must not become the reference.
void GatherCall::copy_held(std::size_t segment) {
  codec::CodecBackend& backend = *engine_.backend;
  const cache::GatheredBuffer& buffer = *held_[segment].buffer;
  if (parts_[segment].encoded.kind != codec::FrameKind::kSame ||
      states_[segment]->own_words != cache::OwnWords::kBuffer) {
    backend.copy(buffer.part(engine_.rank), src_part(segment));
  }
  for (std::size_t r = 0; r < engine_.world && !held_[segment].is_out; ++r) {
    backend.copy(output_map_->slot(outputs_, segment, r),
                 r == engine_.rank ? src_part(segment) : buffer.part(r));
  }
}

// What this rank's next frame is made against. Made from src only now: a call that is given up
// after encoding must leave it as it was, and staging it would take the shard's size once more.
// Where the own part of the buffer serves as it, src was copied there already. Returns whether the
// backend is to be waited for.
bool GatherCall::keep_own_words(std::size_t segment) {
  using cache::OwnWords;
  cache::ShardState& state = *states_[segment];
  const Held& held = held_[segment];
  if (parts_[segment].encoded.kind == codec::FrameKind::kSame) {
    return false;
  }
  const bool in_buffer = held.buffer != nullptr && !held.in_place;
  bool stored = state.own_reference.size() != 0;
  if (!state.in_words()) {
    state.own_words = in_buffer ? OwnWords::kBuffer : OwnWords::kNowhere;
  } else if (in_buffer && !state.gathered_in_place) {
    state.own_words = OwnWords::kBuffer;
    state.own_reference.reset();
    stored = false;
  } else {
    state.own_words = OwnWords::kOwnReference;
    state.gathered_in_place = state.gathered_in_place || held.in_place;
  }
  if (stored) {
    engine_.backend->store_reference(params(segment, engine_.rank), src_part(segment),
                                     state.own_reference.span());
  }
  return stored;
}

void GatherCall::renew_guards(std::size_t segment) {
  cache::ShardState& state = *states_[segment];
  if (engine_.options.buffers == BufferPolicy::kCheck && state.buffer != nullptr) {
    state.guards.clear();
    if (state.words_in_buffer || state.words_everywhere) {
      state.guards = digest_parts(engine_, state);
    }
  }
}

}  // namespace ciera::pipeline
