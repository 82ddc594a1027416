#include "server/api/reasoning_text.h"

#include <cstddef>
#include <cstdint>

#include "base/utf8.h"

namespace nibble::api {
namespace {

constexpr std::string_view mark = "nibble-reasoning-1.";
constexpr std::string_view digits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";

}  // namespace

// Three bytes are four digits of six bits; a shorter end has as many digits as its bits need.
std::string wrapped_reasoning(std::string_view text) {
  std::string out(mark);
  std::uint32_t bits = 0;
  int count = 0;
  for (const char byte : text) {
    bits = (bits << 8) | static_cast<unsigned char>(byte);
    for (count += 8; count >= 6; count -= 6) out += digits[(bits >> (count - 6)) & 63];
  }
  if (count > 0) out += digits[(bits << (6 - count)) & 63];
  return out;
}

std::optional<std::string> unwrapped_reasoning(std::string_view wrapped) {
  if (!wrapped.starts_with(mark)) return {};
  wrapped.remove_prefix(mark.size());
  std::string text;
  std::uint32_t bits = 0;
  int count = 0;
  for (const char digit : wrapped) {
    const std::size_t value = digits.find(digit);
    if (value == digits.npos) return {};
    bits = (bits << 6) | static_cast<std::uint32_t>(value);
    count += 6;
    if (count < 8) continue;
    count -= 8;
    text += static_cast<char>((bits >> count) & 255);
  }
  if (wrapped_reasoning(text).substr(mark.size()) != wrapped) return {};
  if (to_valid_utf8(text) != text) return {};
  return text;
}

}  // namespace nibble::api
