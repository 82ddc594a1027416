// What fields are made of that are refused, or taken without effect.
#pragma once

#include <string>
#include <string_view>

#include "server/api/field_rules.h"

namespace nibble::api {

inline constexpr FieldType any_text = {.kind = FieldType::Kind::text};
inline constexpr FieldType any_boolean = {.kind = FieldType::Kind::boolean};
inline constexpr FieldType any_number = {.kind = FieldType::Kind::number, .low = -1e308, .high = 1e308};
inline constexpr FieldType any_object = other(R"({"type":"object"})");
inline constexpr FieldType any_list = other(R"({"type":"array"})");

inline Refused no_effect(Reading&, const std::string&, const FieldValue&) { return {}; }

inline Refused no_effect_object(Reading&, const std::string& field, const FieldValue& value) {
  if (value.json.is_object()) return {};
  return bad_field(field, " must be an object");
}

inline Refused no_effect_list(Reading&, const std::string& field, const FieldValue& value) {
  if (value.json.is_array()) return {};
  return bad_field(field, " must be an array");
}

inline bool asks_for_nothing(JsonValue json) {
  return ((json.is_array() || json.is_object()) && json.size() == 0) ||
         (json.is_string() && json.as_string().empty()) || (json.is_bool() && !json.as_bool());
}

inline Refused not_served(Reading&, const std::string& field, const FieldValue& value) {
  if (asks_for_nothing(value.json)) return {};
  return bad_field(field, " is not served; leave it out");
}

inline constexpr FieldType nothing = other(R"({"enum":[null,[],{},"",false]})");
inline constexpr FieldType never = other(R"({"type":"null"})");
inline constexpr std::string_view not_served_about = "Not served: refused unless it is empty.";
inline constexpr std::string_view no_effect_about = "Accepted without effect.";

}  // namespace nibble::api
