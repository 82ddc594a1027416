// What tables of fields are made of: types of values, and readers that put a plain value where it belongs.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>

#include "core/sampling_fields.h"
#include "server/api/request_fields.h"

namespace nibble::api {

constexpr FieldType boolean() { return {.kind = FieldType::Kind::boolean}; }
constexpr FieldType integer(std::int64_t least, std::int64_t most) {
  return {.kind = FieldType::Kind::integer, .least = least, .most = most};
}
constexpr FieldType number(double low, double high, Bound bound = Bound::inclusive) {
  return {.kind = FieldType::Kind::number, .low = low, .high = high, .bound = bound};
}
constexpr FieldType text(std::size_t least_characters, std::size_t most_characters) {
  return {.kind = FieldType::Kind::text,
          .least_characters = least_characters,
          .most_characters = most_characters};
}
constexpr FieldType other(std::string_view schema) {
  return {.kind = FieldType::Kind::other, .schema = schema};
}

// Of a field that every way to ask for tokens knows.
constexpr FieldType type_of(const sampling::Integer& field) {
  return integer(field.range.least, field.range.most);
}
constexpr FieldType type_of(const sampling::Number& field) {
  return number(field.range.low, field.range.high, field.range.bound);
}

// A plain value goes where it belongs; what is beyond an int says the same as the largest one.
inline void store(const FieldValue& value, bool& target) { target = value.boolean; }
inline void store(const FieldValue& value, double& target) { target = value.number; }
inline void store(const FieldValue& value, std::optional<double>& target) { target = value.number; }
inline void store(const FieldValue& value, std::optional<std::int64_t>& target) { target = value.integer; }
inline void store(const FieldValue& value, int& target) {
  target = static_cast<int>(std::clamp<std::int64_t>(value.integer, 0, INT32_MAX));
}
inline void store(const FieldValue& value, std::optional<int>& target) { store(value, target.emplace()); }
inline void store(const FieldValue& value, std::string& target) { target = value.text; }

template <class Target>
Target& place(Reading& reading, Target GenerationRequest::*member) {
  return reading.request.*member;
}
template <class Target>
Target& place(Reading& reading, Target Sampling::*member) {
  return reading.request.sampling.*member;
}
template <class Target>
Target& place(Reading& reading, Target TextTokens::*member) {
  return reading.request.text_tokens.*member;
}
template <class Target>
Target& place(Reading& reading, Target Reading::*member) {
  return reading.*member;
}
template <auto member>
Refused keep(Reading& reading, const std::string&, const FieldValue& value) {
  store(value, place(reading, member));
  return {};
}

// A row of a field that every way to ask for tokens knows.
template <auto member, class Field>
constexpr FieldRule shared(const Field& field, Where where = Where::both) {
  return {field.name, where, type_of(field), field.about, keep<member>};
}

}  // namespace nibble::api
