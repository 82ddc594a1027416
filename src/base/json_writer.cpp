#include "base/json_writer.h"

#include <charconv>
#include <cmath>

#include "base/check.h"
#include "base/utf8.h"

namespace nibble {

void JsonWriter::before_value() {
  NIBBLE_CHECK(state_ == State::value || state_ == State::first_element || state_ == State::element ||
                   state_ == State::member_value,
               "a value needs a key before it in an object, and there is one value in all");
  if (state_ == State::element) out_ += ',';
}

void JsonWriter::after_value() {
  state_ = open_.empty() ? State::complete : open_.back() == ']' ? State::element : State::key;
}

JsonWriter& JsonWriter::plain(std::string_view text) {
  before_value();
  out_ += text;
  after_value();
  return *this;
}

JsonWriter& JsonWriter::begin_object() {
  before_value();
  out_ += '{';
  open_ += '}';
  state_ = State::first_key;
  return *this;
}

JsonWriter& JsonWriter::begin_array() {
  before_value();
  out_ += '[';
  open_ += ']';
  state_ = State::first_element;
  return *this;
}

JsonWriter& JsonWriter::close(char bracket, State empty, State filled) {
  NIBBLE_CHECK(state_ == empty || state_ == filled, "only what is open and without a lone key can be closed");
  out_ += bracket;
  open_.pop_back();
  after_value();
  return *this;
}

JsonWriter& JsonWriter::end_object() { return close('}', State::first_key, State::key); }
JsonWriter& JsonWriter::end_array() { return close(']', State::first_element, State::element); }

JsonWriter& JsonWriter::key(std::string_view name) {
  NIBBLE_CHECK(state_ == State::first_key || state_ == State::key, "a key belongs into an object");
  if (state_ == State::key) out_ += ',';
  append_string(name);
  out_ += ':';
  state_ = State::member_value;
  return *this;
}

JsonWriter& JsonWriter::value(std::string_view text) {
  before_value();
  append_string(text);
  after_value();
  return *this;
}

JsonWriter& JsonWriter::value(bool boolean) { return plain(boolean ? "true" : "false"); }
JsonWriter& JsonWriter::null() { return plain("null"); }

JsonWriter& JsonWriter::raw(std::string_view json) {
  NIBBLE_CHECK(!json.empty());
  return plain(json);
}

JsonWriter& JsonWriter::signed_value(std::int64_t number) {
  char digits[24];
  return plain({digits, std::to_chars(digits, digits + sizeof digits, number).ptr});
}

JsonWriter& JsonWriter::unsigned_value(std::uint64_t number) {
  char digits[24];
  return plain({digits, std::to_chars(digits, digits + sizeof digits, number).ptr});
}

template <class T>
JsonWriter& JsonWriter::floating(T number) {
  if (!std::isfinite(number)) return null();
  char digits[40];
  char* end = std::to_chars(digits, digits + sizeof digits - 2, number).ptr;
  // Readers give 1 and -0 back as integers, of another type and without the sign of the zero.
  if (std::string_view(digits, end).find_first_of(".e") == std::string_view::npos) {
    *end++ = '.';
    *end++ = '0';
  }
  return plain({digits, end});
}

JsonWriter& JsonWriter::value(float number) { return floating(number); }
JsonWriter& JsonWriter::value(double number) { return floating(number); }

void JsonWriter::append_string(std::string_view text) {
  constexpr std::string_view hex = "0123456789abcdef";
  if (!is_valid_utf8(text)) return append_string(to_valid_utf8(text));
  out_ += '"';
  std::size_t copied = 0;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (static_cast<unsigned char>(c) >= 0x20 && c != '"' && c != '\\') continue;
    out_.append(text, copied, i - copied);
    copied = i + 1;
    out_ += '\\';
    switch (c) {
      case '"':
      case '\\': out_ += c; break;
      case '\b': out_ += 'b'; break;
      case '\f': out_ += 'f'; break;
      case '\n': out_ += 'n'; break;
      case '\r': out_ += 'r'; break;
      case '\t': out_ += 't'; break;
      default: out_ += {'u', '0', '0', hex[static_cast<unsigned char>(c) >> 4], hex[c & 0xf]};
    }
  }
  out_.append(text, copied);
  out_ += '"';
}

}  // namespace nibble
