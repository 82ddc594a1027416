#include "server/api/field_reader.h"

namespace nibble::api {
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
  const IntegerRange range{least, most};
  const std::optional<std::int64_t> number = integer_in(range, value);
  if (!number) return bad_field(field, wanted(range));
  target = *number;
  return {};
}

Refused read_number(const std::string& field, JsonValue value, NumberRange range, double& target) {
  const std::optional<double> number = number_in(range, value);
  if (!number) return bad_field(field, wanted(range));
  target = *number;
  return {};
}

}  // namespace nibble::api
