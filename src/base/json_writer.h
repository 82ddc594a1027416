// Writing JSON, append-only, onto a string. What comes out is always valid: bytes that are no UTF-8 become
// U+FFFD (one for each maximal ill-formed part), NaN and infinities become null, and a float is written with
// the fewest digits that read back to the same float. A call out of place is a broken invariant.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <type_traits>

namespace nibble {

class JsonWriter {
 public:
  // Appends one value to `out`, which outlives the writer.
  explicit JsonWriter(std::string& out) : out_(out) {}
  JsonWriter(const JsonWriter&) = delete;
  JsonWriter& operator=(const JsonWriter&) = delete;

  JsonWriter& begin_object();
  JsonWriter& end_object();
  JsonWriter& begin_array();
  JsonWriter& end_array();
  JsonWriter& key(std::string_view name);

  JsonWriter& value(std::string_view text);
  // Else a literal would prefer the conversion to bool.
  JsonWriter& value(const char* text) { return value(std::string_view(text)); }
  JsonWriter& value(std::nullptr_t) = delete;  // null()
  JsonWriter& value(bool boolean);
  JsonWriter& value(float number);
  JsonWriter& value(double number);
  template <std::integral T>
  JsonWriter& value(T number) {
    if constexpr (std::is_signed_v<T>) {
      return signed_value(number);
    } else {
      return unsigned_value(number);
    }
  }
  JsonWriter& null();
  // Text that is a JSON value already.
  JsonWriter& raw(std::string_view json);

  template <class T>
  JsonWriter& member(std::string_view name, const T& content) {
    return key(name).value(content);
  }

  // The one value is written and closed.
  bool complete() const { return state_ == State::complete; }

 private:
  enum class State : std::uint8_t { value, first_element, element, first_key, key, member_value, complete };

  JsonWriter& signed_value(std::int64_t number);
  JsonWriter& unsigned_value(std::uint64_t number);
  template <class T>
  JsonWriter& floating(T number);
  JsonWriter& plain(std::string_view text);
  JsonWriter& close(char bracket, State empty, State filled);
  void before_value();
  void after_value();
  void append_string(std::string_view text);

  std::string& out_;
  std::string open_;  // the brackets to close, innermost last
  State state_ = State::value;
};

}  // namespace nibble
