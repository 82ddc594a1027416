// Reading the members of one JSON object strictly: each reader names the member in its error and says
// what would do.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "base/json.h"
#include "base/status.h"

namespace nibble {

class ConfigFields {
 public:
  // `where` is the object's own name in messages: "rope_scaling"; empty for the whole file.
  explicit ConfigFields(JsonValue object, std::string where = {})
      : object_(object), where_(std::move(where)) {}

  // The member, unless it is absent or null: the two mean the same in these files.
  std::optional<JsonValue> find(std::string_view name) const;

  Result<std::int64_t> integer(std::string_view name, std::int64_t least, std::int64_t most) const;
  Result<double> positive(std::string_view name) const;
  Result<bool> boolean(std::string_view name) const;
  Result<std::string> string(std::string_view name) const;

  // The same with a value for when the member is absent.
  Result<std::int64_t> integer_or(std::string_view name, std::int64_t least, std::int64_t most,
                                  std::int64_t otherwise) const;
  Result<double> positive_or(std::string_view name, double otherwise) const;
  Result<bool> boolean_or(std::string_view name, bool otherwise) const;

  // Refuses a member whose name is not among those given.
  Status only(std::initializer_list<std::string_view> names) const;

  // "<name> must be <what>, not <value>"
  Status must_be(std::string_view name, std::string_view what, const JsonValue& value) const;
  Status missing(std::string_view name) const;

 private:
  Result<JsonValue> required(std::string_view name) const;
  std::string full(std::string_view name) const;

  JsonValue object_;
  std::string where_;
};

// A value as a message shows it: a number, a quoted string, or the name of its type.
std::string shown(const JsonValue& value);

}  // namespace nibble
