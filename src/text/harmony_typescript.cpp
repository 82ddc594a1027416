// A tool's JSON schema as TypeScript, byte for byte as openai-harmony writes it: the model was trained on
// this text, its oddities included.
#include <algorithm>
#include <charconv>
#include <cmath>

#include "base/json_writer.h"
#include "text/harmony.h"

namespace nibble {
namespace {

std::optional<std::string> text_member(const JsonValue& value, std::string_view name) {
  const auto member = value.find(name);
  if (!member || !member->is_string()) return std::nullopt;
  return std::string(member->as_string());
}

// A double as Rust prints it in JSON: plain digits from 1e-5 to 1e16, an exponent without '+' and zeros
// elsewhere.
std::string json_real(double number) {
  char buffer[40];
  const double magnitude = std::fabs(number);
  const bool plain = magnitude == 0 || (magnitude >= 1e-5 && magnitude < 1e16);
  const auto end = std::to_chars(buffer, buffer + sizeof buffer, number,
                                 plain ? std::chars_format::fixed : std::chars_format::scientific)
                       .ptr;
  std::string digits(buffer, end);
  if (plain) return digits.find('.') == digits.npos ? digits + ".0" : digits;
  const std::size_t exponent = digits.find('e');
  const bool negative = digits[exponent + 1] == '-';
  const std::size_t first = std::min(digits.find_first_not_of("+-0", exponent + 1), digits.size());
  return digits.substr(0, exponent) + (negative ? "e-" : "e") + digits.substr(first);
}

void append_json(std::string& out, const JsonValue& value) {
  switch (value.type()) {
    case JsonType::null: out += "null"; break;
    case JsonType::boolean: out += value.as_bool() ? "true" : "false"; break;
    case JsonType::integer: out += std::to_string(value.as_integer()); break;
    case JsonType::real: out += json_real(value.as_double()); break;
    case JsonType::string: JsonWriter(out).value(value.as_string()); break;
    case JsonType::array: {
      out += '[';
      bool first = true;
      for (const JsonValue element : value.elements()) {
        if (!first) out += ',';
        first = false;
        append_json(out, element);
      }
      out += ']';
      break;
    }
    case JsonType::object: {
      out += '{';
      bool first = true;
      for (const auto& member : value.members()) {
        if (!first) out += ',';
        first = false;
        JsonWriter(out).value(member.first);
        out += ':';
        append_json(out, member.second);
      }
      out += '}';
      break;
    }
  }
}

bool is_enum(const JsonValue& schema) {
  const auto values = schema.find("enum");
  return values && values->is_array() && values->size() > 0;
}

// "default: 5". A text has quotes, except that of an enum where `bare_enum` says so.
std::optional<std::string> default_comment(const JsonValue& schema, bool bare_enum) {
  const auto value = schema.find("default");
  if (!value) return std::nullopt;
  if (value->is_string() && !is_enum(schema)) return "default: \"" + std::string(value->as_string()) + "\"";
  if (value->is_string() && bare_enum) return "default: " + std::string(value->as_string());
  std::string comment = "default: ";
  append_json(comment, *value);
  return comment;
}

// What stands behind a type on its line.
std::string trailing_comment(const std::optional<std::string>& description,
                             const std::optional<std::string>& fallback) {
  if (!description && !fallback) return {};
  return " // " + description.value_or("") + (description && fallback ? " " : "") + fallback.value_or("");
}

// The type, with null where the schema is nullable and does not say so itself.
std::string nullable_type(const JsonValue& schema, const std::string& indent) {
  std::string type = harmony_typescript(schema, indent);
  const auto nullable = schema.find("nullable");
  if (nullable && nullable->is_bool() && nullable->as_bool() && type.find("null") == type.npos)
    type += " | null";
  return type;
}

std::string one_of_type(const JsonValue& variants, const std::string& indent) {
  std::string out;
  for (const JsonValue variant : variants.elements()) {
    out +=
        "\n" + indent + " | " + nullable_type(variant, indent + "   ") +
        trailing_comment(text_member(variant, "description"), default_comment(variant, /*bare_enum=*/false));
  }
  return out;
}

// A property whose type is one of several: each on a line of its own.
std::string one_of_property(const std::string& name, const JsonValue& schema, const JsonValue& variants,
                            bool required, const std::string& indent) {
  std::string out;
  const auto description = text_member(schema, "description");
  // The property's description stands above, unless the first variant says the same.
  const bool above = description && !(variants.size() > 0 && text_member(*variants.elements().begin(),
                                                                         "description") == description);
  if (above) out += indent + "// " + *description + "\n";
  if (const auto fallback = default_comment(schema, /*bare_enum=*/true))
    out += indent + "// " + *fallback + "\n";
  out += indent + name + (required ? "" : "?") + ":\n";
  bool first = true;
  for (const JsonValue variant : variants.elements()) {
    auto comment = text_member(variant, "description");
    if ((first && above) || comment == description) comment.reset();
    out += indent + " | " + nullable_type(variant, indent + "   ") +
           trailing_comment(comment, default_comment(variant, /*bare_enum=*/true)) + "\n";
    first = false;
  }
  return out + indent + ",\n";
}

bool is_required(const JsonValue& schema, std::string_view name) {
  const auto required = schema.find("required");
  if (!required || !required->is_array()) return false;
  for (const JsonValue element : required->elements()) {
    if (element.is_string() && element.as_string() == name) return true;
  }
  return false;
}

std::string property_comments(const JsonValue& schema, const std::string& indent) {
  std::string out;
  if (const auto title = text_member(schema, "title"))
    out += indent + "// " + *title + "\n" + indent + "//\n";
  if (const auto description = text_member(schema, "description"); description && !schema.find("oneOf")) {
    out += indent + "// " + *description + "\n";
  }
  if (const auto examples = schema.find("examples");
      examples && examples->is_array() && examples->size() > 0) {
    out += indent + "// Examples:\n";
    for (const JsonValue example : examples->elements()) {
      if (example.is_string()) out += indent + "// - \"" + std::string(example.as_string()) + "\"\n";
    }
  }
  return out;
}

std::string object_type(const JsonValue& schema, const std::string& indent) {
  std::string out;
  if (const auto description = text_member(schema, "description"))
    out += indent + "// " + *description + "\n";
  out += "{\n";
  const auto properties = schema.find("properties");
  if (properties && properties->is_object()) {
    for (const auto& member : properties->members()) {
      const std::string name(member.first);
      const JsonValue property = member.second;
      const bool required = is_required(schema, name);
      out += property_comments(property, indent);
      if (const auto variants = property.find("oneOf"); variants && variants->is_array()) {
        out += one_of_property(name, property, *variants, required, indent);
        continue;
      }
      out += indent + name + (required ? ": " : "?: ") + nullable_type(property, indent + "    ") + ",";
      if (!property.find("oneOf"))
        out += trailing_comment(std::nullopt, default_comment(property, /*bare_enum=*/true));
      out += '\n';
    }
  }
  return out + indent + "}";
}

std::string string_type(const JsonValue& schema) {
  std::string out;
  if (const auto values = schema.find("enum"); values && values->is_array()) {
    for (const JsonValue value : values->elements()) {
      if (!value.is_string()) continue;
      if (!out.empty()) out += " | ";
      out += "\"" + std::string(value.as_string()) + "\"";
    }
  }
  return out.empty() ? "string" : out;
}

}  // namespace

std::string harmony_typescript(const JsonValue& schema, const std::string& indent) {
  if (const auto variants = schema.find("oneOf"); variants && variants->is_array()) {
    return one_of_type(*variants, indent);
  }
  const auto type = schema.find("type");
  if (type && type->is_array()) {
    std::string out;
    for (const JsonValue each : type->elements()) {
      if (!each.is_string()) continue;
      if (!out.empty()) out += " | ";
      out += each.as_string() == "integer" ? std::string("number") : std::string(each.as_string());
    }
    if (!out.empty()) return out;
  }
  if (!type || !type->is_string()) return "any";
  const std::string_view name = type->as_string();
  if (name == "object") return object_type(schema, indent);
  if (name == "string") return string_type(schema);
  if (name == "number" || name == "integer") return "number";
  if (name == "boolean") return "boolean";
  if (name == "array") {
    const auto items = schema.find("items");
    return items ? harmony_typescript(*items, indent) + "[]" : "Array<any>";
  }
  return "any";
}

}  // namespace nibble
