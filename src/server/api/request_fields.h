// The fields of a request's body, each in one row: its name, what it takes, what it is for and where its
// value goes. The parser and the served OpenAPI description are made of the same rows.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "base/json_writer.h"
#include "server/api/field_reader.h"
#include "server/api/generation_request.h"

namespace nibble::api {

// What a field's reader may look at beside its value.
struct Reading {
  GenerationRequest& request;
  TokenId vocabulary = 0;
  bool wants_logprobs = false;  // chat's switch
  std::optional<int> top_logprobs;
  std::optional<int> max_completion_tokens, best_of;
};

// Of numbers: the range. Of the rest: what only code can check, with the schema that says it to others.
struct FieldType {
  enum class Kind : std::uint8_t { boolean, integer, number, text, other };
  Kind kind = Kind::other;
  std::int64_t least = 0, most = 0;  // of an integer
  double low = 0, high = 0;          // of a number
  Bound bound = Bound::inclusive;
  std::size_t least_characters = 0, most_characters = 0;  // of a text; most 0: any
  std::string_view schema = {};                           // of the other kind: JSON
};

// What was read of a value of one of the plain kinds; `json` is the value itself.
struct FieldValue {
  JsonValue json;
  bool boolean = false;
  std::int64_t integer = 0;
  double number = 0;
  std::string_view text = {};
};

// Which endpoints have the field; `both`: chat and completions.
enum class Where : std::uint8_t { both, chat, completions, responses, messages };

struct FieldRule {
  std::string_view name;
  Where where;
  FieldType type;
  std::string_view about;
  Refused (*take)(Reading& reading, const std::string& field, const FieldValue& value);
};

// Of stop strings: one, or an array of them.
Refused take_stop(Reading& reading, const std::string& field, const FieldValue& value);

// The rows of chat's and completions' fields that say what an answer looks like (format_fields.cpp).
std::span<const FieldRule> format_fields();
// The rows of theirs that are refused or have no effect (unserved_fields.cpp).
std::span<const FieldRule> unserved_fields();

// Nothing: no row has the name.
const FieldRule* find_field(Endpoint endpoint, std::string_view name);

// Checks the value against the rule's type and hands it over.
Refused read_field(const FieldRule& rule, Reading& reading, JsonValue value);

// The JSON schema of a request's body. Null is as if the field were absent, so all but the prompt may be it.
// What is only counted need not say how long its answer may be.
enum class RequestUse : bool { answer, count };
void write_request_schema(Endpoint endpoint, JsonWriter& json, RequestUse use = RequestUse::answer);

}  // namespace nibble::api
