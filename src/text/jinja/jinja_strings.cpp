// Methods of values, and the text operations that filters and methods share.
#include <algorithm>

#include "text/jinja/jinja_filters.h"

namespace nibble::jinja {

// --- Text operations

namespace {

bool begins_word(char32_t c) {  // of jinja2's title filter: [-\s({\[<]
  return c == '-' || c == '(' || c == '{' || c == '[' || c == '<' || is_space(c);
}

}  // namespace

Text change_case(const Text& text, Case how) {
  std::string changed;
  bool same_places = true;
  bool word_goes_on = false;
  for (std::size_t at = 0; at < text.size();) {
    const CodePoint c = code_point_at(text.bytes(), at);
    const bool raise = how == Case::upper || (how != Case::lower && !word_goes_on);
    const std::size_t before = changed.size();
    if (c.value == 0xFFFD) {
      changed += text.bytes().substr(at, c.length);
    } else if (c.value == 0xDF && raise) {
      changed += how == Case::upper ? "SS" : "Ss";  // the one letter in use whose capital is two letters
    } else {
      append_code_point(changed, raise ? to_upper(c.value) : to_lower(c.value));
    }
    same_places = same_places && changed.size() - before == c.length;
    switch (how) {
      case Case::title_method: word_goes_on = is_letter(c.value); break;
      case Case::title_filter: word_goes_on = !begins_word(c.value); break;
      default: word_goes_on = true;
    }
    at += c.length;
  }
  return same_places ? text.with_bytes(std::move(changed)) : Text::from_request(std::move(changed));
}

Text replace_all(const Text& text, std::string_view from, const Text& to, std::int64_t count) {
  Text out;
  std::size_t at = 0;
  const auto more = [&] { return count < 0 || count-- > 0; };
  if (from.empty()) {  // between all letters and at both ends
    while (more()) {
      out.append(to);
      if (at >= text.size()) return out;
      const std::size_t length = code_point_at(text.bytes(), at).length;
      out.append_slice(text, at, at + length);
      at += length;
    }
  } else {
    std::size_t found = text.bytes().find(from);
    while (found != std::string::npos && more()) {
      if (found > at) out.append_slice(text, at, found);
      out.append(to);
      at = found + from.size();
      found = text.bytes().find(from, at);
    }
    if (at == 0) return text;
  }
  if (at < text.size()) out.append_slice(text, at, text.size());
  return out;
}

std::vector<Text> split_lines(const Text& text) {
  std::vector<Text> lines;
  std::size_t begin = 0;
  for (std::size_t at = 0; at < text.size();) {
    const CodePoint c = code_point_at(text.bytes(), at);
    if (!is_line_break(c.value)) {
      at += c.length;
      continue;
    }
    lines.push_back(text.slice(begin, at));
    at += c.length;
    if (c.value == '\r' && at < text.size() && text.bytes()[at] == '\n') ++at;
    begin = at;
  }
  if (begin < text.size()) lines.push_back(text.slice(begin, text.size()));
  return lines;
}

namespace {

std::vector<Text> split_at_spaces(const Text& text, std::int64_t limit) {
  std::vector<Text> parts;
  const std::string& bytes = text.bytes();
  std::size_t at = strip_bounds(bytes, {.right = false}).begin;
  while (at < bytes.size()) {
    if (limit >= 0 && static_cast<std::int64_t>(parts.size()) >= limit) {
      parts.push_back(text.slice(at, text.size()));
      return parts;
    }
    std::size_t end = at;
    while (end < bytes.size() && !is_space(code_point_at(bytes, end).value))
      end += code_point_at(bytes, end).length;
    parts.push_back(text.slice(at, end));
    at = end + strip_bounds(std::string_view(bytes).substr(end), {.right = false}).begin;
  }
  return parts;
}

std::vector<Text> split_at(const Text& text, std::string_view separator, std::int64_t limit) {
  std::vector<Text> parts;
  std::size_t at = 0;
  while (limit < 0 || static_cast<std::int64_t>(parts.size()) < limit) {
    const std::size_t found = text.bytes().find(separator, at);
    if (found == std::string::npos) break;
    parts.push_back(text.slice(at, found));
    at = found + separator.size();
  }
  parts.push_back(text.slice(at, text.size()));
  return parts;
}

std::vector<Text> split_from_right(const Text& text, std::string_view separator, std::int64_t limit) {
  std::vector<Text> parts;
  std::size_t end = text.size();
  while (limit < 0 || static_cast<std::int64_t>(parts.size()) < limit) {
    if (end < separator.size()) break;
    const std::size_t found = text.bytes().rfind(separator, end - separator.size());
    if (found == std::string::npos) break;
    parts.push_back(text.slice(found + separator.size(), end));
    end = found;
  }
  parts.push_back(text.slice(0, end));
  std::reverse(parts.begin(), parts.end());
  return parts;
}

Result<Value> text_list(Interpreter& interpreter, std::vector<Text> parts) {
  std::vector<Value> items;
  items.reserve(parts.size());
  for (Text& part : parts) items.push_back(Value::text(std::move(part)));
  return interpreter.make_list(std::move(items));
}

// --- Methods of a text

using Apply = Result<Value> (*)(Interpreter&, const Value& self, const Arguments&);
struct MethodEntry {
  std::string_view name;
  Apply apply;
};

Result<Value> split(Interpreter& interpreter, const Value& self, const Arguments& arguments) {
  NIBBLE_ASSIGN(const Bound bound, Bound::bind("split", arguments, {"sep", "maxsplit"}));
  NIBBLE_ASSIGN(const Text* separator, bound.text(0));
  NIBBLE_ASSIGN(const std::int64_t limit, bound.integer(1, -1));
  NIBBLE_RETURN_IF_ERROR(interpreter.spend(self.as_text().size() / 8));
  if (separator == nullptr) return text_list(interpreter, split_at_spaces(self.as_text(), limit));
  if (separator->empty()) return fault("split: the separator is empty");
  NIBBLE_RETURN_IF_ERROR(interpreter.spend_on_search(self.as_text().size(), separator->size()));
  return text_list(interpreter, split_at(self.as_text(), separator->bytes(), limit));
}

Result<Value> rsplit(Interpreter& interpreter, const Value& self, const Arguments& arguments) {
  NIBBLE_ASSIGN(const Bound bound, Bound::bind("rsplit", arguments, {"sep", "maxsplit"}));
  NIBBLE_ASSIGN(const Text* separator, bound.required_text(0));
  NIBBLE_ASSIGN(const std::int64_t limit, bound.integer(1, -1));
  NIBBLE_RETURN_IF_ERROR(interpreter.spend(self.as_text().size() / 8));
  if (separator->empty()) return fault("rsplit: the separator is empty");
  NIBBLE_RETURN_IF_ERROR(interpreter.spend_on_search(self.as_text().size(), separator->size()));
  return text_list(interpreter, split_from_right(self.as_text(), separator->bytes(), limit));
}

Result<Value> split_lines_method(Interpreter& interpreter, const Value& self, const Arguments& arguments) {
  NIBBLE_ASSIGN([[maybe_unused]] const Bound bound, Bound::bind("splitlines", arguments, {}));
  NIBBLE_RETURN_IF_ERROR(interpreter.spend(self.as_text().size() / 8));
  return text_list(interpreter, split_lines(self.as_text()));
}

Result<Value> strip_sides(Interpreter& interpreter, const Value& self, const Arguments& arguments,
                          Strip sides) {
  NIBBLE_ASSIGN(const Bound bound, Bound::bind("strip", arguments, {"chars"}));
  NIBBLE_ASSIGN(const Text* chars, bound.text(0));
  const Text& text = self.as_text();
  NIBBLE_RETURN_IF_ERROR(interpreter.spend(text.size() / 8 * (chars != nullptr ? chars->size() / 8 + 1 : 1)));
  const TextSpan kept = strip_bounds(
      text.bytes(), sides, chars != nullptr ? chars->bytes() : std::string_view(), chars != nullptr);
  return interpreter.make_text(text.slice(kept.begin, kept.end));
}

Result<Value> strip(Interpreter& interpreter, const Value& self, const Arguments& arguments) {
  return strip_sides(interpreter, self, arguments, {});
}
Result<Value> lstrip(Interpreter& interpreter, const Value& self, const Arguments& arguments) {
  return strip_sides(interpreter, self, arguments, {.right = false});
}
Result<Value> rstrip(Interpreter& interpreter, const Value& self, const Arguments& arguments) {
  return strip_sides(interpreter, self, arguments, {.left = false});
}

// startswith and endswith take one affix or a tuple of them.
Result<Value> has_affix(const Value& self, const Arguments& arguments, std::string_view name, bool at_end) {
  NIBBLE_ASSIGN(const Bound bound, Bound::bind(name, arguments, {"affix"}));
  NIBBLE_ASSIGN(const Value* affix, bound.required(0));
  const auto has = [&](const Value& one) {
    const std::string_view text = self.bytes();
    return at_end ? text.ends_with(one.bytes()) : text.starts_with(one.bytes());
  };
  if (affix->is(Type::text)) return Value::boolean(has(*affix));
  if (!affix->is(Type::list) || !affix->as_list().tuple) {
    return fault(std::string(name) + " takes a text or a tuple of texts");
  }
  bool found = false;
  for (const Value& one : affix->as_list().items) {
    if (!one.is(Type::text)) return fault(std::string(name) + " takes a text or a tuple of texts");
    found = found || has(one);
  }
  return Value::boolean(found);
}

Result<Value> starts_with(Interpreter&, const Value& self, const Arguments& arguments) {
  return has_affix(self, arguments, "startswith", false);
}
Result<Value> ends_with(Interpreter&, const Value& self, const Arguments& arguments) {
  return has_affix(self, arguments, "endswith", true);
}

Result<Value> remove_affix(Interpreter& interpreter, const Value& self, const Arguments& arguments,
                           bool at_end) {
  NIBBLE_ASSIGN(const Bound bound, Bound::bind("removeprefix", arguments, {"affix"}));
  NIBBLE_ASSIGN(const Text* affix, bound.required_text(0));
  const Text& text = self.as_text();
  const std::string_view bytes = text.bytes();
  const bool has = at_end ? bytes.ends_with(affix->bytes()) : bytes.starts_with(affix->bytes());
  if (!has || affix->empty()) return self;
  return interpreter.make_text(at_end ? text.slice(0, text.size() - affix->size())
                                      : text.slice(affix->size(), text.size()));
}
Result<Value> remove_prefix(Interpreter& interpreter, const Value& self, const Arguments& arguments) {
  return remove_affix(interpreter, self, arguments, false);
}
Result<Value> remove_suffix(Interpreter& interpreter, const Value& self, const Arguments& arguments) {
  return remove_affix(interpreter, self, arguments, true);
}

Result<Value> replace(Interpreter& interpreter, const Value& self, const Arguments& arguments) {
  NIBBLE_ASSIGN(const Bound bound, Bound::bind("replace", arguments, {"old", "new", "count"}));
  NIBBLE_ASSIGN(const Text* from, bound.required_text(0));
  NIBBLE_ASSIGN(const Text* to, bound.required_text(1));
  NIBBLE_ASSIGN(const std::int64_t count, bound.integer(2, -1));
  const Text& text = self.as_text();
  NIBBLE_RETURN_IF_ERROR(interpreter.spend_on_search(text.size(), from->size()));
  // What it can grow to at most, before it does.
  NIBBLE_RETURN_IF_ERROR(interpreter.spend(
      text.size() / 8 + text.size() / std::max<std::size_t>(from->size(), 1) * (to->size() / 8)));
  return interpreter.make_text(replace_all(text, from->bytes(), *to, count));
}

template <Case how>
Result<Value> in_case(Interpreter& interpreter, const Value& self, const Arguments& arguments) {
  NIBBLE_ASSIGN([[maybe_unused]] const Bound bound, Bound::bind("a change of case", arguments, {}));
  return interpreter.make_text(change_case(self.as_text(), how));
}

Result<Value> find(Interpreter& interpreter, const Value& self, const Arguments& arguments) {
  NIBBLE_ASSIGN(const Bound bound, Bound::bind("find", arguments, {"sub"}));
  NIBBLE_ASSIGN(const Text* what, bound.required_text(0));
  NIBBLE_RETURN_IF_ERROR(interpreter.spend_on_search(self.bytes().size(), what->size()));
  const std::size_t found = self.bytes().find(what->bytes());
  if (found == std::string::npos) return Value::integer(-1);
  return Value::integer(
      static_cast<std::int64_t>(count_code_points(std::string_view(self.bytes()).substr(0, found))));
}

Result<Value> count(Interpreter& interpreter, const Value& self, const Arguments& arguments) {
  NIBBLE_ASSIGN(const Bound bound, Bound::bind("count", arguments, {"sub"}));
  NIBBLE_ASSIGN(const Text* what, bound.required_text(0));
  NIBBLE_RETURN_IF_ERROR(interpreter.spend_on_search(self.bytes().size(), what->size()));
  if (what->empty()) return Value::integer(static_cast<std::int64_t>(count_code_points(self.bytes())) + 1);
  std::int64_t times = 0;
  for (std::size_t at = self.bytes().find(what->bytes()); at != std::string::npos; ++times) {
    at = self.bytes().find(what->bytes(), at + what->size());
  }
  return Value::integer(times);
}

Result<Value> join(Interpreter& interpreter, const Value& self, const Arguments& arguments) {
  NIBBLE_ASSIGN(const Bound bound, Bound::bind("join", arguments, {"iterable"}));
  NIBBLE_ASSIGN(const Value* over, bound.required(0));
  NIBBLE_ASSIGN(const std::vector<Value> items, interpreter.iterate(*over));
  Text joined;
  for (std::size_t i = 0; i < items.size(); ++i) {
    if (!items[i].is(Type::text)) return fault("join: an element is " + std::string(items[i].type_name()));
    if (i > 0) joined.append(self.as_text());
    joined.append(items[i].as_text());
    NIBBLE_RETURN_IF_ERROR(interpreter.spend((self.as_text().size() + items[i].as_text().size()) / 8 + 1));
  }
  return interpreter.make_text(std::move(joined));
}

// isdigit and its like: every letter is of the kind, and there is one.
template <bool (*of_kind)(char32_t)>
Result<Value> all_letters(Interpreter&, const Value& self, const Arguments& arguments) {
  NIBBLE_ASSIGN([[maybe_unused]] const Bound bound, Bound::bind("a test of letters", arguments, {}));
  bool all = !self.bytes().empty();
  for (std::size_t at = 0; all && at < self.bytes().size();) {
    const CodePoint c = code_point_at(self.bytes(), at);
    all = of_kind(c.value);
    at += c.length;
  }
  return Value::boolean(all);
}
bool is_letter_or_digit(char32_t c) { return is_letter(c) || is_decimal(c); }

// isupper and islower: there is a letter of the case and none of the other.
Result<Value> of_case(const Value& self, bool (*wanted)(char32_t), bool (*other)(char32_t)) {
  bool some = false;
  for (std::size_t at = 0; at < self.bytes().size();) {
    const CodePoint c = code_point_at(self.bytes(), at);
    if (other(c.value)) return Value::boolean(false);
    some = some || wanted(c.value);
    at += c.length;
  }
  return Value::boolean(some);
}
Result<Value> is_upper(Interpreter&, const Value& self, const Arguments&) {
  return of_case(self, is_cased_upper, is_cased_lower);
}
Result<Value> is_lower(Interpreter&, const Value& self, const Arguments&) {
  return of_case(self, is_cased_lower, is_cased_upper);
}

// "{} {0} {name}".format(...), without conversions and format specifications.
Result<Value> brace_format(Interpreter& interpreter, const Value& self, const Arguments& arguments) {
  const Text& format = self.as_text();
  const std::string& bytes = format.bytes();
  Text out;
  std::size_t next = 0;
  for (std::size_t at = 0; at < bytes.size();) {
    if ((bytes[at] == '{' || bytes[at] == '}') && at + 1 < bytes.size() && bytes[at + 1] == bytes[at]) {
      out.append_slice(format, at, at + 1);
      at += 2;
      continue;
    }
    if (bytes[at] == '}') return fault("format: a '}' stands alone");
    if (bytes[at] != '{') {
      std::size_t end = bytes.find_first_of("{}", at);
      if (end == std::string::npos) end = bytes.size();
      out.append_slice(format, at, end);
      at = end;
      continue;
    }
    const std::size_t close = bytes.find('}', at);
    if (close == std::string::npos) return fault("format: a '{' has no '}'");
    const std::string field = bytes.substr(at + 1, close - at - 1);
    const Value* value = nullptr;
    if (field.find_first_not_of("0123456789") == std::string::npos && field.size() < 9) {
      const std::size_t index = field.empty() ? next++ : std::stoul(field);
      if (index < arguments.positional.size()) value = &arguments.positional[index];
    }
    for (const auto& [name, given] : arguments.named) {
      if (name == field) value = &given;
    }
    if (value == nullptr) return fault("format: there is no argument for '{" + field + "}'");
    NIBBLE_ASSIGN(const Text text, interpreter.text_of(*value));
    out.append(text);
    at = close + 1;
  }
  return interpreter.make_text(std::move(out));
}

// --- Methods of a dict and of a list

Result<Value> dict_items(Interpreter& interpreter, const Value& self, const Arguments& arguments) {
  NIBBLE_ASSIGN([[maybe_unused]] const Bound bound, Bound::bind("items", arguments, {}));
  std::vector<Value> pairs;
  pairs.reserve(self.as_dict().entries.size());
  for (const auto& [key, value] : self.as_dict().entries) {
    NIBBLE_ASSIGN(Value pair, interpreter.make_list({key, value}, true));
    pairs.push_back(std::move(pair));
  }
  return interpreter.make_list(std::move(pairs));
}

Result<Value> dict_keys(Interpreter& interpreter, const Value& self, const Arguments& arguments) {
  NIBBLE_ASSIGN([[maybe_unused]] const Bound bound, Bound::bind("keys", arguments, {}));
  std::vector<Value> keys;
  keys.reserve(self.as_dict().entries.size());
  for (const auto& entry : self.as_dict().entries) keys.push_back(entry.first);
  return interpreter.make_list(std::move(keys));
}

Result<Value> dict_values(Interpreter& interpreter, const Value& self, const Arguments& arguments) {
  NIBBLE_ASSIGN([[maybe_unused]] const Bound bound, Bound::bind("values", arguments, {}));
  std::vector<Value> values;
  values.reserve(self.as_dict().entries.size());
  for (const auto& entry : self.as_dict().entries) values.push_back(entry.second);
  return interpreter.make_list(std::move(values));
}

Result<Value> dict_get(Interpreter& interpreter, const Value& self, const Arguments& arguments) {
  NIBBLE_ASSIGN(const Bound bound, Bound::bind("get", arguments, {"key", "default"}));
  NIBBLE_ASSIGN(const Value* key, bound.required(0));
  NIBBLE_RETURN_IF_ERROR(interpreter.spend(self.as_dict().entries.size() / 8));
  if (const Value* found = self.as_dict().find(*key)) return *found;
  return bound[1] != nullptr ? *bound[1] : Value::none();
}

Result<Value> copy(Interpreter&, const Value& self, const Arguments& arguments) {
  NIBBLE_ASSIGN([[maybe_unused]] const Bound bound, Bound::bind("copy", arguments, {}));
  return self;
}

Result<Value> list_count(Interpreter& interpreter, const Value& self, const Arguments& arguments) {
  NIBBLE_ASSIGN(const Bound bound, Bound::bind("count", arguments, {"value"}));
  NIBBLE_ASSIGN(const Value* wanted, bound.required(0));
  NIBBLE_RETURN_IF_ERROR(interpreter.spend(self.extent().weight));
  const auto& items = self.as_list().items;
  return Value::integer(
      std::count_if(items.begin(), items.end(), [&](const Value& v) { return equal(v, *wanted); }));
}

Result<Value> list_index(Interpreter& interpreter, const Value& self, const Arguments& arguments) {
  NIBBLE_ASSIGN(const Bound bound, Bound::bind("index", arguments, {"value"}));
  NIBBLE_ASSIGN(const Value* wanted, bound.required(0));
  NIBBLE_RETURN_IF_ERROR(interpreter.spend(self.extent().weight));
  const auto& items = self.as_list().items;
  for (std::size_t i = 0; i < items.size(); ++i) {
    if (equal(items[i], *wanted)) return Value::integer(static_cast<std::int64_t>(i));
  }
  return fault("index: the value is not in the list");
}

Result<Value> loop_cycle(Interpreter&, const Value& self, const Arguments& arguments) {
  if (arguments.positional.empty() || !arguments.named.empty())
    return fault("cycle takes the values to cycle through");
  return arguments.positional[self.as_loop().index % arguments.positional.size()];
}

constexpr MethodEntry kTextMethods[] = {
    {"capitalize", in_case<Case::capitalize>},
    {"count", count},
    {"endswith", ends_with},
    {"find", find},
    {"format", brace_format},
    {"isalnum", all_letters<is_letter_or_digit>},
    {"isalpha", all_letters<is_letter>},
    {"isdigit", all_letters<is_decimal>},
    {"islower", is_lower},
    {"isspace", all_letters<is_space>},
    {"isupper", is_upper},
    {"join", join},
    {"lower", in_case<Case::lower>},
    {"lstrip", lstrip},
    {"removeprefix", remove_prefix},
    {"removesuffix", remove_suffix},
    {"replace", replace},
    {"rsplit", rsplit},
    {"rstrip", rstrip},
    {"split", split},
    {"splitlines", split_lines_method},
    {"startswith", starts_with},
    {"strip", strip},
    {"title", in_case<Case::title_method>},
    {"upper", in_case<Case::upper>},
};
constexpr MethodEntry kDictMethods[] = {
    {"copy", copy}, {"get", dict_get}, {"items", dict_items}, {"keys", dict_keys}, {"values", dict_values}};
constexpr MethodEntry kListMethods[] = {{"copy", copy}, {"count", list_count}, {"index", list_index}};
constexpr MethodEntry kTupleMethods[] = {{"count", list_count}, {"index", list_index}};
constexpr MethodEntry kLoopMethods[] = {{"cycle", loop_cycle}};

std::span<const MethodEntry> methods_of(const Value& object) {
  switch (object.type()) {
    case Type::text: return kTextMethods;
    case Type::dict: return kDictMethods;
    case Type::list:
      if (object.as_list().tuple) return kTupleMethods;
      return kListMethods;
    case Type::loop: return kLoopMethods;
    default: return {};
  }
}

}  // namespace

bool has_method(const Value& object, std::string_view name) {
  return std::ranges::any_of(methods_of(object),
                             [&](const MethodEntry& entry) { return entry.name == name; });
}

Result<Value> call_method(Interpreter& interpreter, const Value& self, const std::string& name,
                          const Arguments& arguments) {
  for (const MethodEntry& entry : methods_of(self)) {
    if (entry.name == name) return entry.apply(interpreter, self, arguments);
  }
  return fault("there is no method '" + name + "'");
}

}  // namespace nibble::jinja
