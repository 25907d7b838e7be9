// Runs one function a rank, each on a thread with its own loopback transport.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "ciera/compressed_allgather.hpp"
#include "ciera/loopback.hpp"

namespace ciera::testing {

inline constexpr std::chrono::seconds kDeadline{20};

inline void on_ranks(std::uint32_t world,
                     const std::function<void(std::size_t, std::shared_ptr<Transport>)>& body) {
  const auto transports = make_loopback(WorldSize{world}, kDeadline);
  std::vector<std::thread> threads;
  for (std::size_t r = 0; r < world; ++r) {
    threads.emplace_back([&, r] { body(r, transports[r]); });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
}

// The error that `body` throws, or nothing.
inline std::optional<Error> error_of(const std::function<void()>& body) {
  try {
    body();
  } catch (const Error& error) {
    return error;
  }
  return std::nullopt;
}

// Words of rank `rank` at `step`: a few percent differ from step to step, as weights do.
inline std::vector<std::uint16_t> weights(std::size_t rank, std::size_t step, std::size_t numel) {
  std::mt19937_64 random(1000 + rank);
  std::normal_distribution<float> normal(0.0F, 0.02F);
  std::vector<std::uint16_t> words(numel);
  for (auto& word : words) {
    const float drawn = normal(random);
    std::uint32_t bits = 0;
    std::memcpy(&bits, &drawn, sizeof bits);
    word = static_cast<std::uint16_t>(bits >> 16);
  }
  for (std::size_t t = 1; t <= step; ++t) {
    for (std::size_t i = t % 7; i < numel; i += 61) {
      words[i] = static_cast<std::uint16_t>(words[i] + 1);
    }
  }
  return words;
}

inline std::span<const std::byte> bytes(const std::vector<std::uint16_t>& words) {
  return std::as_bytes(std::span(words));
}

inline std::vector<std::uint16_t> words_of(std::span<const std::byte> data) {
  std::vector<std::uint16_t> words(data.size() / 2);
  if (!words.empty()) {
    std::memcpy(words.data(), data.data(), data.size());
  }
  return words;
}

}  // namespace ciera::testing
