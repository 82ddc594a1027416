#include "base/json_copy.h"

#include <optional>
#include <variant>
#include <vector>

namespace nibble {
namespace {

using Elements = JsonValue::Range<JsonValue::ElementIterator>;
using Members = JsonValue::Range<JsonValue::MemberIterator>;
using Left = std::variant<Elements, Members>;  // of an open container

// The container's next value, its key written before it; nothing, and the container closed, at its end.
std::optional<JsonValue> next_of(Left& left, JsonWriter& writer) {
  if (auto* elements = std::get_if<Elements>(&left)) {
    if (elements->first == elements->last) {
      writer.end_array();
      return {};
    }
    const JsonValue value = *elements->first;
    ++elements->first;
    return value;
  }
  Members& members = std::get<Members>(left);
  if (members.first == members.last) {
    writer.end_object();
    return {};
  }
  const auto [name, value] = *members.first;
  ++members.first;
  writer.key(name);
  return value;
}

}  // namespace

// Open containers lie on a stack of our own, so depth costs no call stack.
void copy_json(JsonValue value, JsonWriter& writer) {
  std::vector<Left> open;
  std::optional<JsonValue> next = value;
  while (next) {
    switch (next->type()) {
      case JsonType::null: writer.null(); break;
      case JsonType::boolean: writer.value(next->as_bool()); break;
      case JsonType::integer: writer.value(next->as_integer()); break;
      case JsonType::real: writer.value(next->as_double()); break;
      case JsonType::string: writer.value(next->as_string()); break;
      case JsonType::array:
        writer.begin_array();
        open.emplace_back(next->elements());
        break;
      case JsonType::object:
        writer.begin_object();
        open.emplace_back(next->members());
        break;
    }
    next.reset();
    while (!next && !open.empty()) {
      next = next_of(open.back(), writer);
      if (!next) open.pop_back();
    }
  }
}

std::size_t most_json_values(std::string_view text) {
  std::size_t count = 1;
  bool in_string = false;
  for (std::size_t at = 0; at < text.size(); ++at) {
    const char c = text[at];
    if (c == '"') {
      in_string = !in_string;
    } else if (in_string) {
      at += c == '\\' ? 1 : 0;  // what is escaped ends no string
    } else {
      count += c == ',' || c == ':' || c == '[' || c == '{' ? 1 : 0;
    }
  }
  return count;
}

}  // namespace nibble
