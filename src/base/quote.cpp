#include "base/quote.h"

namespace nibble {

std::string quote(std::string_view text, std::size_t max_bytes) {
  constexpr std::string_view hex = "0123456789abcdef";
  std::string quoted = "\"";
  for (const char c : text.substr(0, max_bytes)) {
    const auto byte = static_cast<unsigned char>(c);
    switch (c) {
      case '"':
      case '\\': quoted += {'\\', c}; break;
      case '\n': quoted += "\\n"; break;
      case '\r': quoted += "\\r"; break;
      case '\t': quoted += "\\t"; break;
      default:
        if (byte < 0x20 || byte > 0x7e) {
          quoted += {'\\', 'x', hex[byte >> 4], hex[byte & 0xfu]};
        } else {
          quoted += c;
        }
    }
  }
  quoted += '"';
  if (text.size() > max_bytes) quoted += "...";
  return quoted;
}

}  // namespace nibble
