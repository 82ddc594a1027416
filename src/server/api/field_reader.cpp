#include "server/api/field_reader.h"

#include <charconv>
#include <cmath>

namespace nibble::api {
namespace {

std::string shown(double number) {
  char text[32];
  return {text, std::to_chars(text, text + sizeof text, number).ptr};
}

}  // namespace

Refused read_bool(const std::string& field, JsonValue value, bool& target) {
  if (!value.is_bool()) return bad_field(field, " must be true or false");
  target = value.as_bool();
  return {};
}

Refused read_text(const std::string& field, JsonValue value, std::string& target) {
  if (!value.is_string()) return bad_field(field, " must be a string");
  target = value.as_string();
  return {};
}

Refused read_integer(const std::string& field, JsonValue value, std::int64_t least, std::int64_t most,
                     std::int64_t& target) {
  constexpr double exact = 9007199254740992.0;  // doubles up to here are whole numbers without gaps
  bool whole = value.is_integer();
  if (whole) {
    target = value.as_integer();
  } else if (value.is_number()) {
    const double number = value.as_double();
    whole = number == std::floor(number) && std::abs(number) <= exact;
    if (whole) target = static_cast<std::int64_t>(number);
  }
  if (whole && target >= least && target <= most) return {};
  if (most == INT64_MAX && least == INT64_MIN) return bad_field(field, " must be a whole number of 64 bits");
  if (most >= INT32_MAX)
    return bad_field(field, " must be a whole number of at least " + std::to_string(least));
  return bad_field(field,
                   " must be a whole number from " + std::to_string(least) + " to " + std::to_string(most));
}

Refused read_number(const std::string& field, JsonValue value, double least, double most, double& target,
                    Bound bound) {
  const double number = value.is_number() ? value.as_double() : std::nan("");
  const bool inside =
      bound == Bound::above ? number > least && number <= most : number >= least && number <= most;
  if (!inside) {
    return bad_field(field, (bound == Bound::above ? " must be a number above " : " must be a number from ") +
                                shown(least) + (bound == Bound::above ? " and up to " : " to ") +
                                shown(most));
  }
  target = number;
  return {};
}

}  // namespace nibble::api
