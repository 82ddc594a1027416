// The functions that a request offers, as much of them as reading their calls needs.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"

namespace nibble {

// What a parameter's schema takes where a template writes its value as bare text.
enum class ParameterKind { text, text_or_null, json };

class OfferedTools {
 public:
  // Of the API's array of {"type":"function","function":{...}}; what has no name there is left out.
  static OfferedTools of(JsonValue tools);

  // The others are offered no more.
  void keep(std::span<const std::string> names);
  bool has(std::string_view function) const { return find(function) != nullptr; }
  // That it holds.
  std::size_t bytes() const;
  // A parameter that no schema names is text.
  ParameterKind kind(std::string_view function, std::string_view parameter) const;

 private:
  struct Parameter {
    std::string name;
    ParameterKind kind = ParameterKind::text;
  };
  struct Function {
    std::string name;
    std::vector<Parameter> parameters;
  };
  const Function* find(std::string_view name) const;

  std::vector<Function> functions_;
};

}  // namespace nibble
