#include "base/quote.h"

namespace nibble {
namespace {

void append_escaped(std::string& to, char c) {
  constexpr std::string_view hex = "0123456789abcdef";
  const auto byte = static_cast<unsigned char>(c);
  switch (c) {
    case '\n': to += "\\n"; break;
    case '\r': to += "\\r"; break;
    case '\t': to += "\\t"; break;
    default:
      if (byte < 0x20 || byte > 0x7e) {
        to += {'\\', 'x', hex[byte >> 4], hex[byte & 0xfu]};
      } else {
        to += c;
      }
  }
}

}  // namespace

std::string quote(std::string_view text, std::size_t max_bytes) {
  std::string quoted = "\"";
  for (const char c : text.substr(0, max_bytes)) {
    if (c == '"' || c == '\\') quoted += '\\';
    append_escaped(quoted, c);
  }
  quoted += '"';
  if (text.size() > max_bytes) quoted += "...";
  return quoted;
}

std::string escape(std::string_view text) {
  std::string escaped;
  for (const char c : text) append_escaped(escaped, c);
  return escaped;
}

}  // namespace nibble
