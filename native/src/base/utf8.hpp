// Shortening of UTF-8 text.
#pragma once

#include <cstddef>
#include <string_view>

namespace ciera::base {

// The longest start of `text` within `bytes` that does not end inside a character.
constexpr std::string_view cut_utf8(std::string_view text, std::size_t bytes) {
  if (text.size() <= bytes) {
    return text;
  }
  while (bytes > 0 && (static_cast<unsigned char>(text[bytes]) & 0xC0) == 0x80) {
    --bytes;
  }
  return text.substr(0, bytes);
}

}  // namespace ciera::base
