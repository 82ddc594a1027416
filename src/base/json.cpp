#include "base/json.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <limits>

#include "base/json_copy.h"
#include "base/utf8.h"

namespace nibble {

std::string_view json_type_name(JsonType type) {
  switch (type) {
    case JsonType::null: return "null";
    case JsonType::boolean: return "a boolean";
    case JsonType::integer: return "an integer";
    case JsonType::real: return "a number";
    case JsonType::string: return "a string";
    case JsonType::array: return "an array";
    case JsonType::object: return "an object";
  }
  NIBBLE_CHECK(false, "unknown JSON type");
  return "";
}

JsonType JsonValue::type() const { return node_->type; }

bool JsonValue::as_bool() const {
  NIBBLE_CHECK(is_bool());
  return node_->boolean;
}

std::int64_t JsonValue::as_integer() const {
  NIBBLE_CHECK(is_integer());
  return node_->integer;
}

double JsonValue::as_double() const {
  NIBBLE_CHECK(is_number());
  return is_integer() ? static_cast<double>(node_->integer) : node_->real;
}

std::string_view JsonValue::as_string() const {
  NIBBLE_CHECK(is_string());
  return {text_ + node_->offset, node_->size};
}

std::size_t JsonValue::size() const { return is_array() || is_object() ? node_->size : 0; }

const JsonValue::Node* JsonValue::after() const {
  return node_ + (is_array() || is_object() ? static_cast<std::ptrdiff_t>(node_->span) : 1);
}

std::optional<JsonValue> JsonValue::find(std::string_view key) const {
  if (!is_object()) return std::nullopt;
  for (const auto& [name, value] : members()) {
    if (name == key) return value;
  }
  return std::nullopt;
}

namespace {

std::size_t append_utf8(char* to, std::uint32_t code) {
  const auto put = [&](std::size_t i, std::uint32_t value) { to[i] = static_cast<char>(value); };
  if (code < 0x80) return put(0, code), 1;
  if (code < 0x800) return put(0, 0xc0 | code >> 6), put(1, 0x80 | (code & 0x3f)), 2;
  if (code < 0x10000)
    return put(0, 0xe0 | code >> 12), put(1, 0x80 | (code >> 6 & 0x3f)), put(2, 0x80 | (code & 0x3f)), 3;
  return put(0, 0xf0 | code >> 18), put(1, 0x80 | (code >> 12 & 0x3f)), put(2, 0x80 | (code >> 6 & 0x3f)),
         put(3, 0x80 | (code & 0x3f)), 4;
}

}  // namespace

// One pass over the text; open containers lie on a stack of our own, so depth costs no call stack.
class JsonParser {
 public:
  JsonParser(std::string& text, const JsonLimits& limits) : text_(text), limits_(limits) {}

  Status run(std::vector<JsonValue::Node>& nodes);

 private:
  using Node = JsonValue::Node;
  struct Open {
    std::size_t node;
    bool object;
  };

  Status fail(std::string_view what) const { return fail_at(at_, what); }
  static Status fail_at(std::size_t byte, std::string_view what) {
    return invalid_argument("invalid JSON at byte " + std::to_string(byte) + ": " + std::string(what));
  }
  char peek() const { return at_ < text_.size() ? text_[at_] : '\0'; }
  bool take(char expected) {
    if (peek() != expected || at_ == text_.size()) return false;
    ++at_;
    return true;
  }
  void skip_space() {
    while (at_ < text_.size() &&
           (text_[at_] == ' ' || text_[at_] == '\n' || text_[at_] == '\t' || text_[at_] == '\r'))
      ++at_;
  }

  Status value();
  Status add(JsonType type, Node node);
  Status open(JsonType type);
  Status close();
  Status key();
  Status string_node();
  Status escape(std::size_t& to);
  Status hex4(std::uint32_t& code);
  Status number();
  Status word(std::string_view spelling, JsonType type, bool boolean);
  Status distinct_keys(std::size_t object) const;

  std::string& text_;
  const JsonLimits& limits_;
  std::vector<Node>* nodes_ = nullptr;
  std::vector<Open> open_;
  std::size_t at_ = 0;
};

Status JsonParser::add(JsonType type, Node node) {
  if (nodes_->size() == limits_.max_values)
    return fail("more than " + std::to_string(limits_.max_values) + " values");
  node.type = type;
  nodes_->push_back(node);
  return {};
}

Status JsonParser::run(std::vector<Node>& nodes) {
  nodes_ = &nodes;
  if (text_.compare(0, 3, "\xef\xbb\xbf") == 0) return fail("a byte order mark; save the text without one");
  if (const std::size_t valid = valid_utf8_prefix(text_); valid != text_.size())
    return fail_at(valid, "not UTF-8");
  skip_space();
  NIBBLE_RETURN_IF_ERROR(value());
  // After a value: close containers, or go on to the next element or member.
  while (!open_.empty()) {
    skip_space();
    const bool object = open_.back().object;
    if (take(object ? '}' : ']')) {
      NIBBLE_RETURN_IF_ERROR(close());
    } else if (take(',')) {
      skip_space();
      if (object) NIBBLE_RETURN_IF_ERROR(key());
      NIBBLE_RETURN_IF_ERROR(value());
    } else {
      return fail(object ? "expected ',' or '}' after a member" : "expected ',' or ']' after an element");
    }
  }
  skip_space();
  if (at_ != text_.size()) return fail("something follows the value");
  return {};
}

// Reads one value; an opened container is read up to and including its first element's beginning.
Status JsonParser::value() {
  for (;;) {
    if (!open_.empty()) ++(*nodes_)[open_.back().node].size;
    switch (peek()) {
      case '"': return string_node();
      case 't': return word("true", JsonType::boolean, true);
      case 'f': return word("false", JsonType::boolean, false);
      case 'n': return word("null", JsonType::null, false);
      case '{':
        NIBBLE_RETURN_IF_ERROR(open(JsonType::object));
        if (take('}')) return close();
        NIBBLE_RETURN_IF_ERROR(key());
        break;
      case '[':
        NIBBLE_RETURN_IF_ERROR(open(JsonType::array));
        if (take(']')) return close();
        break;
      default: return number();
    }
  }
}

Status JsonParser::open(JsonType type) {
  if (static_cast<int>(open_.size()) == limits_.max_depth) {
    return fail("nested more than " + std::to_string(limits_.max_depth) + " deep");
  }
  open_.push_back({nodes_->size(), type == JsonType::object});
  NIBBLE_RETURN_IF_ERROR(add(type, Node{}));
  ++at_;
  skip_space();
  return {};
}

Status JsonParser::close() {
  const Open closed = open_.back();
  open_.pop_back();
  (*nodes_)[closed.node].span = nodes_->size() - closed.node;
  return closed.object ? distinct_keys(closed.node) : Status();
}

Status JsonParser::key() {
  if (peek() != '"') return fail("expected a key in double quotes");
  NIBBLE_RETURN_IF_ERROR(string_node());
  skip_space();
  if (!take(':')) return fail("expected ':' after a key");
  skip_space();
  return {};
}

Status JsonParser::string_node() {
  const std::size_t begin = ++at_;
  std::size_t to = begin;
  for (;;) {
    if (at_ == text_.size()) return fail("the text ends inside a string");
    const char c = text_[at_];
    if (c == '"') break;
    if (static_cast<unsigned char>(c) < 0x20)
      return fail("a control character inside a string; write it as \\u00XX");
    if (c == '\\') {
      NIBBLE_RETURN_IF_ERROR(escape(to));
    } else {
      text_[to++] = c;
      ++at_;
    }
  }
  ++at_;
  Node node{};
  node.offset = begin;
  node.size = static_cast<std::uint32_t>(to - begin);
  return add(JsonType::string, node);
}

// What an escape stands for is never longer than its spelling, so it fits where it was read.
Status JsonParser::escape(std::size_t& to) {
  static constexpr std::string_view spelled = "\"\\/bfnrt", meant = "\"\\/\b\f\n\r\t";
  ++at_;
  const char c = peek();
  if (const std::size_t which = spelled.find(c); c != '\0' && which != spelled.npos) {
    text_[to++] = meant[which];
    ++at_;
    return {};
  }
  if (c != 'u') return fail("an unknown escape in a string");
  ++at_;
  std::uint32_t code = 0;
  NIBBLE_RETURN_IF_ERROR(hex4(code));
  if (code >= 0xdc00 && code <= 0xdfff) return fail("the second half of a surrogate pair without its first");
  if (code >= 0xd800 && code <= 0xdbff) {
    std::uint32_t low = 0;
    if (!take('\\') || !take('u')) return fail("the first half of a surrogate pair without its second");
    NIBBLE_RETURN_IF_ERROR(hex4(low));
    if (low < 0xdc00 || low > 0xdfff) return fail("the first half of a surrogate pair without its second");
    code = 0x10000 + ((code - 0xd800) << 10) + (low - 0xdc00);
  }
  to += append_utf8(text_.data() + to, code);
  return {};
}

Status JsonParser::hex4(std::uint32_t& code) {
  code = 0;
  for (int i = 0; i < 4; ++i) {
    const char c = peek();
    const int digit = c >= '0' && c <= '9'   ? c - '0'
                      : c >= 'a' && c <= 'f' ? c - 'a' + 10
                      : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                             : -1;
    if (digit < 0) return fail("expected four hexadecimal digits after \\u");
    code = code * 16 + static_cast<std::uint32_t>(digit);
    ++at_;
  }
  return {};
}

Status JsonParser::number() {
  const std::size_t begin = at_;
  const auto digits = [&] {
    const std::size_t first = at_;
    while (peek() >= '0' && peek() <= '9') ++at_;
    return at_ > first;
  };
  if (at_ == text_.size()) return fail("the text ends where a value should be");
  take('-');
  if (!take('0') && !digits()) return fail_at(begin, "expected a value");
  bool integer = true;
  if (take('.')) {
    integer = false;
    if (!digits()) return fail("expected a digit after the decimal point");
  }
  if (peek() == 'e' || peek() == 'E') {
    integer = false;
    ++at_;
    if (peek() == '+' || peek() == '-') ++at_;
    if (!digits()) return fail("expected a digit in the exponent");
  }
  const char *first = text_.data() + begin, *last = text_.data() + at_;
  Node node{};
  if (integer && std::from_chars(first, last, node.integer).ec == std::errc())
    return add(JsonType::integer, node);
  if (std::from_chars(first, last, node.real).ec == std::errc::result_out_of_range) {
    // Too large and too small read the same here; the C function tells them apart.
    node.real = std::strtod(std::string(first, last).c_str(), nullptr);
    if (std::isinf(node.real)) return fail_at(begin, "a number beyond the range of a double");
  }
  return add(JsonType::real, node);
}

Status JsonParser::word(std::string_view spelling, JsonType type, bool boolean) {
  if (text_.compare(at_, spelling.size(), spelling) != 0) return fail("expected a value");
  at_ += spelling.size();
  Node node{};
  node.boolean = boolean;
  return add(type, node);
}

Status JsonParser::distinct_keys(std::size_t object) const {
  const JsonValue value(nodes_->data() + object, text_.data());
  std::vector<std::string_view> keys;
  keys.reserve(value.size());
  for (const auto& [name, member] : value.members()) keys.push_back(name);
  std::sort(keys.begin(), keys.end(), [](std::string_view a, std::string_view b) {
    return a.size() != b.size() ? a.size() < b.size() : a < b;
  });
  const auto twice = std::adjacent_find(keys.begin(), keys.end());
  if (twice == keys.end()) return {};
  // A key that reached us from a stranger is not repeated in a message; its place is enough.
  return fail_at(static_cast<std::size_t>(std::max(twice[0].data(), twice[1].data()) - text_.data()),
                 "a key for the second time in one object");
}

Result<JsonDocument> JsonDocument::parse(std::string text, const JsonLimits& limits) {
  const std::size_t most = std::min<std::size_t>(limits.max_bytes, std::numeric_limits<std::uint32_t>::max());
  if (text.size() > most) {
    return invalid_argument("JSON of " + std::to_string(text.size()) + " bytes; at most " +
                            std::to_string(most) + " are read");
  }
  JsonDocument document;
  document.text_ = std::make_unique<std::string>(std::move(text));
  // At once, so that a vector that grows does not take up to three times as much on its way.
  document.nodes_.reserve(std::min(most_json_values(*document.text_), limits.max_values));
  JsonParser parser(*document.text_, limits);
  NIBBLE_RETURN_IF_ERROR(parser.run(document.nodes_));
  return document;
}

}  // namespace nibble
