#include "server/http/query.h"

#include <algorithm>
#include <charconv>

namespace nibble::http {
namespace {

std::string decoded(std::string_view sent) {
  std::string text;
  for (std::size_t at = 0; at < sent.size(); ++at) {
    unsigned char byte = 0;
    if (sent[at] == '+') {
      text += ' ';
    } else if (sent[at] == '%' && at + 2 < sent.size() &&
               std::from_chars(sent.data() + at + 1, sent.data() + at + 3, byte, 16).ptr ==
                   sent.data() + at + 3) {
      text += static_cast<char>(byte);
      at += 2;
    } else {
      text += sent[at];
    }
  }
  return text;
}

}  // namespace

std::optional<std::string> query_value(std::string_view query, std::string_view name) {
  while (!query.empty()) {
    const std::string_view pair = query.substr(0, query.find('&'));
    query.remove_prefix(std::min(query.size(), pair.size() + 1));
    const std::size_t equals = pair.find('=');
    if (decoded(pair.substr(0, equals)) != name) continue;
    return equals == pair.npos ? std::string() : decoded(pair.substr(equals + 1));
  }
  return {};
}

}  // namespace nibble::http
