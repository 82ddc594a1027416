#pragma once

#include <cstddef>
#include <string_view>

namespace nibble::api {

// How many characters of UTF-8 a text has. Offsets in completions and limits of texts are told in them, as
// JSON schemas count too.
inline std::size_t characters(std::string_view text) {
  std::size_t count = 0;
  for (const char byte : text) count += (static_cast<unsigned char>(byte) & 0xC0) != 0x80 ? 1 : 0;
  return count;
}

}  // namespace nibble::api
