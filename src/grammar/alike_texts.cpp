#include "grammar/alike_texts.h"

#include <algorithm>
#include <cstddef>
#include <string>

namespace nibble {
namespace {

std::string_view without_blanks(std::string_view text) {
  return text.substr(std::min(text.find_first_not_of(" \t\r\n"), text.size()));
}

// Where the string ends with which the text begins.
std::size_t end_of_string(std::string_view text) {
  if (!text.starts_with('"')) return 0;
  std::size_t at = 1;
  while (at < text.size() && text[at] != '"') at += text[at] == '\\' ? 2 : 1;
  return at;
}

}  // namespace

bool may_be_alike(std::string_view before, std::string_view token) {
  if (token.find_first_of("[{") != token.npos) return true;
  for (std::size_t comma = token.find(','); comma != token.npos; comma = token.find(',', comma + 1)) {
    const std::string_view later = without_blanks(token.substr(comma + 1));
    if (later.empty()) break;
    const auto alike = [&](std::string_view earlier) {
      const auto differ = std::ranges::mismatch(earlier, later).in1 - earlier.begin();
      const auto same = static_cast<std::size_t>(differ);
      return same == std::min(earlier.size(), later.size()) || same > end_of_string(earlier);
    };
    std::string first(before.substr(0, std::min(before.size(), token.size())));
    if (first.size() == before.size()) first += token.substr(0, comma);
    if (alike(without_blanks(first))) return true;
    for (std::size_t start = token.find(','); start < comma; start = token.find(',', start + 1))
      if (alike(without_blanks(token.substr(start + 1, comma - start - 1)))) return true;
  }
  return false;
}

}  // namespace nibble
