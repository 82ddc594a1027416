#include "plan/tuning_table.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdio>
#include <optional>
#include <tuple>

#include "base/file.h"
#include "base/json.h"
#include "base/json_writer.h"
#include "base/quote.h"
#include "ops/linear/weight_lines.h"

namespace nibble {
namespace {

constexpr std::string_view format = "nibble tuning table 1";
constexpr std::size_t most_bytes = std::size_t{1} << 20;
constexpr std::array<std::string_view, 6> many_tokens = {"1", "2", "3", "4", "6", "8"};
constexpr std::array<TunedField, 2> fields = {
    TunedField{.name = "weight_lines", .values = weight_lines_names},
    TunedField{.name = "many_tokens_from", .values = many_tokens}};

std::string listed(std::span<const std::string_view> names) {
  std::string list;
  for (const std::string_view each : names) list += (list.empty() ? "" : ", ") + std::string(each);
  return list;
}

Status check_known(const TuningEntry& entry) {
  const auto* const known = std::ranges::find(fields, std::string_view(entry.field), &TunedField::name);
  if (known == fields.end()) {
    std::vector<std::string_view> names;
    for (const TunedField& each : fields) names.push_back(each.name);
    return invalid_argument("it has an entry of " + quote(entry.field) +
                            ", which no table can choose; those it can are " + listed(names));
  }
  if (std::ranges::count(known->values, std::string_view(entry.value)) == 0)
    return invalid_argument("its " + entry.field + " is " + quote(entry.value) + "; it can be " +
                            listed(known->values));
  return {};
}

Result<std::string> text_of(JsonValue object, std::string_view name) {
  const std::optional<JsonValue> value = object.find(name);
  if (!value || !value->is_string())
    return invalid_argument("it has no text " + quote(name) + "; is it a table of nibble tune?");
  return std::string(value->as_string());
}

Result<TuningEntry> entry_of(JsonValue object) {
  if (!object.is_object()) return invalid_argument("its entries are not objects");
  TuningEntry entry;
  NIBBLE_ASSIGN(entry.model, text_of(object, "model"));
  NIBBLE_ASSIGN(entry.field, text_of(object, "field"));
  NIBBLE_ASSIGN(entry.value, text_of(object, "value"));
  NIBBLE_RETURN_IF_ERROR(check_known(entry));
  const std::optional<JsonValue> measured = object.find("tokens_per_s");
  if (!measured || !measured->is_object())
    return invalid_argument("its entry of " + entry.field + " has no object \"tokens_per_s\"");
  for (const auto& [name, rate] : measured->members()) {
    if (!rate.is_number()) return invalid_argument("a rate of its " + entry.field + " is no number");
    entry.measured.emplace_back(name, rate.as_double());
  }
  return entry;
}

void write_entry(const TuningEntry& entry, JsonWriter& json) {
  json.begin_object();
  json.member("model", entry.model).member("field", entry.field).member("value", entry.value);
  json.key("tokens_per_s").begin_object();
  for (const auto& [name, rate] : entry.measured) json.member(name, rate);
  json.end_object().end_object();
}

std::string quoted_json(const std::string& value) {
  std::string text;
  JsonWriter(text).value(value);
  return text;
}

auto key_of(const TuningEntry& entry) { return std::tie(entry.model, entry.field); }

}  // namespace

std::span<const TunedField> tuned_fields() { return fields; }

const TuningEntry* TuningTable::find(std::string_view model, std::string_view field) const {
  for (const TuningEntry& each : entries)
    if (each.model == model && each.field == field) return &each;
  return nullptr;
}

void TuningTable::put(TuningEntry entry) {
  std::erase_if(entries, [&](const TuningEntry& each) { return key_of(each) == key_of(entry); });
  entries.push_back(std::move(entry));
  std::ranges::sort(entries,
                    [](const TuningEntry& a, const TuningEntry& b) { return key_of(a) < key_of(b); });
}

std::string TuningTable::json() const {
  std::string text = "{\"format\": " + quoted_json(std::string(format)) +
                     ",\n \"machine\": " + quoted_json(machine) + ",\n \"made\": " + quoted_json(made) +
                     ",\n \"entries\": [";
  for (std::size_t i = 0; i < entries.size(); ++i) {
    text += i == 0 ? "\n  " : ",\n  ";
    std::string entry;
    JsonWriter json(entry);
    write_entry(entries[i], json);
    text += entry;
  }
  return text + "]}\n";
}

Result<TuningTable> TuningTable::parse(std::string text) {
  NIBBLE_ASSIGN(
      const JsonDocument document,
      JsonDocument::parse(std::move(text), {.max_bytes = most_bytes, .max_depth = 8, .max_values = 1 << 16}));
  const JsonValue root = document.root();
  if (!root.is_object()) return invalid_argument("it is no JSON object; is it a table of nibble tune?");
  NIBBLE_ASSIGN(const std::string found, text_of(root, "format"));
  if (found != format)
    return invalid_argument("it is a " + quote(found) + ", and this nibble reads a " +
                            quote(std::string(format)) + "; make it anew with nibble tune");
  TuningTable table;
  NIBBLE_ASSIGN(table.machine, text_of(root, "machine"));
  NIBBLE_ASSIGN(table.made, text_of(root, "made"));
  const std::optional<JsonValue> entries = root.find("entries");
  if (!entries || !entries->is_array()) return invalid_argument("it has no list \"entries\"");
  for (const JsonValue each : entries->elements()) {
    NIBBLE_ASSIGN(TuningEntry entry, entry_of(each));
    if (table.find(entry.model, entry.field) != nullptr)
      return invalid_argument("it has two entries of " + entry.field + " for one model");
    table.put(std::move(entry));
  }
  return table;
}

Result<TuningTable> TuningTable::read(const std::string& file) {
  Result<std::string> text = read_file(file, most_bytes);
  if (!text.ok()) return text.status();
  Result<TuningTable> table = parse(*std::move(text));
  if (!table.ok()) return invalid_argument(table.status().message()).with_context(file);
  return table;
}

std::string TuningTable::digest() const {
  std::uint64_t hash = 14695981039346656037ull;  // FNV-1a
  const auto add = [&](std::string_view text) {
    for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 1099511628211ull;
    hash = (hash ^ 0xff) * 1099511628211ull;  // no text has that byte, so this ends one
  };
  add(machine);
  for (const TuningEntry& each : entries)
    for (const std::string& text : {each.model, each.field, each.value}) add(text);
  char digits[17];
  std::snprintf(digits, sizeof digits, "%016llx", static_cast<unsigned long long>(hash));
  return digits;
}

}  // namespace nibble
