#include "pipeline/shard_buffers.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "base/splitmix64.hpp"

namespace ciera::pipeline {
namespace {

std::string layout_text(DType dtype, const std::vector<std::uint64_t>& numels) {
  constexpr std::size_t kShownRanks = 16;
  std::string text(name(dtype));
  text += " values of";
  for (std::size_t r = 0; r < std::min(kShownRanks, numels.size()); ++r) {
    text += (r == 0 ? " " : ", ") + std::to_string(numels[r]);
  }
  return text + (numels.size() > kShownRanks ? ", ..." : "");
}

void require_layout(const Engine& engine, const ShardId& shard_id, DType dtype,
                    const std::vector<std::uint64_t>& numels) {
  if (numels.size() != engine.world) {
    throw Error(
        ErrorCode::kArgument,
        describe(shard_id, engine.rank,
                 "a buffer needs the length of every rank's shard; give " +
                     std::to_string(engine.world) + ", not " + std::to_string(numels.size())));
  }
  std::uint64_t values = 0;
  std::uint64_t bytes = 0;
  for (const std::uint64_t numel : numels) {
    if (__builtin_add_overflow(values, numel, &values)) {
      values = ~std::uint64_t{0};
    }
  }
  if (__builtin_mul_overflow(values, element_bytes(dtype), &bytes) || bytes >> 63 != 0) {
    throw Error(ErrorCode::kArgument,
                describe(shard_id, engine.rank, "the gathered size overflows 63 bits"));
  }
}

// Throws unless dtype and lengths are `known`, those of `what`.
void require_same(const Engine& engine, const ShardId& shard_id, const std::string& what,
                  const std::string& asked, const std::string& known) {
  if (asked != known) {
    throw Error(ErrorCode::kArgument,
                describe(shard_id, engine.rank,
                         "a buffer for " + asked + " was asked for, " + what + " has " + known +
                             "; ask for that, or call reset(shard_id) on every rank first"));
  }
}

// Of words, zero-filled to eight bytes, in their order.
std::uint64_t digest(codec::CodecBackend& backend, std::span<const std::byte> bytes) {
  constexpr std::size_t kPiece = std::size_t{1} << 20;
  std::vector<std::byte> piece((std::min(kPiece, bytes.size()) + 7) / 8 * 8);
  std::uint64_t sum = bytes.size();
  for (std::size_t at = 0; at < bytes.size(); at += kPiece) {
    const auto part = bytes.subspan(at, std::min(kPiece, bytes.size() - at));
    std::ranges::fill(piece, std::byte{0});
    backend.download(std::span(piece).first(part.size()), part);
    backend.wait();
    for (std::size_t i = 0; i < piece.size(); i += 8) {
      std::uint64_t word = 0;
      std::memcpy(&word, piece.data() + i, sizeof word);
      sum = base::mix(sum + word + base::kGamma0);
    }
  }
  return sum;
}

}  // namespace

std::shared_ptr<ShardBuffer> find_buffer(Engine& engine, const ShardId& shard_id) {
  if (const auto buffer = engine.table.buffer(shard_id)) {
    return buffer;
  }
  const cache::ShardState* state = engine.table.find(shard_id);
  if (state == nullptr) {
    throw Error(ErrorCode::kArgument,
                describe(shard_id, engine.rank,
                         "the shard is not known yet; give dtype and the length of every rank's "
                         "shard, or gather it first"));
  }
  return make_buffer(engine, shard_id, state->dtype, state->numels);
}

std::shared_ptr<ShardBuffer> make_buffer(Engine& engine, const ShardId& shard_id, DType dtype,
                                         std::vector<std::uint64_t> numels) {
  require_layout(engine, shard_id, dtype, numels);
  const std::string asked = layout_text(dtype, numels);
  if (auto buffer = engine.table.buffer(shard_id)) {
    if (buffer->dtype() != dtype || buffer->numels() != numels) {
      require_same(engine, shard_id, "its buffer", asked,
                   layout_text(buffer->dtype(), buffer->numels()));
    }
    return buffer;
  }
  cache::ShardState* state = engine.table.find(shard_id);
  if (state != nullptr && (state->dtype != dtype || state->numels != numels)) {
    require_same(engine, shard_id, "the shard", asked, layout_text(state->dtype, state->numels));
  }
  std::shared_ptr<cache::GatheredBuffer> buffer;
  try {
    buffer = std::make_shared<cache::GatheredBuffer>(engine.backend, engine.backend->memory(),
                                                     dtype, std::move(numels));
  } catch (const Error& error) {
    throw Error(error.code(),
                describe(shard_id, engine.rank,
                         std::string("no memory for the buffer (") + error.what() + ")"));
  }
  engine.backend->zero(buffer->bytes());
  engine.table.add_buffer(shard_id, buffer);
  if (state != nullptr) {
    state->buffer = buffer;
    if (state->stateful() && state->in_words()) {
      if (state->own_words == cache::OwnWords::kOwnReference) {
        engine.backend->copy(buffer->part(engine.rank), state->own_reference.span());
      }
      move_words_in(engine, *state);
    }
  }
  engine.backend->wait();
  if (state != nullptr && state->words_in_buffer && state->epoch != 0 &&
      engine.options.buffers == BufferPolicy::kCheck) {
    state->guards = digest_parts(engine, *state);
  }
  return buffer;
}

void move_words_in(Engine& engine, cache::ShardState& state) {
  for (std::size_t r = 0; r < engine.world && state.epoch != 0; ++r) {
    if (r != engine.rank) {
      engine.backend->copy(state.buffer->part(r), state.peer_caches[r].span());
    }
  }
  engine.backend->wait();  // before the caches go
  state.peer_caches = std::vector<Buffer>(engine.world);
  state.words_in_buffer = true;
}

void move_words_out(Engine& engine, cache::ShardState& state) {
  engine.table.allocate_peer_caches(state, engine.rank);
  for (std::size_t r = 0; r < engine.world; ++r) {
    engine.backend->copy(state.peer_caches[r].span(),
                         r == engine.rank ? std::span<std::byte>{} : state.buffer->part(r));
  }
  state.words_in_buffer = false;
}

std::vector<std::uint64_t> digest_parts(Engine& engine, const cache::ShardState& state) {
  std::vector<std::uint64_t> digests;
  for (std::size_t r = 0; r < engine.world; ++r) {
    digests.push_back(digest(*engine.backend, state.buffer->part(r)));
  }
  return digests;
}

}  // namespace ciera::pipeline
