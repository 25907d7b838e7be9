#include "ciera/compressed_allgather.hpp"

#include <atomic>
#include <exception>
#include <mutex>
#include <system_error>
#include <utility>

#include "exec/serial_worker.hpp"
#include "pipeline/engine.hpp"
#include "pipeline/gather_call.hpp"

namespace ciera {

Stats& Stats::operator+=(const Stats& other) {
  calls += other.calls;
  values += other.values;
  raw_bytes += other.raw_bytes;
  wire_bytes += other.wire_bytes;
  control_bytes += other.control_bytes;
  key_frames += other.key_frames;
  delta_frames += other.delta_frames;
  same_frames += other.same_frames;
  raw_frames += other.raw_frames;
  bare_segments += other.bare_segments;
  blocks += other.blocks;
  changed_blocks += other.changed_blocks;
  encode_ns += other.encode_ns;
  exchange_ns += other.exchange_ns;
  decode_ns += other.decode_ns;
  stateless_by_budget += other.stateless_by_budget;
  return *this;
}

namespace {

class CallImpl final : public Call {
 public:
  CallImpl(pipeline::Engine& engine, GatherRequest request, std::optional<std::string> rejection)
      : label_(request.segments.empty()
                   ? "call without segments"
                   : "shard " + pipeline::to_string(request.segments[0].shard_id)),
        call_(engine, std::move(request), std::move(rejection)) {}

  void run(std::mutex& run_mutex) {
    {
      const std::lock_guard running(run_mutex);
      try {
        call_.run();
      } catch (...) {
        failure_ = std::current_exception();
      }
    }
    const std::lock_guard lock(mutex_);
    done_ = true;
    changed_.notify_all();
  }

  bool done() const override {
    const std::lock_guard lock(mutex_);
    return done_;
  }

  void wait(std::optional<std::chrono::nanoseconds> timeout) override {
    std::unique_lock lock(mutex_);
    const auto is_done = [this] { return done_; };
    if (!timeout) {
      changed_.wait(lock, is_done);
    } else if (!changed_.wait_for(lock, *timeout, is_done)) {
      throw Error(ErrorCode::kDeadline,
                  label_ + ": the call is not complete yet; it goes on, wait for it again");
    }
    if (failure_) {
      std::rethrow_exception(failure_);
    }
  }

  const std::vector<std::span<std::byte>>& outputs() const override { return call_.outputs(); }

 private:
  std::string label_;
  pipeline::GatherCall call_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  bool done_ = false;
  std::exception_ptr failure_;
};

}  // namespace

class CompressedAllgather::Impl {
 public:
  Impl(std::shared_ptr<Transport> transport, const Options& options)
      : engine_(std::move(transport), options) {}

  // Holds the communicator for one thread, for as long as it is inside.
  class Visit {
   public:
    explicit Visit(Impl& impl) : impl_(impl) {
      if (impl_.visited_.exchange(true)) {
        throw Error(ErrorCode::kConcurrentCall,
                    "rank " + std::to_string(impl_.engine_.rank) +
                        ": two threads use one communicator at once; give each thread its own");
      }
    }
    ~Visit() { impl_.visited_ = false; }
    Visit(const Visit&) = delete;
    Visit& operator=(const Visit&) = delete;

   private:
    Impl& impl_;
  };

  void require_open(const std::vector<Segment>& segments) const {
    if (closed_) {
      const std::string text = "the communicator is closed; make a new one";
      throw Error(ErrorCode::kClosed,
                  segments.empty() ? "rank " + std::to_string(engine_.rank) + ": " + text
                                   : pipeline::describe(segments[0].shard_id, engine_.rank, text));
    }
  }

  std::shared_ptr<CallImpl> make_call(GatherRequest request,
                                      std::optional<std::string> rejection = {}) {
    require_open(request.segments);
    return std::make_shared<CallImpl>(engine_, std::move(request), std::move(rejection));
  }

  // Takes part in the call only to tell the peers; throws Error (kArgument) with the message.
  void refuse(const std::vector<Segment>& segments, const std::string& message) {
    auto call = make_call({.segments = segments, .src = {}, .out = {}}, message);
    worker_.wait_idle();
    call->run(run_mutex_);
    call->wait({});
  }

  pipeline::Engine engine_;
  std::mutex run_mutex_;  // held while a call runs: what stats and memory read
  std::atomic<bool> visited_ = false;
  bool closed_ = false;
  SerialWorker worker_;  // last: its thread ends before what its tasks use
};

CompressedAllgather::CompressedAllgather(std::shared_ptr<Transport> transport,
                                         const Options& options)
    : impl_(std::make_unique<Impl>(std::move(transport), options)) {}
CompressedAllgather::~CompressedAllgather() = default;

Rank CompressedAllgather::rank() const {
  return Rank{static_cast<std::uint32_t>(impl_->engine_.rank)};
}
WorldSize CompressedAllgather::world_size() const {
  return WorldSize{static_cast<std::uint32_t>(impl_->engine_.world)};
}

std::shared_ptr<Call> CompressedAllgather::allgather(GatherRequest request) {
  const Impl::Visit visit(*impl_);
  auto call = impl_->make_call(std::move(request));
  impl_->worker_.wait_idle();
  call->run(impl_->run_mutex_);  // on this thread: no hand-over when nothing else is under way
  call->wait({});
  return call;
}

std::shared_ptr<Call> CompressedAllgather::allgather_async(GatherRequest request) {
  const Impl::Visit visit(*impl_);
  const std::vector<Segment> segments = request.segments;
  auto call = impl_->make_call(std::move(request));
  try {
    impl_->worker_.submit([call, impl = impl_.get()] { call->run(impl->run_mutex_); });
  } catch (const std::system_error& error) {
    impl_->refuse(segments, std::string("no thread for asynchronous calls (") + error.what() +
                                "); use the blocking call");
  }
  return call;
}

void CompressedAllgather::reject(const std::vector<Segment>& segments, const std::string& message) {
  const Impl::Visit visit(*impl_);
  try {
    impl_->refuse(segments, message);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kArgument) {
      throw;
    }
  }
}

void CompressedAllgather::reset(const ShardId& shard_id) {
  const Impl::Visit visit(*impl_);
  impl_->require_open({{shard_id, 0}});
  impl_->worker_.wait_idle();
  const std::lock_guard lock(impl_->run_mutex_);
  impl_->engine_.table.erase(shard_id);
}

void CompressedAllgather::reset() {
  const Impl::Visit visit(*impl_);
  impl_->require_open({});
  impl_->worker_.wait_idle();
  const std::lock_guard lock(impl_->run_mutex_);
  impl_->engine_.table.clear();
}

Stats CompressedAllgather::stats() const {
  const std::lock_guard lock(impl_->run_mutex_);
  return impl_->engine_.total;
}

Stats CompressedAllgather::stats(const ShardId& shard_id) const {
  const std::lock_guard lock(impl_->run_mutex_);
  const auto* state = impl_->engine_.table.find(shard_id);
  return state == nullptr ? Stats{} : state->stats;
}

Memory CompressedAllgather::memory() const {
  const std::lock_guard lock(impl_->run_mutex_);
  const pipeline::Engine& engine = impl_->engine_;
  return {.hash_cache = engine.table.hash_cache_bytes(),
          .staged_hashes = engine.table.hash_cache_bytes(),  // always of the same size
          .exp_cache = engine.table.exp_cache_bytes(),
          .word_cache = engine.table.word_cache_bytes(),
          .own_reference = engine.table.own_reference_bytes(),
          .send_arena = engine.send_arena.capacity() + engine.frame_arena.capacity(),
          .recv_arena = engine.recv_arena.capacity(),
          .scratch_arena = engine.backend->scratch_bytes() + engine.staging_arena.capacity()};
}

void CompressedAllgather::close() {
  const Impl::Visit visit(*impl_);
  impl_->closed_ = true;
  impl_->worker_.wait_idle();
  const std::lock_guard lock(impl_->run_mutex_);
  impl_->engine_.table.clear();
  impl_->engine_.send_arena.release();
  impl_->engine_.recv_arena.release();
  impl_->engine_.frame_arena.release();
  impl_->engine_.staging_arena.release();
  impl_->engine_.backend->release_scratch();
}

}  // namespace ciera
