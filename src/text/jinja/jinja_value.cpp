#include "text/jinja/jinja_value.h"

#include <algorithm>
#include <charconv>
#include <cmath>

namespace nibble::jinja {

Value Value::undefined(std::string what) {
  return Value(Data(Undefined{std::make_shared<const std::string>(std::move(what))}));
}

namespace {

Status check_extent(const Extent& extent) {
  if (extent.nesting > kMaxNesting) {
    return resource_exhausted("a list or mapping nests deeper than " + std::to_string(kMaxNesting) +
                              " levels");
  }
  if (extent.weight > kMaxWeight) return resource_exhausted("a list or mapping is too large");
  return {};
}

}  // namespace

void Extent::hold(const Extent& child) {
  nesting = std::max(nesting, child.nesting + 1);
  weight = std::min(weight + child.weight, kMaxWeight + 1);
}

Result<Value> Value::list(std::vector<Value> items, bool tuple) {
  List list{std::move(items), tuple, {}};
  for (const Value& item : list.items) list.extent.hold(item.extent());
  NIBBLE_RETURN_IF_ERROR(check_extent(list.extent));
  return Value(Data(std::make_shared<const List>(std::move(list))));
}

Result<Value> Value::dict(Dict dict) {
  dict.extent = {};
  for (const auto& [key, value] : dict.entries) {
    dict.extent.hold(key.extent());
    dict.extent.hold(value.extent());
  }
  NIBBLE_RETURN_IF_ERROR(check_extent(dict.extent));
  return Value(Data(std::make_shared<const Dict>(std::move(dict))));
}

Result<Value> Value::from_json(const JsonValue& json) {
  switch (json.type()) {
    case JsonType::null: return none();
    case JsonType::boolean: return boolean(json.as_bool());
    case JsonType::integer: return integer(json.as_integer());
    case JsonType::real: return real(json.as_double());
    case JsonType::string: return untrusted(std::string(json.as_string()));
    case JsonType::array: {
      std::vector<Value> items;
      items.reserve(json.size());
      for (const JsonValue element : json.elements()) {
        NIBBLE_ASSIGN(Value item, from_json(element));
        items.push_back(std::move(item));
      }
      return list(std::move(items));
    }
    case JsonType::object: {
      Dict dict_value;
      dict_value.entries.reserve(json.size());
      for (const auto& member : json.members()) {
        NIBBLE_ASSIGN(Value item, from_json(member.second));
        dict_value.entries.emplace_back(untrusted(std::string(member.first)), std::move(item));
      }
      return dict(std::move(dict_value));
    }
  }
  NIBBLE_CHECK(false, "unknown JSON type");
  return none();
}

std::string_view Value::type_name() const {
  switch (type()) {
    case Type::undefined: return "Undefined";
    case Type::none: return "None";
    case Type::boolean: return "bool";
    case Type::integer: return "int";
    case Type::real: return "float";
    case Type::text: return "str";
    case Type::list: return as_list().tuple ? "tuple" : "list";
    case Type::dict: return "dict";
    case Type::namespace_: return "namespace";
    case Type::macro: return "macro";
    case Type::function: return "function";
    case Type::method: return "method";
    case Type::loop: return "loop";
  }
  return "";
}

bool Value::is_number() const { return is(Type::boolean) || is(Type::integer) || is(Type::real); }

const std::string& Value::undefined_what() const {
  static const std::string nothing = "a value is undefined";
  const auto& what = std::get<Undefined>(data_).what;
  return what ? *what : nothing;
}

bool Value::truthy() const {
  switch (type()) {
    case Type::undefined:
    case Type::none: return false;
    case Type::boolean: return as_bool();
    case Type::integer: return as_integer() != 0;
    case Type::real: return as_real() != 0;
    case Type::text: return !as_text().empty();
    case Type::list: return !as_list().items.empty();
    case Type::dict: return !as_dict().entries.empty();
    case Type::namespace_:
    case Type::macro:
    case Type::function:
    case Type::method:
    case Type::loop: return true;
  }
  return false;
}

Extent Value::extent() const {
  switch (type()) {
    case Type::text: return {0, 1 + as_text().size() / 8};
    case Type::list: return as_list().extent;
    case Type::dict: return as_dict().extent;
    case Type::method: {
      Extent extent;
      extent.hold(as_method().self.extent());
      return extent;
    }
    case Type::loop: return as_loop().extent;
    default: return {};
  }
}

std::optional<std::int64_t> Value::to_integer() const {
  if (is(Type::boolean)) return as_bool() ? 1 : 0;
  if (is(Type::integer)) return as_integer();
  return std::nullopt;
}

std::optional<double> Value::to_real() const {
  if (is(Type::real)) return as_real();
  if (const auto i = to_integer()) return static_cast<double>(*i);
  return std::nullopt;
}

bool equal(const Value& a, const Value& b) {
  if (a.is_number() && b.is_number()) {
    if (!a.is(Type::real) && !b.is(Type::real)) return *a.to_integer() == *b.to_integer();
    return *a.to_real() == *b.to_real();
  }
  if (a.type() != b.type()) return false;
  switch (a.type()) {
    case Type::undefined:
    case Type::none: return true;
    case Type::text: return a.bytes() == b.bytes();
    case Type::list: {
      const List& left = a.as_list();
      const List& right = b.as_list();
      if (left.tuple != right.tuple || left.items.size() != right.items.size()) return false;
      for (std::size_t i = 0; i < left.items.size(); ++i) {
        if (!equal(left.items[i], right.items[i])) return false;
      }
      return true;
    }
    case Type::dict: {
      const Dict& left = a.as_dict();
      const Dict& right = b.as_dict();
      if (left.entries.size() != right.entries.size()) return false;
      for (std::size_t i = 0; i < left.entries.size(); ++i) {
        const auto& [key, value] = left.entries[i];
        const bool same_place = equal(key, right.entries[i].first);
        const Value* other = same_place ? &right.entries[i].second : right.find(key);
        if (other == nullptr || !equal(value, *other)) return false;
      }
      return true;
    }
    case Type::namespace_: return &a.as_namespace() == &b.as_namespace();
    case Type::macro: return &a.as_macro() == &b.as_macro();
    case Type::function: return a.as_function() == b.as_function();
    case Type::method:
      return a.as_method().name == b.as_method().name && equal(a.as_method().self, b.as_method().self);
    case Type::loop: return &a.as_loop() == &b.as_loop();
    case Type::boolean:
    case Type::integer:
    case Type::real: break;  // numbers, compared above
  }
  return false;
}

std::optional<int> order(const Value& a, const Value& b) {
  if (a.is_number() && b.is_number()) {
    if (!a.is(Type::real) && !b.is(Type::real)) {
      const auto left = *a.to_integer();
      const auto right = *b.to_integer();
      return left < right ? -1 : left > right ? 1 : 0;
    }
    const double left = *a.to_real();
    const double right = *b.to_real();
    return left < right ? -1 : left > right ? 1 : 0;
  }
  if (a.is(Type::text) && b.is(Type::text)) {
    // Bytes of UTF-8 sort as their code points do.
    return a.bytes().compare(b.bytes());
  }
  if (a.is(Type::list) && b.is(Type::list) && a.as_list().tuple == b.as_list().tuple) {
    const auto& left = a.as_list().items;
    const auto& right = b.as_list().items;
    for (std::size_t i = 0; i < std::min(left.size(), right.size()); ++i) {
      if (equal(left[i], right[i])) continue;
      return order(left[i], right[i]);
    }
    return left.size() < right.size() ? -1 : left.size() > right.size() ? 1 : 0;
  }
  return std::nullopt;
}

const Value* Dict::find(const Value& key) const {
  if (key.is(Type::text)) return find(key.bytes());
  for (const auto& [name, value] : entries) {
    if (equal(name, key)) return &value;
  }
  return nullptr;
}

const Value* Dict::find(std::string_view key) const {
  for (const auto& [name, value] : entries) {
    if (name.is(Type::text) && name.bytes() == key) return &value;
  }
  return nullptr;
}

void Dict::set(Value key, Value value) {
  for (auto& [name, old] : entries) {
    if (equal(name, key)) {
      old = std::move(value);
      return;
    }
  }
  entries.emplace_back(std::move(key), std::move(value));
}

Text to_text(const Value& value) {
  if (value.is(Type::text)) return value.as_text();
  return Text::from_request(value.is(Type::undefined) ? std::string() : repr(value));
}

std::string repr_real(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value < 0 ? "-inf" : "inf";
  // Python: the shortest digits that read back as the same double; an exponent below 1e-4 and from 1e16.
  char buffer[40];
  const double magnitude = std::fabs(value);
  const bool scientific = magnitude != 0 && (magnitude < 1e-4 || magnitude >= 1e16);
  const auto end = std::to_chars(buffer, buffer + sizeof buffer, value,
                                 scientific ? std::chars_format::scientific : std::chars_format::fixed)
                       .ptr;
  std::string digits(buffer, end);
  if (!scientific && digits.find('.') == std::string::npos) digits += ".0";
  return digits;
}

namespace {

std::string repr_text(std::string_view text) {
  const bool double_quoted = text.find('\'') != text.npos && text.find('"') == text.npos;
  const char quote = double_quoted ? '"' : '\'';
  static constexpr char kHex[] = "0123456789abcdef";
  const auto hex = [&](std::string& out, char32_t c, int digits) {
    for (int shift = (digits - 1) * 4; shift >= 0; shift -= 4) out += kHex[(c >> shift) & 15];
  };
  std::string out(1, quote);
  for (std::size_t at = 0; at < text.size();) {
    const CodePoint c = code_point_at(text, at);
    if (c.value == static_cast<unsigned char>(quote) || c.value == '\\') {
      out += '\\';
      out += static_cast<char>(c.value);
    } else if (c.value == '\n') {
      out += "\\n";
    } else if (c.value == '\r') {
      out += "\\r";
    } else if (c.value == '\t') {
      out += "\\t";
    } else if (is_printable(c.value)) {
      out += text.substr(at, c.length);
    } else if (c.value < 0x100) {
      out += "\\x";
      hex(out, c.value, 2);
    } else if (c.value < 0x10000) {
      out += "\\u";
      hex(out, c.value, 4);
    } else {
      out += "\\U";
      hex(out, c.value, 8);
    }
    at += c.length;
  }
  return out + quote;
}

std::string repr_list(const List& list) {
  std::string out(1, list.tuple ? '(' : '[');
  for (std::size_t i = 0; i < list.items.size(); ++i) {
    if (i > 0) out += ", ";
    out += repr(list.items[i]);
  }
  if (list.tuple && list.items.size() == 1) out += ',';
  return out + (list.tuple ? ')' : ']');
}

std::string repr_dict(const Dict& dict) {
  std::string out = "{";
  for (const auto& [key, value] : dict.entries) {
    if (out.size() > 1) out += ", ";
    out += repr(key) + ": " + repr(value);
  }
  return out + "}";
}

}  // namespace

std::string repr(const Value& value) {
  switch (value.type()) {
    case Type::undefined: return "Undefined";
    case Type::none: return "None";
    case Type::boolean: return value.as_bool() ? "True" : "False";
    case Type::integer: return std::to_string(value.as_integer());
    case Type::real: return repr_real(value.as_real());
    case Type::text: return repr_text(value.bytes());
    case Type::list: return repr_list(value.as_list());
    case Type::dict: return repr_dict(value.as_dict());
    default: return "<" + std::string(value.type_name()) + ">";
  }
}

}  // namespace nibble::jinja
