#include "app/display_text.h"

#include <utf8proc.h>

#include <algorithm>
#include <cstdio>

namespace nibble {
namespace {

struct CodePointAt {
  utf8proc_int32_t value = -1;  // -1: not UTF-8
  std::size_t length = 1;
};

CodePointAt code_point_at(std::string_view text, std::size_t at) {
  utf8proc_int32_t value = -1;
  const auto* bytes = reinterpret_cast<const utf8proc_uint8_t*>(text.data());
  const auto length = utf8proc_iterate(bytes + at, static_cast<utf8proc_ssize_t>(text.size() - at), &value);
  if (length <= 0) return {};
  return {value, static_cast<std::size_t>(length)};
}

// Characters that print nothing themselves but change how their neighbours are placed.
bool reorders(utf8proc_int32_t c) {
  return c == 0x061C || c == 0x200E || c == 0x200F || (c >= 0x202A && c <= 0x202E) ||
         (c >= 0x2066 && c <= 0x2069);
}

}  // namespace

std::size_t next_character(std::string_view text, std::size_t at) {
  CodePointAt here = code_point_at(text, at);
  utf8proc_int32_t state = 0;
  for (;;) {
    at += here.length;
    if (at >= text.size() || here.value < 0) return at;
    const CodePointAt next = code_point_at(text, at);
    if (next.value < 0 || utf8proc_grapheme_break_stateful(here.value, next.value, &state)) return at;
    here = next;
  }
}

std::size_t previous_character(std::string_view text, std::size_t at) {
  // Clusters can only be told from the front; an entry is a line or a few, so this stays cheap.
  std::size_t line = at > 1 ? text.rfind('\n', at - 2) : std::string_view::npos;
  std::size_t begin = line == std::string_view::npos ? 0 : line + 1;
  while (begin < at) {
    const std::size_t end = next_character(text, begin);
    if (end >= at) return begin;
    begin = end;
  }
  return begin;
}

int character_columns(std::string_view character) {
  int columns = 0;
  for (std::size_t at = 0; at < character.size();) {
    const CodePointAt c = code_point_at(character, at);
    columns = std::max(columns, c.value < 0 ? 1 : utf8proc_charwidth(c.value));
    if (c.value == 0xFE0F) columns = 2;  // asks for the emoji form of the character before
    at += c.length;
  }
  return std::min(columns, 2);
}

int text_columns(std::string_view text) {
  int columns = 0;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = next_character(text, at);
    columns += character_columns(text.substr(at, end - at));
    at = end;
  }
  return columns;
}

std::string visible_text(std::string_view text) {
  std::string shown;
  shown.reserve(text.size());
  for (std::size_t at = 0; at < text.size();) {
    const CodePointAt c = code_point_at(text, at);
    if (c.value < 0) {
      shown += "\xEF\xBF\xBD";
    } else if (c.value == '\n' || c.value == '\t') {
      shown += static_cast<char>(c.value);
    } else if (c.value < 0x20 || c.value == 0x7F) {
      shown += '^';
      shown += static_cast<char>(c.value ^ 0x40);
    } else if ((c.value >= 0x80 && c.value < 0xA0) || c.value == 0x2028 || c.value == 0x2029 ||
               reorders(c.value)) {
      char spelling[16];
      std::snprintf(spelling, sizeof spelling, "<U+%04X>", static_cast<unsigned>(c.value));
      shown += spelling;
    } else {
      shown += text.substr(at, c.length);
    }
    at += c.length;
  }
  return shown;
}

}  // namespace nibble
