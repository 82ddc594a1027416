#include "text/offered_tools.h"

#include <algorithm>

namespace nibble {
namespace {

struct Types {
  bool text = false, null = false, other = false;

  void add(std::string_view name) { (name == "string" ? text : name == "null" ? null : other) = true; }
};

// Of a schema's `type`, and of its alternatives, which are not looked into any deeper.
void collect(JsonValue schema, Types& types, bool alternatives) {
  if (!schema.is_object()) return;
  if (const auto type = schema.find("type")) {
    if (type->is_string()) types.add(type->as_string());
    if (type->is_array()) {
      for (const JsonValue name : type->elements()) {
        if (name.is_string()) types.add(name.as_string());
      }
    }
  } else if (const auto values = schema.find("enum"); values && values->is_array()) {
    for (const JsonValue value : values->elements())
      types.add(value.is_string() ? "string" : value.is_null() ? "null" : "other");
  }
  if (!alternatives) return;
  for (const std::string_view keyword : {"anyOf", "oneOf"}) {
    const auto list = schema.find(keyword);
    if (!list || !list->is_array()) continue;
    for (const JsonValue one : list->elements()) collect(one, types, /*alternatives=*/false);
  }
}

ParameterKind kind_of(JsonValue schema) {
  Types types;
  collect(schema, types, /*alternatives=*/true);
  if (!types.text || types.other) return ParameterKind::json;
  return types.null ? ParameterKind::text_or_null : ParameterKind::text;
}

}  // namespace

OfferedTools OfferedTools::of(JsonValue tools) {
  OfferedTools offered;
  if (!tools.is_array()) return offered;
  for (const JsonValue tool : tools.elements()) {
    const auto function = tool.is_object() ? tool.find("function") : std::nullopt;
    const auto name = function && function->is_object() ? function->find("name") : std::nullopt;
    if (!name || !name->is_string()) continue;
    Function& made = offered.functions_.emplace_back();
    made.name = name->as_string();
    const auto schema = function->find("parameters");
    const auto properties = schema && schema->is_object() ? schema->find("properties") : std::nullopt;
    if (!properties || !properties->is_object()) continue;
    for (const auto& [parameter, type] : properties->members())
      made.parameters.push_back({std::string(parameter), kind_of(type)});
  }
  return offered;
}

void OfferedTools::keep(std::span<const std::string> names) {
  std::erase_if(functions_, [&](const Function& function) {
    return std::find(names.begin(), names.end(), function.name) == names.end();
  });
}

std::size_t OfferedTools::bytes() const {
  std::size_t sum = 0;
  for (const Function& function : functions_) {
    sum += sizeof(Function) + function.name.size();
    for (const Parameter& parameter : function.parameters) sum += sizeof(Parameter) + parameter.name.size();
  }
  return sum;
}

const OfferedTools::Function* OfferedTools::find(std::string_view name) const {
  for (const Function& function : functions_) {
    if (function.name == name) return &function;
  }
  return nullptr;
}

ParameterKind OfferedTools::kind(std::string_view function, std::string_view parameter) const {
  const Function* found = find(function);
  if (found == nullptr) return ParameterKind::text;
  for (const Parameter& known : found->parameters) {
    if (known.name == parameter) return known.kind;
  }
  return ParameterKind::text;
}

}  // namespace nibble
