#include "checkpoint/config_fields.h"

#include <algorithm>
#include <cstdio>

#include "base/quote.h"

namespace nibble {

std::string shown(const JsonValue& value) {
  switch (value.type()) {
    case JsonType::integer: return std::to_string(value.as_integer());
    case JsonType::real: {
      char text[40];
      std::snprintf(text, sizeof text, "%.17g", value.as_double());
      return text;
    }
    case JsonType::string: return quote(value.as_string());
    case JsonType::boolean: return value.as_bool() ? "true" : "false";
    case JsonType::null: return "null";
    case JsonType::array: return "an array";
    case JsonType::object: return "an object";
  }
  return {};
}

std::string ConfigFields::full(std::string_view name) const {
  return where_.empty() ? std::string(name) : where_ + "." + std::string(name);
}

Status ConfigFields::missing(std::string_view name) const { return broken_model(full(name) + " is missing"); }

Status ConfigFields::must_be(std::string_view name, std::string_view what, const JsonValue& value) const {
  return broken_model(full(name) + " must be " + std::string(what) + ", not " + shown(value));
}

std::optional<JsonValue> ConfigFields::find(std::string_view name) const {
  std::optional<JsonValue> value = object_.find(name);
  if (value && value->is_null()) value.reset();
  return value;
}

Result<JsonValue> ConfigFields::required(std::string_view name) const {
  const std::optional<JsonValue> value = find(name);
  if (!value) return missing(name);
  return *value;
}

Result<std::int64_t> ConfigFields::integer(std::string_view name, std::int64_t least,
                                           std::int64_t most) const {
  NIBBLE_ASSIGN(const JsonValue value, required(name));
  if (!value.is_integer() || value.as_integer() < least || value.as_integer() > most) {
    return must_be(name, "a whole number from " + std::to_string(least) + " to " + std::to_string(most),
                   value);
  }
  return value.as_integer();
}

Result<double> ConfigFields::positive(std::string_view name) const {
  NIBBLE_ASSIGN(const JsonValue value, required(name));
  if (!value.is_number() || !(value.as_double() > 0)) return must_be(name, "a number above 0", value);
  return value.as_double();
}

Result<bool> ConfigFields::boolean(std::string_view name) const {
  NIBBLE_ASSIGN(const JsonValue value, required(name));
  if (!value.is_bool()) return must_be(name, "true or false", value);
  return value.as_bool();
}

Result<std::string> ConfigFields::string(std::string_view name) const {
  NIBBLE_ASSIGN(const JsonValue value, required(name));
  if (!value.is_string()) return must_be(name, "a string", value);
  return std::string(value.as_string());
}

Result<std::int64_t> ConfigFields::integer_or(std::string_view name, std::int64_t least, std::int64_t most,
                                              std::int64_t otherwise) const {
  return find(name) ? integer(name, least, most) : Result<std::int64_t>(otherwise);
}

Result<double> ConfigFields::positive_or(std::string_view name, double otherwise) const {
  return find(name) ? positive(name) : Result<double>(otherwise);
}

Result<bool> ConfigFields::boolean_or(std::string_view name, bool otherwise) const {
  return find(name) ? boolean(name) : Result<bool>(otherwise);
}

Status ConfigFields::only(std::initializer_list<std::string_view> names) const {
  for (const auto& [name, value] : object_.members()) {
    if (std::find(names.begin(), names.end(), name) != names.end()) continue;
    std::string known;
    for (const std::string_view each : names) known += (known.empty() ? "" : ", ") + std::string(each);
    return broken_model(where_ + " has the unknown member " + quote(name) + "; known are " + known);
  }
  return {};
}

}  // namespace nibble
