// Reading JSON: a strict RFC 8259 parser into a compact document. Files and request bodies come from
// strangers, so depth, size and the number of values are bounded before anything is built, and what
// parsers disagree about is refused: duplicate keys, a byte order mark, lone surrogate escapes, NaN,
// numbers beyond a double, invalid UTF-8, anything after the value.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/status.h"

namespace nibble {

struct JsonLimits {
  std::size_t max_bytes = std::size_t{64} << 20;
  int max_depth = 64;
  // A value or key takes 16 bytes of memory.
  std::size_t max_values = std::size_t{8} << 20;
};

enum class JsonType : std::uint8_t { null, boolean, integer, real, string, array, object };
std::string_view json_type_name(JsonType type);

class JsonDocument;
class JsonParser;

// A view of one value; valid while its JsonDocument lives (moving the document keeps views valid).
class JsonValue {
 public:
  JsonType type() const;
  bool is_null() const { return type() == JsonType::null; }
  bool is_bool() const { return type() == JsonType::boolean; }
  // An integer is a number written without fraction and exponent that fits std::int64_t.
  bool is_integer() const { return type() == JsonType::integer; }
  bool is_number() const { return type() == JsonType::integer || type() == JsonType::real; }
  bool is_string() const { return type() == JsonType::string; }
  bool is_array() const { return type() == JsonType::array; }
  bool is_object() const { return type() == JsonType::object; }

  // The caller has looked at type(): a mismatch is a broken invariant.
  bool as_bool() const;
  std::int64_t as_integer() const;
  double as_double() const;  // of an integer or a real
  std::string_view as_string() const;

  // Elements of an array or members of an object; 0 for a scalar.
  std::size_t size() const;
  // The member of this name; nothing if absent or if this is no object. Linear in the number of members.
  std::optional<JsonValue> find(std::string_view key) const;

  class ElementIterator;
  class MemberIterator;
  template <class Iterator>
  struct Range {
    Iterator first, last;
    Iterator begin() const { return first; }
    Iterator end() const { return last; }
  };
  Range<ElementIterator> elements() const;  // of an array
  Range<MemberIterator> members() const;    // of an object: pairs of string_view and JsonValue

 private:
  friend class JsonDocument;
  // One value or key, in document order; a container is followed by its contents. 16 bytes.
  struct Node {
    union {
      std::int64_t integer;
      double real;
      std::uint64_t offset;  // a string's first byte in the text
      std::uint64_t span;    // nodes of a container, itself included
    };
    std::uint32_t size;  // bytes of a string; elements or members of a container
    JsonType type;
    bool boolean;
  };
  static_assert(sizeof(std::int64_t) == 8);

  JsonValue(const Node* node, const char* text) : node_(node), text_(text) {}
  const Node* after() const;

  const Node* node_ = nullptr;
  const char* text_ = nullptr;
  friend class JsonParser;
};

class JsonValue::ElementIterator {
 public:
  ElementIterator(const Node* node, const char* text) : at_(node, text) {}
  JsonValue operator*() const { return at_; }
  ElementIterator& operator++() {
    at_.node_ = at_.after();
    return *this;
  }
  bool operator==(const ElementIterator& other) const { return at_.node_ == other.at_.node_; }

 private:
  JsonValue at_;
};

class JsonValue::MemberIterator {
 public:
  MemberIterator(const Node* node, const char* text) : key_(node, text) {}
  std::pair<std::string_view, JsonValue> operator*() const { return {key_.as_string(), value()}; }
  MemberIterator& operator++() {
    key_.node_ = value().after();
    return *this;
  }
  bool operator==(const MemberIterator& other) const { return key_.node_ == other.key_.node_; }

 private:
  JsonValue value() const { return {key_.node_ + 1, key_.text_}; }
  JsonValue key_;
};

inline JsonValue::Range<JsonValue::ElementIterator> JsonValue::elements() const {
  NIBBLE_CHECK(is_array());
  return {{node_ + 1, text_}, {after(), text_}};
}
inline JsonValue::Range<JsonValue::MemberIterator> JsonValue::members() const {
  NIBBLE_CHECK(is_object());
  return {{node_ + 1, text_}, {after(), text_}};
}

class JsonDocument {
 public:
  // Errors say what is wrong and at which byte: "invalid JSON at byte 17: expected ':' after a key".
  static Result<JsonDocument> parse(std::string text, const JsonLimits& limits = {});
  JsonValue root() const { return {nodes_.data(), text_->data()}; }

 private:
  friend class JsonParser;
  std::unique_ptr<std::string> text_;  // strings are unescaped in place; on the heap so that it never moves
  std::vector<JsonValue::Node> nodes_;
};

}  // namespace nibble
