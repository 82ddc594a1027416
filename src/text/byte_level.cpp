#include "text/byte_level.h"

#include <array>

#include "base/utf8.h"

namespace nibble {
namespace {

constexpr int kNoByte = -1;
constexpr char32_t kAlphabetEnd = 0x144;

constexpr bool stands_for_itself(int byte) {
  return (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
}

// Code point -> byte: printable Latin-1 stands for itself, the other bytes follow from U+0100 in order.
constexpr std::array<int, kAlphabetEnd> make_alphabet() {
  std::array<int, kAlphabetEnd> alphabet{};
  for (int& byte : alphabet) byte = kNoByte;
  int next = 0x100;
  for (int byte = 0; byte < 0x100; ++byte) {
    alphabet[static_cast<std::size_t>(stands_for_itself(byte) ? byte : next++)] = byte;
  }
  return alphabet;
}
constexpr std::array<int, kAlphabetEnd> kAlphabet = make_alphabet();

}  // namespace

bool append_byte_level(std::string_view token, std::string& bytes) {
  const std::size_t before = bytes.size();
  for (std::size_t at = 0; at < token.size();) {
    const CodePoint c = decode_valid_utf8(token.data() + at);
    at += c.length;
    const int byte = c.value < kAlphabetEnd ? kAlphabet[c.value] : kNoByte;
    if (byte == kNoByte) {
      bytes.resize(before);
      return false;
    }
    bytes.push_back(static_cast<char>(byte));
  }
  return true;
}

}  // namespace nibble
