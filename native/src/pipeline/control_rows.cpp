#include "pipeline/control_rows.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <map>

#include "base/utf8.hpp"

namespace ciera::pipeline {
namespace {

constexpr std::size_t kTextBytes = 512;

}  // namespace

void ControlPlane::gather(std::span<const std::byte> own, std::span<std::byte> all) {
  transport_.allgather(own, all);
  sent_bytes_ += own.size();
}

std::vector<std::uint64_t> ControlPlane::exchange_words(const std::vector<std::uint64_t>& own) {
  std::vector<std::uint64_t> all(own.size() * value(transport_.world_size()));
  gather(std::as_bytes(std::span(own)), std::as_writable_bytes(std::span(all)));
  return all;
}

std::vector<std::string> ControlPlane::exchange_texts(const std::string& own) {
  using Text = std::array<char, kTextBytes>;
  Text text{};
  const std::string_view cut = base::cut_utf8(own, kTextBytes - 1);
  std::ranges::copy(cut, text.begin());
  std::vector<std::string> texts;
  for (const Text& peer : exchange(text)) {
    texts.emplace_back(peer.data(), strnlen(peer.data(), kTextBytes));
  }
  return texts;
}

std::string group_by_text(const std::vector<std::string>& texts) {
  std::map<std::string, std::vector<std::size_t>> groups;
  for (std::size_t r = 0; r < texts.size(); ++r) {
    groups[texts[r]].push_back(r);
  }
  std::string joined;
  for (const auto& [text, ranks] : groups) {
    joined += joined.empty() ? "" : "; ";
    joined += ranks.size() == 1 ? "rank " : "ranks ";
    for (std::size_t i = 0; i < ranks.size(); ++i) {
      joined += (i == 0 ? "" : ", ") + std::to_string(ranks[i]);
    }
    joined += ": " + text;
  }
  return joined;
}

}  // namespace ciera::pipeline
