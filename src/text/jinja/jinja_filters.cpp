#include "text/jinja/jinja_filters.h"

#include <algorithm>
#include <charconv>
#include <cmath>

namespace nibble::jinja {

// --- Arguments

Result<Bound> Bound::bind(std::string_view function, const Arguments& arguments,
                          std::initializer_list<std::string_view> names) {
  Bound bound;
  bound.function_ = function;
  bound.names_ = names;
  bound.values_.assign(names.size(), nullptr);
  if (arguments.positional.size() > names.size()) {
    return fault(std::string(function) + " takes at most " + std::to_string(names.size()) + " arguments");
  }
  for (std::size_t i = 0; i < arguments.positional.size(); ++i) bound.values_[i] = &arguments.positional[i];
  for (const auto& [name, value] : arguments.named) {
    const auto at = std::find(names.begin(), names.end(), std::string_view(name));
    if (at == names.end()) return fault(std::string(function) + " has no argument '" + name + "'");
    const Value*& slot = bound.values_[static_cast<std::size_t>(at - names.begin())];
    if (slot != nullptr) return fault(std::string(function) + " gets '" + name + "' twice");
    slot = &value;
  }
  return bound;
}

Result<const Value*> Bound::required(std::size_t i) const {
  if (values_[i] == nullptr) {
    return fault(std::string(function_) + " lacks its argument '" + std::string(names_[i]) + "'");
  }
  return values_[i];
}

Result<std::int64_t> Bound::integer(std::size_t i, std::int64_t fallback) const {
  if (values_[i] == nullptr || values_[i]->is(Type::none)) return fallback;
  if (const auto number = values_[i]->to_integer()) return *number;
  return fault(std::string(function_) + ": '" + std::string(names_[i]) + "' is " +
               std::string(values_[i]->type_name()) + ", not an integer");
}

bool Bound::truthy(std::size_t i, bool fallback) const {
  return values_[i] == nullptr ? fallback : values_[i]->truthy();
}

Result<const Text*> Bound::text(std::size_t i) const {
  if (values_[i] == nullptr || values_[i]->is(Type::none)) return static_cast<const Text*>(nullptr);
  return required_text(i);
}

Result<const Text*> Bound::required_text(std::size_t i) const {
  NIBBLE_ASSIGN(const Value* value, required(i));
  if (!value->is(Type::text)) {
    return fault(std::string(function_) + ": '" + std::string(names_[i]) + "' is " +
                 std::string(value->type_name()) + ", not a text");
  }
  return &value->as_text();
}

namespace {

// --- Texts

Result<Value> filter_string(Interpreter& interpreter, const Value& input, const Arguments&) {
  if (input.is(Type::text)) return input;
  NIBBLE_ASSIGN(Text text, interpreter.text_of(input));
  return interpreter.make_text(std::move(text));
}

Result<Value> filter_trim(Interpreter& interpreter, const Value& input, const Arguments& arguments) {
  NIBBLE_ASSIGN(const Value text, filter_string(interpreter, input, {}));
  return call_method(interpreter, text, "strip", arguments);
}

template <Case how>
Result<Value> filter_case(Interpreter& interpreter, const Value& input, const Arguments& arguments) {
  NIBBLE_ASSIGN([[maybe_unused]] const Bound bound, Bound::bind("a change of case", arguments, {}));
  NIBBLE_ASSIGN(const Text text, interpreter.text_of(input));
  return interpreter.make_text(change_case(text, how));
}

Result<Value> filter_replace(Interpreter& interpreter, const Value& input, const Arguments& arguments) {
  NIBBLE_ASSIGN(const Bound bound, Bound::bind("replace", arguments, {"old", "new", "count"}));
  NIBBLE_ASSIGN(const Value text, filter_string(interpreter, input, {}));
  Arguments texts;
  for (std::size_t i = 0; i < 2; ++i) {
    NIBBLE_ASSIGN(const Value* part, bound.required(i));
    NIBBLE_ASSIGN(Value shown, filter_string(interpreter, *part, {}));
    texts.positional.push_back(std::move(shown));
  }
  if (bound[2] != nullptr) texts.positional.push_back(*bound[2]);
  return call_method(interpreter, text, "replace", texts);
}

Result<Value> filter_indent(Interpreter& interpreter, const Value& input, const Arguments& arguments) {
  NIBBLE_ASSIGN(const Bound bound, Bound::bind("indent", arguments, {"width", "first", "blank"}));
  if (!input.is(Type::text)) return fault("indent needs a text, not " + std::string(input.type_name()));
  Text margin;
  if (bound[0] != nullptr && bound[0]->is(Type::text)) {
    margin = bound[0]->as_text();
  } else {
    NIBBLE_ASSIGN(const std::int64_t width, bound.integer(0, 4));
    margin = Text::from_template(
        std::string(static_cast<std::size_t>(std::clamp<std::int64_t>(width, 0, 1000)), ' '));
  }
  Text whole = input.as_text();
  whole.append_trusted("\n");
  const std::vector<Text> lines = split_lines(whole);
  NIBBLE_RETURN_IF_ERROR(interpreter.spend(whole.size() / 8 + lines.size() * (margin.size() / 8 + 1)));
  Text out;
  for (std::size_t i = 0; i < lines.size(); ++i) {
    if (i > 0) out.append_trusted("\n");
    const bool indented = i == 0 ? bound.truthy(1, false) : (!lines[i].empty() || bound.truthy(2, false));
    if (indented) out.append(margin);
    out.append(lines[i]);
  }
  return interpreter.make_text(std::move(out));
}

Result<Value> filter_format(Interpreter& interpreter, const Value& input, const Arguments& arguments) {
  if (!arguments.named.empty()) return fault("format: arguments by name are not supported");
  NIBBLE_ASSIGN(const Text format, interpreter.text_of(input));
  return percent_format(interpreter, format, arguments.positional);
}

Result<Value> filter_tojson(Interpreter& interpreter, const Value& input, const Arguments& arguments) {
  NIBBLE_ASSIGN(const Bound bound,
                Bound::bind("tojson", arguments, {"ensure_ascii", "indent", "separators", "sort_keys"}));
  ToJson options;
  options.ensure_ascii = bound.truthy(0, false);
  options.sort_keys = bound.truthy(3, false);
  if (bound[1] != nullptr && bound[1]->is(Type::text)) {
    options.indent = bound[1]->bytes();
  } else if (bound[1] != nullptr && !bound[1]->is(Type::none)) {
    NIBBLE_ASSIGN(const std::int64_t width, bound.integer(1, 0));
    options.indent = std::string(static_cast<std::size_t>(std::clamp<std::int64_t>(width, 0, 100)), ' ');
  }
  if (bound[2] != nullptr && !bound[2]->is(Type::none)) {
    if (!bound[2]->is(Type::list) || bound[2]->as_list().items.size() != 2 ||
        !bound[2]->as_list().items[0].is(Type::text) || !bound[2]->as_list().items[1].is(Type::text)) {
      return fault("tojson: 'separators' is a pair of texts");
    }
    options.separators = {bound[2]->as_list().items[0].bytes(), bound[2]->as_list().items[1].bytes()};
  }
  // A line an element, each with as much margin as the nesting asks for.
  const Extent extent = input.extent();
  const std::size_t margin =
      options.indent ? options.indent->size() * static_cast<std::size_t>(extent.nesting) : 0;
  NIBBLE_RETURN_IF_ERROR(interpreter.spend(extent.weight * (1 + margin / 8)));
  NIBBLE_ASSIGN(std::string json, to_json(input, options));
  return interpreter.make_text_from_request(std::move(json));
}

// --- Any value

Result<Value> filter_default(Interpreter&, const Value& input, const Arguments& arguments) {
  NIBBLE_ASSIGN(const Bound bound, Bound::bind("default", arguments, {"default_value", "boolean"}));
  const bool absent = input.is(Type::undefined) || (bound.truthy(1, false) && !input.truthy());
  if (!absent) return input;
  return bound[0] != nullptr ? *bound[0] : Value::trusted("");
}

Result<Value> filter_safe(Interpreter& interpreter, const Value& input, const Arguments& arguments) {
  return filter_string(interpreter, input, arguments);
}

Result<Value> filter_length(Interpreter& interpreter, const Value& input, const Arguments&) {
  switch (input.type()) {
    case Type::undefined: return Value::integer(0);
    case Type::text:
      NIBBLE_RETURN_IF_ERROR(interpreter.spend(input.bytes().size() / 8));
      return Value::integer(static_cast<std::int64_t>(count_code_points(input.bytes())));
    case Type::list: return Value::integer(static_cast<std::int64_t>(input.as_list().items.size()));
    case Type::dict: return Value::integer(static_cast<std::int64_t>(input.as_dict().entries.size()));
    case Type::loop: return Value::integer(static_cast<std::int64_t>(input.as_loop().items.size()));
    default: return fault("a value of type " + std::string(input.type_name()) + " has no length");
  }
}

std::optional<double> parse_real(std::string_view text) {
  const TextSpan kept = strip_bounds(text, {});
  text = text.substr(kept.begin, kept.end - kept.begin);
  if (text.starts_with('+')) text.remove_prefix(1);
  double number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size() || text.empty()) return std::nullopt;
  return number;
}

Result<Value> filter_int(Interpreter&, const Value& input, const Arguments& arguments) {
  NIBBLE_ASSIGN(const Bound bound, Bound::bind("int", arguments, {"default"}));
  const Value fallback = bound[0] != nullptr ? *bound[0] : Value::integer(0);
  if (input.is(Type::undefined)) return fault(input.undefined_what());
  if (const auto number = input.to_integer()) return Value::integer(*number);
  std::optional<double> real = input.to_real();
  if (input.is(Type::text)) {
    const TextSpan kept = strip_bounds(input.bytes(), {});
    std::string_view text = std::string_view(input.bytes()).substr(kept.begin, kept.end - kept.begin);
    if (text.starts_with('+')) text.remove_prefix(1);
    std::int64_t number = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
    if (error == std::errc() && end == text.data() + text.size()) return Value::integer(number);
    real = parse_real(input.bytes());
  }
  if (!real || !(*real > -9.2e18 && *real < 9.2e18)) return fallback;
  return Value::integer(static_cast<std::int64_t>(*real));
}

Result<Value> filter_float(Interpreter&, const Value& input, const Arguments& arguments) {
  NIBBLE_ASSIGN(const Bound bound, Bound::bind("float", arguments, {"default"}));
  if (input.is(Type::undefined)) return fault(input.undefined_what());
  if (const auto number = input.to_real()) return Value::real(*number);
  if (input.is(Type::text)) {
    if (const auto number = parse_real(input.bytes())) return Value::real(*number);
  }
  return bound[0] != nullptr ? *bound[0] : Value::real(0);
}

Result<Value> filter_abs(Interpreter&, const Value& input, const Arguments&) {
  if (const auto number = input.to_integer()) {
    if (*number == INT64_MIN) return fault("a number is too large");
    return Value::integer(*number < 0 ? -*number : *number);
  }
  if (input.is(Type::real)) return Value::real(std::fabs(input.as_real()));
  return fault("abs needs a number, not " + std::string(input.type_name()));
}

// --- Sequences

Result<Value> filter_list(Interpreter& interpreter, const Value& input, const Arguments&) {
  NIBBLE_ASSIGN(std::vector<Value> items, interpreter.iterate(input));
  return interpreter.make_list(std::move(items));
}

Result<Value> filter_items(Interpreter& interpreter, const Value& input, const Arguments&) {
  if (input.is(Type::undefined)) return interpreter.make_list({});
  if (!input.is(Type::dict)) return fault("items needs a mapping, not " + std::string(input.type_name()));
  return call_method(interpreter, input, "items", {});
}

Result<Value> filter_first(Interpreter& interpreter, const Value& input, const Arguments&) {
  NIBBLE_ASSIGN(const std::vector<Value> items, interpreter.iterate(input));
  return items.empty() ? Value::undefined("there is no first item: the sequence is empty") : items.front();
}

Result<Value> filter_last(Interpreter& interpreter, const Value& input, const Arguments&) {
  NIBBLE_ASSIGN(const std::vector<Value> items, interpreter.iterate(input));
  return items.empty() ? Value::undefined("there is no last item: the sequence is empty") : items.back();
}

Result<Value> filter_reverse(Interpreter& interpreter, const Value& input, const Arguments&) {
  NIBBLE_ASSIGN(std::vector<Value> items, interpreter.iterate(input));
  std::reverse(items.begin(), items.end());
  if (!input.is(Type::text)) return interpreter.make_list(std::move(items));
  Text reversed;
  for (const Value& letter : items) reversed.append(letter.as_text());
  return interpreter.make_text(std::move(reversed));
}

// `path` is a name, a number, or several with dots; a value without it gives undefined.
Result<Value> attribute_of(Interpreter& interpreter, const Value& object, const Value& path) {
  if (path.to_integer()) return interpreter.get_item(object, path);
  if (!path.is(Type::text)) return fault("an attribute is named by a text or a number");
  Value value = object;
  std::string_view rest = path.bytes();
  while (true) {
    const std::size_t dot = std::min(rest.find('.'), rest.size());
    const std::string part(rest.substr(0, dot));
    const bool is_index =
        !part.empty() && part.size() < 10 && part.find_first_not_of("0123456789") == part.npos;
    NIBBLE_ASSIGN(value, interpreter.get_item(
                             value, is_index ? Value::integer(std::stoll(part)) : Value::trusted(part)));
    if (dot == rest.size()) return value;
    rest.remove_prefix(dot + 1);
  }
}

Result<Value> filter_join(Interpreter& interpreter, const Value& input, const Arguments& arguments) {
  NIBBLE_ASSIGN(const Bound bound, Bound::bind("join", arguments, {"d", "attribute"}));
  NIBBLE_ASSIGN(const std::vector<Value> items, interpreter.iterate(input));
  Text separator;
  if (bound[0] != nullptr) {
    NIBBLE_ASSIGN(separator, interpreter.text_of(*bound[0]));
  }
  Text joined;
  for (std::size_t i = 0; i < items.size(); ++i) {
    Value item = items[i];
    if (bound[1] != nullptr && !bound[1]->is(Type::none)) {
      NIBBLE_ASSIGN(item, attribute_of(interpreter, item, *bound[1]));
    }
    NIBBLE_ASSIGN(const Text text, interpreter.text_of(item));
    NIBBLE_RETURN_IF_ERROR(interpreter.spend(separator.size() / 8 + 1));
    if (i > 0) joined.append(separator);
    joined.append(text);
  }
  return interpreter.make_text(std::move(joined));
}

Result<Value> filter_map(Interpreter& interpreter, const Value& input, const Arguments& arguments) {
  if (!input.truthy()) return interpreter.make_list({});  // None too, as jinja2 has it
  NIBBLE_ASSIGN(const std::vector<Value> items, interpreter.iterate(input));
  std::vector<Value> mapped;
  if (arguments.positional.empty()) {
    NIBBLE_ASSIGN(const Bound bound, Bound::bind("map", arguments, {"attribute", "default"}));
    NIBBLE_ASSIGN(const Value* attribute, bound.required(0));
    for (const Value& item : items) {
      NIBBLE_ASSIGN(Value value, attribute_of(interpreter, item, *attribute));
      const bool replaced = value.is(Type::undefined) && bound[1] != nullptr && !bound[1]->is(Type::none);
      mapped.push_back(replaced ? *bound[1] : value);
    }
    return interpreter.make_list(std::move(mapped));
  }
  const Value& name = arguments.positional[0];
  const Filter* filter = name.is(Type::text) ? find_filter(name.bytes()) : nullptr;
  if (filter == nullptr) return fault("map: there is no filter " + repr(name) + " here");
  const Arguments rest{{arguments.positional.begin() + 1, arguments.positional.end()}, arguments.named};
  for (const Value& item : items) {
    NIBBLE_RETURN_IF_ERROR(interpreter.spend(1));
    NIBBLE_ASSIGN(Value value, filter->apply(interpreter, item, rest));
    mapped.push_back(std::move(value));
  }
  return interpreter.make_list(std::move(mapped));
}

// select, reject, selectattr and rejectattr: the items for which a test says `wanted`.
template <bool wanted, bool by_attribute>
Result<Value> filter_select(Interpreter& interpreter, const Value& input, const Arguments& arguments) {
  if (!input.truthy()) return interpreter.make_list({});
  NIBBLE_ASSIGN(const std::vector<Value> items, interpreter.iterate(input));
  const auto& given = arguments.positional;
  const std::size_t at = by_attribute ? 1 : 0;
  if (by_attribute && given.empty()) return fault("selectattr and rejectattr need an attribute's name");
  const Test* test = nullptr;
  Arguments rest;
  if (given.size() > at) {
    test = given[at].is(Type::text) ? find_test(given[at].bytes()) : nullptr;
    if (test == nullptr) return fault("select: there is no test " + repr(given[at]) + " here");
    rest = {{given.begin() + static_cast<std::ptrdiff_t>(at) + 1, given.end()}, arguments.named};
  }
  std::vector<Value> chosen;
  for (const Value& item : items) {
    NIBBLE_RETURN_IF_ERROR(interpreter.spend(1));
    Value subject = item;
    if (by_attribute) {
      NIBBLE_ASSIGN(subject, attribute_of(interpreter, item, given[0]));
    }
    bool holds = subject.truthy();
    if (test != nullptr) {
      NIBBLE_ASSIGN(holds, test->apply(interpreter, subject, rest));
    }
    if (holds == wanted) chosen.push_back(item);
  }
  return interpreter.make_list(std::move(chosen));
}

Value without_case(const Value& value) {
  if (!value.is(Type::text)) return value;
  return Value::text(change_case(value.as_text(), Case::lower));
}

// Sorts items by keys; a stable sort whose comparison may find that two keys have no order.
Status sort_by(Interpreter& interpreter, std::vector<std::pair<Value, Value>>& keyed, bool reverse) {
  std::size_t weight = 0;
  for (const auto& entry : keyed) weight += entry.first.extent().weight;
  NIBBLE_RETURN_IF_ERROR(interpreter.spend(weight * 2 + keyed.size() * 8));
  bool ordered = true;
  const auto less = [&](const Value& a, const Value& b) {
    const auto compared = order(a, b);
    ordered = ordered && compared.has_value();
    return compared.value_or(0) < 0;
  };
  std::stable_sort(keyed.begin(), keyed.end(), [&](const auto& a, const auto& b) {
    return reverse ? less(b.first, a.first) : less(a.first, b.first);
  });
  if (!ordered) return fault("sort: values of different types have no order");
  return {};
}

Result<Value> sorted_items(Interpreter& interpreter, std::vector<std::pair<Value, Value>> keyed,
                           bool reverse) {
  NIBBLE_RETURN_IF_ERROR(sort_by(interpreter, keyed, reverse));
  std::vector<Value> items;
  items.reserve(keyed.size());
  for (auto& entry : keyed) items.push_back(std::move(entry.second));
  return interpreter.make_list(std::move(items));
}

Result<Value> filter_sort(Interpreter& interpreter, const Value& input, const Arguments& arguments) {
  NIBBLE_ASSIGN(const Bound bound,
                Bound::bind("sort", arguments, {"reverse", "case_sensitive", "attribute"}));
  NIBBLE_ASSIGN(std::vector<Value> items, interpreter.iterate(input));
  std::vector<std::pair<Value, Value>> keyed;
  for (Value& item : items) {
    Value key = item;
    if (bound[2] != nullptr && !bound[2]->is(Type::none)) {
      NIBBLE_ASSIGN(key, attribute_of(interpreter, item, *bound[2]));
    }
    if (!bound.truthy(1, false)) key = without_case(key);
    keyed.emplace_back(std::move(key), std::move(item));
  }
  return sorted_items(interpreter, std::move(keyed), bound.truthy(0, false));
}

Result<Value> filter_dictsort(Interpreter& interpreter, const Value& input, const Arguments& arguments) {
  NIBBLE_ASSIGN(const Bound bound, Bound::bind("dictsort", arguments, {"case_sensitive", "by", "reverse"}));
  if (!input.is(Type::dict)) return fault("dictsort needs a mapping, not " + std::string(input.type_name()));
  NIBBLE_ASSIGN(const Text* by, bound.text(1));
  const bool by_value = by != nullptr && by->bytes() == "value";
  std::vector<std::pair<Value, Value>> keyed;
  for (const auto& [key, value] : input.as_dict().entries) {
    NIBBLE_ASSIGN(Value pair, interpreter.make_list({key, value}, true));
    const Value& subject = by_value ? value : key;
    keyed.emplace_back(bound.truthy(0, false) ? subject : without_case(subject), std::move(pair));
  }
  return sorted_items(interpreter, std::move(keyed), bound.truthy(2, false));
}

Result<Value> filter_unique(Interpreter& interpreter, const Value& input, const Arguments& arguments) {
  NIBBLE_ASSIGN(const Bound bound, Bound::bind("unique", arguments, {"case_sensitive", "attribute"}));
  NIBBLE_ASSIGN(const std::vector<Value> items, interpreter.iterate(input));
  std::vector<Value> seen, kept;
  for (const Value& item : items) {
    Value key = item;
    if (bound[1] != nullptr && !bound[1]->is(Type::none)) {
      NIBBLE_ASSIGN(key, attribute_of(interpreter, item, *bound[1]));
    }
    if (!bound.truthy(0, false)) key = without_case(key);
    if (key.is(Type::dict) || (key.is(Type::list) && !key.as_list().tuple)) {
      return fault("unique: a " + std::string(key.type_name()) + " cannot be looked up");
    }
    NIBBLE_RETURN_IF_ERROR(interpreter.spend(seen.size() + 1));
    if (std::ranges::any_of(seen, [&](const Value& other) { return equal(other, key); })) continue;
    seen.push_back(std::move(key));
    kept.push_back(item);
  }
  return interpreter.make_list(std::move(kept));
}

template <bool largest>
Result<Value> filter_extreme(Interpreter& interpreter, const Value& input, const Arguments& arguments) {
  NIBBLE_ASSIGN([[maybe_unused]] const Bound bound, Bound::bind("min", arguments, {}));
  NIBBLE_ASSIGN(const std::vector<Value> items, interpreter.iterate(input));
  if (items.empty()) return Value::undefined("the sequence is empty");
  const Value* best = &items[0];
  for (const Value& item : items) {
    const auto compared = order(without_case(item), without_case(*best));
    if (!compared) return fault("min and max: values of different types have no order");
    if (largest ? *compared > 0 : *compared < 0) best = &item;
  }
  return *best;
}

constexpr Filter kFilters[] = {
    {"abs", filter_abs},
    {"capitalize", filter_case<Case::capitalize>},
    {"count", filter_length},
    {"d", filter_default},
    {"default", filter_default},
    {"dictsort", filter_dictsort},
    {"first", filter_first},
    {"float", filter_float},
    {"format", filter_format},
    {"indent", filter_indent},
    {"int", filter_int},
    {"items", filter_items},
    {"join", filter_join},
    {"last", filter_last},
    {"length", filter_length},
    {"list", filter_list},
    {"lower", filter_case<Case::lower>},
    {"map", filter_map},
    {"max", filter_extreme<true>},
    {"min", filter_extreme<false>},
    {"reject", filter_select<false, false>},
    {"rejectattr", filter_select<false, true>},
    {"replace", filter_replace},
    {"reverse", filter_reverse},
    {"safe", filter_safe},
    {"select", filter_select<true, false>},
    {"selectattr", filter_select<true, true>},
    {"sort", filter_sort},
    {"string", filter_string},
    {"title", filter_case<Case::title_filter>},
    {"tojson", filter_tojson},
    {"trim", filter_trim},
    {"unique", filter_unique},
    {"upper", filter_case<Case::upper>},
};

}  // namespace

const Filter* find_filter(std::string_view name) {
  for (const Filter& filter : kFilters) {
    if (filter.name == name) return &filter;
  }
  return nullptr;
}

}  // namespace nibble::jinja
