// Reading one JSON value as what a field takes, or saying what it takes.
#pragma once

#include <optional>
#include <string>

#include "base/json.h"
#include "base/json_range.h"
#include "server/api/api_error.h"

namespace nibble::api {

using Refused = std::optional<ApiError>;  // nothing: it was read

Refused read_bool(const std::string& field, JsonValue value, bool& target);
Refused read_text(const std::string& field, JsonValue value, std::string& target);
Refused read_integer(const std::string& field, JsonValue value, std::int64_t least, std::int64_t most,
                     std::int64_t& target);
Refused read_number(const std::string& field, JsonValue value, NumberRange range, double& target);

template <class Integer>
Refused read_integer(const std::string& field, JsonValue value, std::int64_t least, std::int64_t most,
                     Integer& target) {
  std::int64_t number = 0;
  if (Refused refused = read_integer(field, value, least, most, number)) return refused;
  target = static_cast<Integer>(number);
  return {};
}

}  // namespace nibble::api
