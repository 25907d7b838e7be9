#include "ciera/compressed_allgather.hpp"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <system_error>
#include <utility>

#include "exec/serial_worker.hpp"
#include "pipeline/engine.hpp"
#include "pipeline/gather_call.hpp"
#include "pipeline/lifeline.hpp"
#include "pipeline/shard_buffers.hpp"

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

using Clock = std::chrono::steady_clock;
using std::chrono::nanoseconds;

class CallImpl final : public Call {
 public:
  CallImpl(pipeline::Engine& engine, std::shared_ptr<pipeline::Lifeline> lifeline,
           GatherRequest request, std::optional<std::string> rejection)
      : label_(request.segments.empty()
                   ? "call without segments"
                   : "shard " + pipeline::to_string(request.segments[0].shard_id) + ", rank " +
                         std::to_string(engine.rank)),
        lifeline_(std::move(lifeline)),
        call_(engine, std::move(request), std::move(rejection)) {}

  void run(std::timed_mutex& run_mutex) {
    {
      const std::lock_guard running(run_mutex);
      try {
        throw_if_abandoned();
        call_.run();
      } catch (const Error&) {
        failure_ = std::current_exception();
      } catch (...) {
        // A signal or no memory, between any two steps: the peers must not wait for the next one.
        failure_ = std::current_exception();
        lifeline_->abandon("interrupted");
      }
    }
    call_.let_go();
    const std::lock_guard lock(mutex_);
    done_ = true;
    changed_.notify_all();
  }

  bool done() const override {
    const std::lock_guard lock(mutex_);
    return done_;
  }

  void wait(std::optional<nanoseconds> timeout) override {
    const auto start = Clock::now();
    bool late = false;
    lifeline_->wait([&](nanoseconds slice) {
      std::unique_lock lock(mutex_);
      const auto left = timeout ? *timeout - (Clock::now() - start) : slice;
      late = timeout && left <= nanoseconds(0);
      return changed_.wait_for(lock, std::min(slice, left), [this] { return done_; }) || late;
    });
    if (!done()) {
      throw_if_abandoned();
      throw Error(ErrorCode::kDeadline,
                  label_ + ": the call is not complete yet; it goes on, wait for it again");
    }
    if (failure_) {
      std::rethrow_exception(failure_);
    }
  }

  const std::vector<std::span<std::byte>>& outputs() const override { return call_.outputs(); }

  static std::string unusable(const std::string& reason) {
    return "the communicator is unusable, its calls were given up (" + reason +
           "); close it and make a new one on every rank";
  }

 private:
  void throw_if_abandoned() const {
    if (const auto reason = lifeline_->abandoned()) {
      throw Error(ErrorCode::kTransport, label_ + ": " + unusable(*reason));
    }
  }

  std::string label_;
  std::shared_ptr<pipeline::Lifeline> lifeline_;
  pipeline::GatherCall call_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  bool done_ = false;
  std::exception_ptr failure_;
};

}  // namespace

class CompressedAllgather::Impl : public std::enable_shared_from_this<Impl> {
 public:
  Impl(const std::shared_ptr<Transport>& transport, const Options& options,
       std::shared_ptr<Interrupt> interrupt)
      : engine_(transport, options),
        lifeline_(std::make_shared<pipeline::Lifeline>(transport, interrupt)),
        transport_asks_(transport->ask_while_waiting(check_of(interrupt))) {}
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  static std::function<void()> check_of(const std::shared_ptr<Interrupt>& interrupt) {
    if (interrupt == nullptr) {
      return {};
    }
    return [interrupt] {
      if (interrupt->watches()) {
        interrupt->check();
      }
    };
  }

  // Holds the communicator for one thread, for as long as it is inside.
  class Visit {
   public:
    explicit Visit(Impl& impl) : impl_(impl) {
      impl.require_own_process();
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

  void require_own_process() const {
    if (!in_own_process()) {
      throw Error(ErrorCode::kClosed, "rank " + std::to_string(engine_.rank) +
                                          ": the communicator was made in another process (pid " +
                                          std::to_string(process_) +
                                          "); make a new one after fork");
    }
  }
  bool in_own_process() const { return process_ == getpid(); }

  void require_open(const std::vector<Segment>& segments) const {
    const auto refuse_with = [&](ErrorCode code, const std::string& text) {
      throw Error(code, segments.empty()
                            ? "rank " + std::to_string(engine_.rank) + ": " + text
                            : pipeline::describe(segments[0].shard_id, engine_.rank, text));
    };
    if (closed_) {
      refuse_with(ErrorCode::kClosed, "the communicator is closed; make a new one");
    }
    if (const auto reason = lifeline_->abandoned()) {
      refuse_with(ErrorCode::kTransport, CallImpl::unusable(*reason));
    }
  }
  // While no call is under way, which could change that.
  void require_unbroken(const std::vector<Segment>& segments) const {
    if (!engine_.broken.empty()) {
      throw Error(ErrorCode::kTransport,
                  segments.empty()
                      ? "rank " + std::to_string(engine_.rank) + ": " + engine_.unusable()
                      : pipeline::describe(segments[0].shard_id, engine_.rank, engine_.unusable()));
    }
  }

  std::shared_ptr<CallImpl> make_call(GatherRequest request,
                                      std::optional<std::string> rejection = {}) {
    require_open(request.segments);
    return std::make_shared<CallImpl>(engine_, lifeline_, std::move(request), std::move(rejection));
  }

  // The task keeps what it uses: a call that was given up may outlive the communicator.
  void submit(const std::shared_ptr<CallImpl>& call) {
    worker_.submit([call, self = shared_from_this()] { call->run(self->run_mutex_); });
  }

  // Blocking. On this thread where it can be: a hand-over costs more than a small call.
  void run(const std::shared_ptr<CallImpl>& call) {
    bool handed_over = !transport_asks_ && lifeline_->watches();
    if (handed_over) {
      try {
        submit(call);
      } catch (const std::system_error&) {
        handed_over = false;  // no more threads: then it is not interruptible
      }
    }
    if (!handed_over && wait_idle()) {
      call->run(run_mutex_);
    }
    call->wait({});
  }

  // Takes part in the call only to tell the peers; throws Error (kArgument) with the message.
  void refuse(const std::vector<Segment>& segments, const std::string& message) {
    run(make_call({.segments = segments, .src = {}, .out = {}}, message));
  }

  // False when the calls were abandoned and may still be running.
  bool wait_idle() {
    return lifeline_->wait([this](nanoseconds time) { return worker_.idle_within(time); });
  }

  // Waits for calls under way and keeps others out.
  std::unique_lock<std::timed_mutex> idle(const ShardId& shard_id) {
    require_open({{shard_id, 0}});
    if (!wait_idle()) {
      require_open({{shard_id, 0}});  // abandoned meanwhile
    }
    std::unique_lock lock(run_mutex_);
    require_unbroken({{shard_id, 0}});
    return lock;
  }

  // What stats and memory read, while no call changes it.
  std::unique_lock<std::timed_mutex> settled() {
    require_own_process();
    std::unique_lock lock(run_mutex_, std::defer_lock);
    lifeline_->wait_apart([&lock](nanoseconds time) { return lock.try_lock_for(time); });
    return lock;
  }

  void abandon(const std::string& reason) {
    lifeline_->abandon(reason);
    idle_within(kMoment);  // most transports let go at once
  }

  // The worker, and threads that are inside.
  bool idle_within(nanoseconds patience) {
    if (!worker_.idle_within(patience)) {
      return false;
    }
    const std::unique_lock lock(run_mutex_, patience);
    return lock.owns_lock();
  }

  void close(std::optional<nanoseconds> patience) {
    closed_ = true;
    if (patience && !idle_for(*patience)) {
      abandon("closed while calls were under way");
    }
    if (!wait_idle()) {
      return;  // what is left goes with the last call
    }
    const std::lock_guard lock(run_mutex_);
    engine_.table.clear();
    engine_.send_arena.release();
    engine_.recv_arena.release();
    engine_.frame_arena.release();
    engine_.staging_arena.release();
    engine_.backend->release_scratch();
    engine_.claim.release();
  }

  // Whether all calls are complete after at most that long.
  bool idle_for(nanoseconds patience) {
    const auto start = Clock::now();
    bool idle = false;
    lifeline_->wait([&](nanoseconds slice) {
      const auto left = patience - (Clock::now() - start);
      idle = worker_.idle_within(std::clamp(left, nanoseconds(0), slice));
      return idle || left <= nanoseconds(0);
    });
    return idle;
  }

  static constexpr std::chrono::milliseconds kMoment{200};
  const pid_t process_ = getpid();
  pipeline::Engine engine_;
  std::shared_ptr<pipeline::Lifeline> lifeline_;
  bool transport_asks_;
  std::timed_mutex run_mutex_;  // held while a call runs: what stats and memory read
  std::atomic<bool> visited_ = false;
  bool closed_ = false;
  SerialWorker worker_;  // last: its thread ends before what its tasks use
};

CompressedAllgather::CompressedAllgather(std::shared_ptr<Transport> transport,
                                         const Options& options,
                                         std::shared_ptr<Interrupt> interrupt)
    : impl_(std::make_shared<Impl>(transport, options, std::move(interrupt))) {}

CompressedAllgather::~CompressedAllgather() {
  if (!impl_->in_own_process()) {
    new std::shared_ptr<Impl>(impl_);  // its threads are not here: it is never taken apart
    return;
  }
  try {
    impl_->wait_idle();
  } catch (...) {
    // Interrupted: the calls were abandoned.
    impl_->worker_.idle_within(Impl::kMoment);
  }
}

Rank CompressedAllgather::rank() const {
  return Rank{static_cast<std::uint32_t>(impl_->engine_.rank)};
}
WorldSize CompressedAllgather::world_size() const {
  return WorldSize{static_cast<std::uint32_t>(impl_->engine_.world)};
}

std::shared_ptr<Call> CompressedAllgather::allgather(GatherRequest request) {
  const Impl::Visit visit(*impl_);
  auto call = impl_->make_call(std::move(request));
  impl_->run(call);
  return call;
}

std::shared_ptr<Call> CompressedAllgather::allgather_async(GatherRequest request) {
  const Impl::Visit visit(*impl_);
  const std::vector<Segment> segments = request.segments;
  auto call = impl_->make_call(std::move(request));
  try {
    impl_->submit(call);
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

std::shared_ptr<ShardBuffer> CompressedAllgather::buffer(const ShardId& shard_id, DType dtype,
                                                         std::vector<std::uint64_t> numels) {
  const Impl::Visit visit(*impl_);
  const auto lock = impl_->idle(shard_id);
  return pipeline::make_buffer(impl_->engine_, shard_id, dtype, std::move(numels));
}

std::shared_ptr<ShardBuffer> CompressedAllgather::buffer(const ShardId& shard_id) {
  const Impl::Visit visit(*impl_);
  const auto lock = impl_->idle(shard_id);
  return pipeline::find_buffer(impl_->engine_, shard_id);
}

void CompressedAllgather::reset(const ShardId& shard_id) {
  const Impl::Visit visit(*impl_);
  impl_->require_open({{shard_id, 0}});
  if (impl_->wait_idle()) {
    const std::lock_guard lock(impl_->run_mutex_);
    impl_->require_unbroken({{shard_id, 0}});
    impl_->engine_.table.erase(shard_id);
    impl_->engine_.table.erase_buffer(shard_id);
  }
}

void CompressedAllgather::reset() {
  const Impl::Visit visit(*impl_);
  impl_->require_open({});
  if (impl_->wait_idle()) {
    const std::lock_guard lock(impl_->run_mutex_);
    impl_->require_unbroken({});
    impl_->engine_.table.clear();
  }
}

Stats CompressedAllgather::stats() const {
  const auto lock = impl_->settled();
  return impl_->engine_.total;
}

Stats CompressedAllgather::stats(const ShardId& shard_id) const {
  const auto lock = impl_->settled();
  const auto* state = impl_->engine_.table.find(shard_id);
  return state == nullptr ? Stats{} : state->stats;
}

std::optional<std::uint64_t> CompressedAllgather::plain_below_bytes() const {
  const auto lock = impl_->settled();
  return impl_->engine_.plain_below_bytes;
}

Memory CompressedAllgather::memory() const {
  const auto lock = impl_->settled();
  const pipeline::Engine& engine = impl_->engine_;
  return {.hash_cache = engine.table.hash_cache_bytes(),
          .staged_hashes = engine.table.hash_cache_bytes(),  // always of the same size
          .exp_cache = engine.table.exp_cache_bytes(),
          .word_cache = engine.table.word_cache_bytes(),
          .own_reference = engine.table.own_reference_bytes(),
          .buffers = engine.table.buffer_bytes(),
          .send_arena = engine.send_arena.capacity() + engine.frame_arena.capacity(),
          .recv_arena = engine.recv_arena.capacity(),
          .scratch_arena = engine.backend->scratch_bytes() + engine.staging_arena.capacity()};
}

void CompressedAllgather::abandon(const std::string& reason) {
  impl_->require_own_process();
  impl_->abandon(reason);
}

bool CompressedAllgather::idle_within(nanoseconds patience) {
  impl_->require_own_process();
  return impl_->idle_within(patience);
}

void CompressedAllgather::close(std::optional<nanoseconds> patience) {
  const Impl::Visit visit(*impl_);
  impl_->close(patience);
}

}  // namespace ciera
