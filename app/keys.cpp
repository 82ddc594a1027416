#include "app/keys.h"

namespace nibble {
namespace {

constexpr std::string_view kPasteBegin = "\x1b[200~";
constexpr std::string_view kPasteEnd = "\x1b[201~";
constexpr char kEscape = '\x1b';

KeyKind control_key(char c) {
  switch (c) {
    case 0x01: return KeyKind::home;
    case 0x02: return KeyKind::left;
    case 0x03: return KeyKind::interrupt;
    case 0x04: return KeyKind::end_of_input;
    case 0x05: return KeyKind::end;
    case 0x06: return KeyKind::right;
    case 0x08: return KeyKind::backspace;
    case '\n': return KeyKind::enter;
    case 0x0B: return KeyKind::erase_to_end;
    case 0x0C: return KeyKind::clear_screen;
    case '\r': return KeyKind::enter;
    case 0x0E: return KeyKind::down;
    case 0x10: return KeyKind::up;
    case 0x14: return KeyKind::transpose;
    case 0x15: return KeyKind::erase_to_start;
    case 0x17: return KeyKind::erase_word;
    case 0x19: return KeyKind::put_back;
    case 0x7F: return KeyKind::backspace;
    default: return KeyKind::unknown;
  }
}

// The last byte of ESC [ <parameters> <final>.
KeyKind sequence_key(std::string_view parameters, char final) {
  // "1;5C": the number after ';' carries Ctrl (5) or Alt (3).
  const bool by_word = parameters.ends_with(";5") || parameters.ends_with(";3");
  switch (final) {
    case 'A': return KeyKind::up;
    case 'B': return KeyKind::down;
    case 'C': return by_word ? KeyKind::word_right : KeyKind::right;
    case 'D': return by_word ? KeyKind::word_left : KeyKind::left;
    case 'H': return KeyKind::home;
    case 'F': return KeyKind::end;
    case '~':
      if (parameters == "1" || parameters == "7") return KeyKind::home;
      if (parameters == "4" || parameters == "8") return KeyKind::end;
      if (parameters == "3") return KeyKind::erase;
      if (parameters.starts_with("3;")) return KeyKind::erase_word_right;
      return KeyKind::unknown;
    default: return KeyKind::unknown;
  }
}

std::size_t utf8_length(char lead) {
  const auto byte = static_cast<unsigned char>(lead);
  if (byte >= 0xC2 && byte < 0xE0) return 2;
  if (byte >= 0xE0 && byte < 0xF0) return 3;
  if (byte >= 0xF0 && byte < 0xF5) return 4;
  return 1;
}

// Bytes of the character at the front of `bytes`; 0 when its rest is still to come. A lead byte that is not
// followed by what it announces stands alone.
std::size_t character_length(std::string_view bytes) {
  const std::size_t length = utf8_length(bytes[0]);
  for (std::size_t i = 1; i < length; ++i) {
    if (i == bytes.size()) return 0;
    if ((static_cast<unsigned char>(bytes[i]) & 0xC0) != 0x80) return 1;
  }
  return length;
}

bool is_utf8(std::string_view character) {
  return character.size() > 1 || static_cast<unsigned char>(character[0]) < 0x80;
}

std::string with_plain_line_ends(std::string_view text) {
  std::string out;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '\r') {
      out += '\n';
      if (i + 1 < text.size() && text[i + 1] == '\n') ++i;
    } else if (text[i] == '\t') {
      out += "    ";
    } else if (static_cast<unsigned char>(text[i]) >= 0x20 || text[i] == '\n') {
      out += text[i];
    }
  }
  return out;
}

}  // namespace

Key KeyDecoder::take(std::size_t length, KeyKind kind) {
  bytes_.erase(0, length);
  return {kind, {}};
}

bool KeyDecoder::may_give_up() const { return waiting() && !bytes_.starts_with(kPasteBegin); }

std::optional<Key> KeyDecoder::next() {
  if (bytes_.empty()) return std::nullopt;
  const char first = bytes_[0];
  if (first == kEscape) return escape();
  if (first == '\t') {
    bytes_.erase(0, 1);
    return Key{KeyKind::text, "    "};
  }
  if (static_cast<unsigned char>(first) < 0x20 || first == 0x7F) return take(1, control_key(first));
  // Everything printable that has come goes in at once, so that fast typing costs one redraw.
  std::string text;
  std::size_t at = 0;
  while (at < bytes_.size() && static_cast<unsigned char>(bytes_[at]) >= 0x20 && bytes_[at] != 0x7F) {
    const std::size_t length = character_length(std::string_view(bytes_).substr(at));
    if (length == 0) break;
    const auto character = std::string_view(bytes_).substr(at, length);
    if (is_utf8(character)) text += character;
    at += length;
  }
  if (at == 0) return std::nullopt;
  bytes_.erase(0, at);
  return Key{KeyKind::text, std::move(text)};
}

std::optional<Key> KeyDecoder::escape() {
  if (bytes_.size() < 2) return std::nullopt;
  switch (bytes_[1]) {
    case '[': return bytes_.starts_with(kPasteBegin) ? paste() : control_sequence();
    case 'O':
      if (bytes_.size() < 3) return std::nullopt;
      return take(3, sequence_key("", bytes_[2]));
    case '\r': return take(2, KeyKind::new_line);
    case 'b': return take(2, KeyKind::word_left);
    case 'f': return take(2, KeyKind::word_right);
    case 'd': return take(2, KeyKind::erase_word_right);
    case 0x7F: return take(2, KeyKind::erase_word);
    default: return take(2, KeyKind::unknown);
  }
}

std::optional<Key> KeyDecoder::control_sequence() {
  // Parameters are 0x30..0x3F, intermediates 0x20..0x2F, the final byte 0x40..0x7E.
  std::size_t at = 2;
  while (at < bytes_.size() && bytes_[at] >= 0x20 && bytes_[at] <= 0x3F) ++at;
  if (at == bytes_.size()) return std::nullopt;
  const std::string parameters = bytes_.substr(2, at - 2);
  return take(at + 1, sequence_key(parameters, bytes_[at]));
}

std::optional<Key> KeyDecoder::paste() {
  const std::size_t end = bytes_.find(kPasteEnd, kPasteBegin.size());
  if (end == std::string::npos) return std::nullopt;
  Key key{KeyKind::paste, with_plain_line_ends(
                              std::string_view(bytes_).substr(kPasteBegin.size(), end - kPasteBegin.size()))};
  bytes_.erase(0, end + kPasteEnd.size());
  return key;
}

}  // namespace nibble
