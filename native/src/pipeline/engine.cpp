#include "pipeline/engine.hpp"

#include <algorithm>
#include <thread>
#include <utility>

#include "base/splitmix64.hpp"
#include "base/utf8.hpp"
#include "codec/cuda/cuda_backend.hpp"
#include "codec/host/host_backend.hpp"
#include "wire/frame_header.hpp"
#include "wire/shard_key.hpp"

namespace ciera::pipeline {
namespace {

std::shared_ptr<Transport> require(std::shared_ptr<Transport> transport) {
  if (transport == nullptr) {
    throw Error(ErrorCode::kArgument, "CompressedAllgather needs a transport; none was given");
  }
  return transport;
}

constexpr std::size_t kMaxThreads = 1024;

Options validated(const Options& options) {
  if (options.threads > kMaxThreads) {
    throw Error(ErrorCode::kArgument, "threads " + std::to_string(options.threads) +
                                          " is not possible; give 0 (cores / ranks) to " +
                                          std::to_string(kMaxThreads));
  }
  if (options.block_size < 8 || options.block_size > 65536 || options.block_size % 8 != 0) {
    throw Error(ErrorCode::kArgument,
                "block_size " + std::to_string(options.block_size) +
                    " is not possible; give a multiple of 8 from 8 to 65536 (512 is the default)");
  }
  if (options.coder == Coder::kNvcompAns && options.backend != Backend::kCuda) {
    throw Error(ErrorCode::kArgument,
                "coder nvcomp-ans runs on a GPU only; use backend cuda, or coder rans");
  }
  if (options.coder == Coder::kNvcompAns && options.reuse >= ReuseMode::kExponentDelta) {
    throw Error(ErrorCode::kArgument,
                "coder nvcomp-ans codes no differences; use coder rans with " +
                    std::string(name(options.reuse)) + ", or reuse exponent-block");
  }
  return options;
}

std::uint64_t digest_of(const Options& options) {
  std::uint64_t digest = wire::kVersion;
  for (const std::uint64_t field :
       {static_cast<std::uint64_t>(options.backend), static_cast<std::uint64_t>(options.reuse),
        static_cast<std::uint64_t>(options.coder), static_cast<std::uint64_t>(options.block_size),
        static_cast<std::uint64_t>(options.effort),
        static_cast<std::uint64_t>(options.cache_budget_bytes.has_value()),
        options.cache_budget_bytes.value_or(0),
        static_cast<std::uint64_t>(options.plain_below_bytes.has_value()),
        options.plain_below_bytes.value_or(0)}) {
    digest = base::mix(digest + field + base::kGamma0);
  }
  return digest;
}

std::size_t thread_count(const Options& options, const Transport& transport) {
  if (options.threads != 0) {
    return options.threads;
  }
  const std::size_t cores = std::max(1U, std::thread::hardware_concurrency());
  return std::clamp<std::size_t>(cores / std::max(1U, transport.local_world_size()), 1,
                                 kMaxThreads);
}

std::unique_ptr<codec::CodecBackend> make_backend(const Options& options,
                                                  const Transport& transport) {
  if (options.backend == Backend::kCuda) {
    return codec::cuda::make_cuda_backend(options.device, options.coder);
  }
  return codec::host::make_host_backend(thread_count(options, transport));
}

}  // namespace

TransportClaim::TransportClaim(std::shared_ptr<Transport> transport) {
  if (!transport->take()) {
    throw Error(ErrorCode::kArgument,
                "rank " + std::to_string(value(transport->rank())) + ": this " +
                    std::string(transport->name()) +
                    " transport serves another communicator; close that one first, or give each "
                    "its own transport");
  }
  transport_ = std::move(transport);
}

void TransportClaim::release() {
  if (transport_ != nullptr) {
    transport_->ask_while_waiting({});
    transport_->give_back();
    transport_.reset();
  }
}

Engine::Engine(std::shared_ptr<Transport> transport_in, const Options& options_in)
    : transport(require(std::move(transport_in))),
      claim(transport),
      options(validated(options_in)),
      rank(value(transport->rank())),
      world(value(transport->world_size())),
      config_digest(digest_of(options)),
      backend(make_backend(options, *transport)),
      table(backend->memory()),
      frame_arena(backend->memory()),
      send_arena(backend->memory()),
      recv_arena(backend->memory()),
      staging_arena(backend->staging_memory()),
      plain_below_bytes(options.plain_below_bytes) {
  const bool direct = options.backend == Backend::kHost || transport->moves_device_memory();
  if (!plain_below_bytes &&
      (!transport->is_network() || !direct || options.reuse == ReuseMode::kOff)) {
    plain_below_bytes = 0;
  }
}

std::string to_string(const ShardId& shard_id) {
  constexpr std::size_t kShownBytes = 120;  // a longer name would drown the rest of a message
  if (const auto* text = std::get_if<std::string>(&shard_id)) {
    const std::string_view shown = base::cut_utf8(*text, kShownBytes);
    std::string quoted(1, '\'');
    quoted.append(shown);
    quoted.append(shown.size() < text->size() ? "...'" : "'");
    return quoted;
  }
  return std::to_string(std::get<std::int64_t>(shard_id));
}

std::string describe(const ShardId& shard_id, std::size_t rank, const std::string& text) {
  return "shard " + to_string(shard_id) + ", rank " + std::to_string(rank) + ": " + text;
}

std::uint64_t key_of(const ShardId& shard_id) {
  if (const auto* text = std::get_if<std::string>(&shard_id)) {
    return wire::shard_key(std::string_view(*text));
  }
  return wire::shard_key(std::get<std::int64_t>(shard_id));
}

}  // namespace ciera::pipeline
