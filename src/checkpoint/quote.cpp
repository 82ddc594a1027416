#include "checkpoint/quote.h"

#include <cstddef>

namespace nibble {

std::string quote_name(std::string_view name) {
  constexpr std::size_t max_bytes = 160;
  constexpr std::string_view hex = "0123456789abcdef";
  std::string text = "\"";
  for (const char c : name.substr(0, max_bytes)) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte == '"' || byte == '\\') {
      text += '\\';
      text += c;
    } else if (byte < 0x20 || byte > 0x7e) {
      text += "\\x";
      text += hex[byte >> 4];
      text += hex[byte & 0xfu];
    } else {
      text += c;
    }
  }
  if (name.size() > max_bytes) text += "...";
  return text + "\"";
}

}  // namespace nibble
