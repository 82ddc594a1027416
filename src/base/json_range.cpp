#include "base/json_range.h"

#include <charconv>
#include <cmath>

namespace nibble {
namespace {

std::string shown(double number) {
  char text[32];
  return {text, std::to_chars(text, text + sizeof text, number).ptr};
}

}  // namespace

std::optional<std::int64_t> integer_in(IntegerRange range, JsonValue value) {
  // Doubles up to 2^53 are whole numbers without gaps. Of a count, what is beyond the room that there is
  // means all of it, so gaps do not matter.
  const bool count = range.most == INT64_MAX && range.least > INT64_MIN;
  const double largest = count ? 9223372036854774784.0 : 9007199254740992.0;
  std::int64_t number = 0;
  if (value.is_integer()) {
    number = value.as_integer();
  } else {
    const double given = value.is_number() ? value.as_double() : std::nan("");
    if (given != std::floor(given) || !(std::abs(given) <= largest)) return {};
    number = static_cast<std::int64_t>(given);
  }
  if (number < range.least || number > range.most) return {};
  return number;
}

bool contains(NumberRange range, double number) {
  const bool above = range.bound == Bound::above ? number > range.low : number >= range.low;
  return above && number <= range.high;
}

std::optional<double> number_in(NumberRange range, JsonValue value) {
  if (!value.is_number() || !contains(range, value.as_double())) return {};
  return value.as_double();
}

std::string wanted(IntegerRange range) {
  if (range.most == INT64_MAX && range.least == INT64_MIN) return " must be a whole number of 64 bits";
  if (range.most >= INT32_MAX) return " must be a whole number of at least " + std::to_string(range.least);
  return " must be a whole number from " + std::to_string(range.least) + " to " + std::to_string(range.most);
}

std::string wanted(NumberRange range) {
  const bool above = range.bound == Bound::above;
  return (above ? " must be a number above " : " must be a number from ") + shown(range.low) +
         (above ? " and up to " : " to ") + shown(range.high);
}

}  // namespace nibble
