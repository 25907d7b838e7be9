// Transports that wrap another one: for tests of faults, and for counting what an exchange really
// moves.
#pragma once

#include <functional>
#include <memory>
#include <utility>

#include "ciera/transport.hpp"

namespace ciera {

// Forwards everything to another transport.
class WrappingTransport : public Transport {
 public:
  explicit WrappingTransport(std::shared_ptr<Transport> inner) : inner_(std::move(inner)) {}

  Rank rank() const override { return inner_->rank(); }
  WorldSize world_size() const override { return inner_->world_size(); }
  std::string_view name() const override { return inner_->name(); }
  std::uint32_t local_world_size() const override { return inner_->local_world_size(); }
  CountSupport count_support() const override { return inner_->count_support(); }
  void allgather(std::span<const std::byte> send, std::span<std::byte> recv) override {
    inner_->allgather(send, recv);
  }
  void allgatherv(std::span<const std::byte> send, std::span<std::byte> recv,
                  std::span<const std::uint64_t> counts,
                  std::span<const std::uint64_t> offsets) override {
    inner_->allgatherv(send, recv, counts, offsets);
  }
  bool ask_while_waiting(std::function<void()> check) override {
    return inner_->ask_while_waiting(std::move(check));
  }
  bool is_network() const override { return inner_->is_network(); }
  bool moves_device_memory() const override { return inner_->moves_device_memory(); }
  void allgather_on(DeviceStream stream, std::span<const std::byte> send,
                    std::span<std::byte> recv) override {
    inner_->allgather_on(stream, send, recv);
  }
  void allgatherv_on(DeviceStream stream, std::span<const std::byte> send,
                     std::span<std::byte> recv, std::span<const std::uint64_t> counts,
                     std::span<const std::uint64_t> offsets) override {
    inner_->allgatherv_on(stream, send, recv, counts, offsets);
  }
  void wait_stream(DeviceStream stream) override { inner_->wait_stream(stream); }
  void abort(std::string_view reason) override { inner_->abort(reason); }

 private:
  std::shared_ptr<Transport> inner_;
};

// Lets a test damage what arrived, or throw, after each exchange.
class FaultyTransport final : public WrappingTransport {
 public:
  using Fault = std::function<void(std::span<std::byte> received)>;
  FaultyTransport(std::shared_ptr<Transport> inner, Fault fault)
      : WrappingTransport(std::move(inner)), fault_(std::move(fault)) {}

  // Faults are made in host memory, so that payloads of a GPU are staged there.
  bool moves_device_memory() const override { return false; }

  void allgather(std::span<const std::byte> send, std::span<std::byte> recv) override {
    WrappingTransport::allgather(send, recv);
    fault_(recv);
  }
  void allgatherv(std::span<const std::byte> send, std::span<std::byte> recv,
                  std::span<const std::uint64_t> counts,
                  std::span<const std::uint64_t> offsets) override {
    WrappingTransport::allgatherv(send, recv, counts, offsets);
    fault_(recv);
  }

 private:
  Fault fault_;
};

// Counts the bytes this rank gave to its transport. With `support` kEqualOnly it hides per-rank
// counts.
class RecordingTransport final : public WrappingTransport {
 public:
  RecordingTransport(std::shared_ptr<Transport> inner, CountSupport support)
      : WrappingTransport(std::move(inner)), support_(support) {}

  CountSupport count_support() const override { return support_; }
  void allgather(std::span<const std::byte> send, std::span<std::byte> recv) override {
    ++exchanges_;
    sent_bytes_ += send.size();
    WrappingTransport::allgather(send, recv);
  }
  void allgatherv(std::span<const std::byte> send, std::span<std::byte> recv,
                  std::span<const std::uint64_t> counts,
                  std::span<const std::uint64_t> offsets) override {
    ++exchanges_;
    sent_bytes_ += send.size();
    WrappingTransport::allgatherv(send, recv, counts, offsets);
  }

  void allgather_on(DeviceStream stream, std::span<const std::byte> send,
                    std::span<std::byte> recv) override {
    ++exchanges_;
    sent_bytes_ += send.size();
    WrappingTransport::allgather_on(stream, send, recv);
  }
  void allgatherv_on(DeviceStream stream, std::span<const std::byte> send,
                     std::span<std::byte> recv, std::span<const std::uint64_t> counts,
                     std::span<const std::uint64_t> offsets) override {
    ++exchanges_;
    sent_bytes_ += send.size();
    WrappingTransport::allgatherv_on(stream, send, recv, counts, offsets);
  }

  std::uint64_t exchanges() const { return exchanges_; }
  std::uint64_t sent_bytes() const { return sent_bytes_; }

 private:
  CountSupport support_;
  std::uint64_t exchanges_ = 0;
  std::uint64_t sent_bytes_ = 0;
};

}  // namespace ciera
