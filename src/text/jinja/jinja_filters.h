// The filters and tests that a template may name (docs/internals/text.md lists them).
#pragma once

#include <array>
#include <optional>
#include <string_view>

#include "text/jinja/jinja_interpreter.h"

namespace nibble::jinja {

struct Filter {
  std::string_view name;
  Result<Value> (*apply)(Interpreter&, const Value& input, const Arguments&);
};
struct Test {
  std::string_view name;
  Result<bool> (*apply)(Interpreter&, const Value& input, const Arguments&);
};

// Null if there is none of this name.
const Filter* find_filter(std::string_view name);
const Test* find_test(std::string_view name);

// Arguments by the names that a function gives them, in order: f(a, b=1).
class Bound {
 public:
  static Result<Bound> bind(std::string_view function, const Arguments& arguments,
                            std::initializer_list<std::string_view> names);
  const Value* operator[](std::size_t i) const { return values_[i]; }  // null: not given
  // Defaults where nothing (or, for numbers and text, None) was given; a fault where the type is wrong.
  Result<std::int64_t> integer(std::size_t i, std::int64_t fallback) const;
  bool truthy(std::size_t i, bool fallback) const;
  Result<const Text*> text(std::size_t i) const;  // null: not given
  Result<const Text*> required_text(std::size_t i) const;
  Result<const Value*> required(std::size_t i) const;

 private:
  std::string_view function_;
  std::vector<std::string_view> names_;
  std::vector<const Value*> values_;
};

// One word with a capital letter in front, each word so (str.title), all letters in one case. Trust stays
// where the letters keep their length.
enum class Case { upper, lower, capitalize, title_method, title_filter };
Text change_case(const Text& text, Case how);
Text replace_all(const Text& text, std::string_view from, const Text& to, std::int64_t count);
// Lines without their ends, as str.splitlines.
std::vector<Text> split_lines(const Text& text);

}  // namespace nibble::jinja
