#include "server/api/sampling_defaults.h"

#include <algorithm>
#include <array>
#include <charconv>

#include "base/file.h"
#include "base/json.h"
#include "base/json_range.h"
#include "core/sampling_fields.h"

namespace nibble::api {
namespace {

constexpr std::size_t most_bytes = 1 << 20;

template <class Range>
Status wrong(std::string_view name, const Range& range) {
  return broken_model("generation_config.json: " + std::string(name) + wanted(range));
}

// Absent and null mean the same in this file.
std::optional<JsonValue> member(const JsonValue& object, std::string_view name) {
  std::optional<JsonValue> value = object.find(name);
  return value && !value->is_null() ? value : std::nullopt;
}

std::string shortest(double number) {
  std::array<char, 32> text;
  return {text.data(), std::to_chars(text.data(), text.data() + text.size(), number).ptr};
}

Status read(const JsonValue& object, const sampling::Number& field, std::optional<double>& to) {
  const std::optional<JsonValue> value = member(object, field.name);
  if (!value) return {};
  to = number_in(field.range, *value);
  return to ? Status() : wrong(field.name, field.range);
}

}  // namespace

void SamplingDefaults::fill(Sampling& asked) const {
  const auto take = [](auto& field, const auto& otherwise) {
    if (!field) field = otherwise;
  };
  take(asked.temperature, temperature);
  take(asked.top_p, top_p);
  take(asked.min_p, min_p);
  take(asked.top_k, top_k);
  take(asked.repetition_penalty, repetition_penalty);
}

std::string SamplingDefaults::text() const {
  std::string text;
  const auto add = [&](std::string_view name, const auto& value) {
    if (value) text += (text.empty() ? "" : ", ") + std::string(name) + " " + shortest(*value);
  };
  add(sampling::temperature.name, temperature);
  add(sampling::top_p.name, top_p);
  add(sampling::top_k.name, top_k);
  add(sampling::min_p.name, min_p);
  add(sampling::repetition_penalty.name, repetition_penalty);
  return text;
}

Result<SamplingDefaults> read_sampling_defaults(const std::filesystem::path& folder) {
  Result<std::string> file = read_file(folder / "generation_config.json", most_bytes);
  if (file.status().code() == StatusCode::not_found) return SamplingDefaults{};
  if (!file.ok()) return file.status();
  Result<JsonDocument> document = JsonDocument::parse(std::move(file).value());
  if (!document.ok()) return document.status().with_context("generation_config.json");
  const JsonValue object = document->root();
  if (!object.is_object()) return broken_model("generation_config.json is no object");
  SamplingDefaults defaults;
  NIBBLE_RETURN_IF_ERROR(read(object, sampling::temperature, defaults.temperature));
  NIBBLE_RETURN_IF_ERROR(read(object, sampling::top_p, defaults.top_p));
  NIBBLE_RETURN_IF_ERROR(read(object, sampling::min_p, defaults.min_p));
  NIBBLE_RETURN_IF_ERROR(read(object, sampling::repetition_penalty, defaults.repetition_penalty));
  if (const std::optional<JsonValue> value = member(object, sampling::top_k.name)) {
    constexpr IntegerRange range{sampling::top_k.range.least, INT32_MAX};
    const std::optional<std::int64_t> count = integer_in(range, *value);
    if (!count) return wrong(sampling::top_k.name, range);
    defaults.top_k = static_cast<int>(std::max<std::int64_t>(*count, 0));
  }
  return defaults;
}

}  // namespace nibble::api
