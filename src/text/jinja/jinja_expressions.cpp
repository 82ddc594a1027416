// Expressions: what Python would make of them, or a fault.
#include <algorithm>
#include <cmath>

#include "text/jinja/jinja_filters.h"
#include "text/jinja/jinja_interpreter.h"

namespace nibble::jinja {

using Kind = Expr::Kind;
using Operator = Expr::Operator;

Result<Value> Interpreter::evaluate(const Expr& expr, Frame& frame) {
  if (level_ >= settings_.max_depth) return resource_exhausted("the template nests its calls too deeply");
  NIBBLE_RETURN_IF_ERROR(spend(1));
  ++level_;
  auto value = evaluate_node(expr, frame);
  --level_;
  if (value.ok()) return value;
  return located(value.status(), expr.line);
}

Result<Value> Interpreter::evaluate_node(const Expr& expr, Frame& frame) {
  switch (expr.kind) {
    case Kind::constant: return expr.value;
    case Kind::name: return look_up(expr, frame);
    case Kind::list:
    case Kind::tuple: {
      NIBBLE_ASSIGN(std::vector<Value> items, evaluate_all(expr.args, 0, frame));
      return make_list(std::move(items), expr.kind == Kind::tuple);
    }
    case Kind::dict: return evaluate_dict(expr, frame);
    case Kind::attribute: {
      NIBBLE_ASSIGN(const Value object, evaluate(*expr.args[0], frame));
      return get_attribute(object, expr.text);
    }
    case Kind::item: {
      NIBBLE_ASSIGN(const Value object, evaluate(*expr.args[0], frame));
      NIBBLE_ASSIGN(const Value key, evaluate(*expr.args[1], frame));
      return get_item(object, key);
    }
    case Kind::slice: return evaluate_slice(expr, frame);
    case Kind::call: {
      NIBBLE_ASSIGN(const Value callee, evaluate(*expr.args[0], frame));
      NIBBLE_ASSIGN(Arguments arguments, evaluate_arguments(expr, frame));
      return call(callee, std::move(arguments));
    }
    case Kind::filter: return evaluate_filter(expr, nullptr, frame);
    case Kind::test: {
      if (expr.test == nullptr) return fault("there is no test '" + expr.text + "' here");
      NIBBLE_ASSIGN(const Value input, evaluate(*expr.args[0], frame));
      NIBBLE_ASSIGN(const Arguments arguments, evaluate_arguments(expr, frame));
      NIBBLE_ASSIGN(const bool holds, expr.test->apply(*this, input, arguments));
      return Value::boolean(holds);
    }
    case Kind::negate:
    case Kind::plus: {
      NIBBLE_ASSIGN(const Value operand, evaluate(*expr.args[0], frame));
      return negate(operand, expr.kind == Kind::negate);
    }
    case Kind::not_: {
      NIBBLE_ASSIGN(const Value operand, evaluate(*expr.args[0], frame));
      return Value::boolean(!operand.truthy());
    }
    case Kind::and_:
    case Kind::or_: {
      NIBBLE_ASSIGN(Value left, evaluate(*expr.args[0], frame));
      if (left.truthy() == (expr.kind == Kind::or_)) return left;
      return evaluate(*expr.args[1], frame);
    }
    case Kind::conditional: {
      NIBBLE_ASSIGN(const Value condition, evaluate(*expr.args[1], frame));
      if (condition.truthy()) return evaluate(*expr.args[0], frame);
      if (expr.args[2]) return evaluate(*expr.args[2], frame);
      return Value::undefined("an inline 'if' without 'else' was false");
    }
    case Kind::concat: {
      NIBBLE_ASSIGN(const std::vector<Value> operands, evaluate_all(expr.args, 0, frame));
      Text joined;
      for (const Value& operand : operands) {
        NIBBLE_ASSIGN(const Text text, text_of(operand));
        joined.append(text);
      }
      return make_text(std::move(joined));
    }
    case Kind::compare: return evaluate_compare(expr, frame);
    case Kind::binary: {
      NIBBLE_ASSIGN(const Value left, evaluate(*expr.args[0], frame));
      NIBBLE_ASSIGN(const Value right, evaluate(*expr.args[1], frame));
      return arithmetic(expr.operators[0], left, right);
    }
  }
  return fault("unknown expression");
}

Result<Value> Interpreter::look_up(const Expr& expr, const Frame& frame) const {
  for (const Frame* outer = &frame; outer != nullptr; outer = outer->parent) {
    for (const auto& [symbol, value] : outer->variables) {
      if (symbol == expr.symbol) return value;
    }
  }
  return Value::undefined("'" + expr.text + "' is undefined");
}

Result<std::vector<Value>> Interpreter::evaluate_all(const std::vector<ExprPtr>& args, std::size_t from,
                                                     Frame& frame) {
  std::vector<Value> values;
  values.reserve(args.size() - from);
  for (std::size_t i = from; i < args.size(); ++i) {
    NIBBLE_ASSIGN(Value value, evaluate(*args[i], frame));
    values.push_back(std::move(value));
  }
  return values;
}

Result<Arguments> Interpreter::evaluate_arguments(const Expr& expr, Frame& frame) {
  Arguments arguments;
  NIBBLE_ASSIGN(arguments.positional, evaluate_all(expr.args, 1, frame));
  for (const auto& [name, argument] : expr.keywords) {
    NIBBLE_ASSIGN(Value value, evaluate(*argument, frame));
    arguments.named.emplace_back(name, std::move(value));
  }
  return arguments;
}

Result<Value> Interpreter::evaluate_dict(const Expr& expr, Frame& frame) {
  Dict dict;
  for (std::size_t i = 0; i < expr.args.size(); i += 2) {
    NIBBLE_ASSIGN(Value key, evaluate(*expr.args[i], frame));
    NIBBLE_ASSIGN(Value value, evaluate(*expr.args[i + 1], frame));
    if (key.is(Type::dict) || (key.is(Type::list) && !key.as_list().tuple)) {
      return fault("a " + std::string(key.type_name()) + " cannot be a key");
    }
    NIBBLE_RETURN_IF_ERROR(spend(dict.entries.size() / 8));
    dict.set(std::move(key), std::move(value));
  }
  return make_dict(std::move(dict));
}

// `input` is given where the filter's chain begins with a block's text.
Result<Value> Interpreter::evaluate_filter(const Expr& expr, const Value* input, Frame& frame) {
  if (expr.filter == nullptr) return fault("there is no filter '" + expr.text + "' here");
  Value value;
  if (!expr.args[0]) {
    value = *input;
  } else if (input != nullptr) {
    NIBBLE_ASSIGN(value, evaluate_filter(*expr.args[0], input, frame));
  } else {
    NIBBLE_ASSIGN(value, evaluate(*expr.args[0], frame));
  }
  NIBBLE_ASSIGN(const Arguments arguments, evaluate_arguments(expr, frame));
  return expr.filter->apply(*this, value, arguments);
}

Result<Text> Interpreter::text_of(const Value& value) {
  NIBBLE_RETURN_IF_ERROR(spend(value.extent().weight));
  return to_text(value);
}

// --- Attributes and items

namespace {

std::string object_name(const Value& object) { return "'" + std::string(object.type_name()) + " object'"; }

std::string no_attribute(const Value& object, std::string_view name) {
  return object_name(object) + " has no attribute '" + std::string(name) + "'";
}

std::optional<Value> loop_attribute(const Loop& loop, std::string_view name) {
  const auto count = static_cast<std::int64_t>(loop.items.size());
  const auto index = static_cast<std::int64_t>(loop.index);
  if (name == "index") return Value::integer(index + 1);
  if (name == "index0") return Value::integer(index);
  if (name == "revindex") return Value::integer(count - index);
  if (name == "revindex0") return Value::integer(count - index - 1);
  if (name == "first") return Value::boolean(index == 0);
  if (name == "last") return Value::boolean(index + 1 == count);
  if (name == "length") return Value::integer(count);
  if (name == "depth") return Value::integer(1);  // more than 1 only in a recursive loop
  if (name == "depth0") return Value::integer(0);
  if (name == "previtem") {
    return index > 0 ? loop.items[loop.index - 1] : Value::undefined("there is no previous item");
  }
  if (name == "nextitem") {
    return index + 1 < count ? loop.items[loop.index + 1] : Value::undefined("there is no next item");
  }
  return std::nullopt;
}

}  // namespace

Result<Value> Interpreter::get_attribute(const Value& object, const std::string& name) {
  // Python looks for a dict's method before its item: message.items is never a key.
  if (has_method(object, name)) return Value::of(std::make_shared<const Method>(Method{object, name}));
  switch (object.type()) {
    case Type::undefined: return fault(object.undefined_what());
    case Type::dict: {
      NIBBLE_RETURN_IF_ERROR(spend(object.as_dict().entries.size() / 8));
      static constexpr std::string_view kMutating[] = {"clear", "pop", "popitem", "setdefault", "update"};
      if (std::find(std::begin(kMutating), std::end(kMutating), name) != std::end(kMutating)) {
        return Value::undefined("'" + name + "' would change a dict, which a chat template may not");
      }
      if (const Value* item = object.as_dict().find(name)) return *item;
      break;
    }
    case Type::namespace_:
      if (const Value* item = object.as_namespace().attributes.find(name)) return *item;
      break;
    case Type::loop:
      if (auto attribute = loop_attribute(object.as_loop(), name)) return *attribute;
      break;
    default: break;
  }
  return Value::undefined(no_attribute(object, name));
}

Result<Value> Interpreter::get_item(const Value& object, const Value& key) {
  switch (object.type()) {
    case Type::undefined: return fault(object.undefined_what());
    case Type::dict:
      NIBBLE_RETURN_IF_ERROR(spend(object.as_dict().entries.size() / 8));
      if (const Value* item = object.as_dict().find(key)) return *item;
      break;
    case Type::list:
    case Type::text: {
      const auto index = key.to_integer();
      if (!index) break;
      if (object.is(Type::list)) {
        const auto& items = object.as_list().items;
        const auto count = static_cast<std::int64_t>(items.size());
        const std::int64_t at = *index < 0 ? *index + count : *index;
        if (at >= 0 && at < count) return items[static_cast<std::size_t>(at)];
      } else {
        const Text& text = object.as_text();
        NIBBLE_RETURN_IF_ERROR(spend(text.size() / 8));
        const auto count = static_cast<std::int64_t>(count_code_points(text.bytes()));
        const std::int64_t at = *index < 0 ? *index + count : *index;
        if (at >= 0 && at < count) {
          const std::size_t begin = code_point_offset(text.bytes(), static_cast<std::size_t>(at));
          return make_text(text.slice(begin, begin + code_point_at(text.bytes(), begin).length));
        }
      }
      return Value::undefined(object_name(object) + " has no element " + std::to_string(*index));
    }
    default: break;
  }
  if (key.is(Type::text) && !object.is(Type::dict)) return get_attribute(object, key.bytes());
  if (key.is(Type::text) && has_method(object, key.bytes())) return get_attribute(object, key.bytes());
  return Value::undefined(no_attribute(object, key.is(Type::text) ? key.bytes() : repr(key)));
}

Result<std::vector<std::size_t>> slice_indices(const Value& begin, const Value& end, const Value& step,
                                               std::size_t length) {
  const auto bound = [](const Value& value) -> Result<std::optional<std::int64_t>> {
    if (value.is(Type::none)) return std::optional<std::int64_t>();
    if (const auto number = value.to_integer()) return std::optional<std::int64_t>(*number);
    return fault("a slice's bound is " + std::string(value.type_name()) + ", not an integer");
  };
  NIBBLE_ASSIGN(const auto given_begin, bound(begin));
  NIBBLE_ASSIGN(const auto given_end, bound(end));
  NIBBLE_ASSIGN(const auto given_step, bound(step));
  const std::int64_t stride = given_step.value_or(1);
  if (stride == 0) return fault("a slice has a step of 0");
  const auto count = static_cast<std::int64_t>(length);
  const std::int64_t lowest = stride > 0 ? 0 : -1;
  const std::int64_t highest = stride > 0 ? count : count - 1;
  const auto clamp = [&](std::optional<std::int64_t> at, std::int64_t fallback) {
    if (!at) return fallback;
    return std::clamp(*at < 0 ? std::max(*at, -count - 1) + count : *at, lowest, highest);
  };
  std::int64_t at = clamp(given_begin, stride > 0 ? lowest : highest);
  const std::int64_t stop = clamp(given_end, stride > 0 ? highest : lowest);
  std::vector<std::size_t> indices;
  while (stride > 0 ? at < stop : at > stop) {
    indices.push_back(static_cast<std::size_t>(at));
    if (__builtin_add_overflow(at, stride, &at)) break;
  }
  return indices;
}

Result<Value> Interpreter::evaluate_slice(const Expr& expr, Frame& frame) {
  NIBBLE_ASSIGN(const Value object, evaluate(*expr.args[0], frame));
  Value bounds[3] = {Value::none(), Value::none(), Value::none()};
  for (std::size_t i = 0; i < 3; ++i) {
    if (!expr.args[i + 1]) continue;
    NIBBLE_ASSIGN(bounds[i], evaluate(*expr.args[i + 1], frame));
  }
  if (object.is(Type::undefined)) return fault(object.undefined_what());
  if (object.is(Type::list)) {
    const List& list = object.as_list();
    NIBBLE_ASSIGN(const auto indices, slice_indices(bounds[0], bounds[1], bounds[2], list.items.size()));
    std::vector<Value> items;
    items.reserve(indices.size());
    for (const std::size_t i : indices) items.push_back(list.items[i]);
    return make_list(std::move(items), list.tuple);
  }
  if (!object.is(Type::text))
    return Value::undefined("a " + std::string(object.type_name()) + " cannot be sliced");
  const Text& text = object.as_text();
  NIBBLE_RETURN_IF_ERROR(spend(text.size()));
  std::vector<std::size_t> offsets;  // of the code points, and the end
  for (std::size_t at = 0; at < text.size();) {
    offsets.push_back(at);
    at += code_point_at(text.bytes(), at).length;
  }
  offsets.push_back(text.size());
  NIBBLE_ASSIGN(const auto indices, slice_indices(bounds[0], bounds[1], bounds[2], offsets.size() - 1));
  if (indices.empty()) return make_text(text.slice(0, 0));
  const bool contiguous = indices.back() - indices.front() + 1 == indices.size();
  if (contiguous) return make_text(text.slice(offsets[indices.front()], offsets[indices.back() + 1]));
  Text picked;
  for (const std::size_t i : indices) picked.append_slice(text, offsets[i], offsets[i + 1]);
  return make_text(std::move(picked));
}

Result<std::vector<Value>> Interpreter::iterate(const Value& value) {
  switch (value.type()) {
    case Type::undefined: return std::vector<Value>();
    case Type::list: return value.as_list().items;
    case Type::dict: {
      std::vector<Value> keys;
      keys.reserve(value.as_dict().entries.size());
      for (const auto& entry : value.as_dict().entries) keys.push_back(entry.first);
      return keys;
    }
    case Type::text: {
      const Text& text = value.as_text();
      NIBBLE_RETURN_IF_ERROR(spend(text.size()));
      std::vector<Value> letters;
      for (std::size_t at = 0; at < text.size();) {
        const std::size_t length = code_point_at(text.bytes(), at).length;
        letters.push_back(Value::text(text.slice(at, at + length)));
        at += length;
      }
      return letters;
    }
    default: return fault("a value of type " + std::string(value.type_name()) + " cannot be iterated over");
  }
}

// --- Operators

Result<bool> Interpreter::contains(const Value& container, const Value& item) {
  NIBBLE_RETURN_IF_ERROR(spend(container.extent().weight / 8));
  switch (container.type()) {
    case Type::text:
      if (!item.is(Type::text)) {
        return fault("'in' a text needs a text, not " + std::string(item.type_name()));
      }
      NIBBLE_RETURN_IF_ERROR(spend_on_search(container.bytes().size(), item.bytes().size()));
      return container.bytes().find(item.bytes()) != std::string::npos;
    case Type::list:
      NIBBLE_RETURN_IF_ERROR(spend(container.as_list().items.size()));
      for (const Value& element : container.as_list().items) {
        if (equal(element, item)) return true;
      }
      return false;
    case Type::dict: return container.as_dict().find(item) != nullptr;
    case Type::undefined: return false;
    default: return fault("'in' needs a list, mapping or text, not " + std::string(container.type_name()));
  }
}

Result<bool> Interpreter::compare(Operator op, const Value& left, const Value& right) {
  NIBBLE_RETURN_IF_ERROR(spend(std::min(left.extent().weight, right.extent().weight)));
  if (left.is(Type::dict) && right.is(Type::dict)) {  // keys in another order are looked up one by one
    NIBBLE_RETURN_IF_ERROR(spend(left.as_dict().entries.size() * right.as_dict().entries.size() / 64));
  }
  switch (op) {
    case Operator::equal: return equal(left, right);
    case Operator::not_equal: return !equal(left, right);
    case Operator::in: return contains(right, left);
    case Operator::not_in: {
      NIBBLE_ASSIGN(const bool found, contains(right, left));
      return !found;
    }
    default: break;
  }
  if (left.is(Type::undefined)) return fault(left.undefined_what());
  if (right.is(Type::undefined)) return fault(right.undefined_what());
  const auto ordered = order(left, right);
  if (!ordered) {
    return fault(std::string(left.type_name()) + " and " + std::string(right.type_name()) + " have no order");
  }
  // A NaN is in no order with anything.
  const auto is_nan = [](const Value& v) { return v.is(Type::real) && std::isnan(v.as_real()); };
  if (is_nan(left) || is_nan(right)) return false;
  switch (op) {
    case Operator::less: return *ordered < 0;
    case Operator::less_equal: return *ordered <= 0;
    case Operator::greater: return *ordered > 0;
    default: return *ordered >= 0;
  }
}

Result<Value> Interpreter::evaluate_compare(const Expr& expr, Frame& frame) {
  NIBBLE_ASSIGN(Value left, evaluate(*expr.args[0], frame));
  for (std::size_t i = 0; i < expr.operators.size(); ++i) {
    NIBBLE_ASSIGN(Value right, evaluate(*expr.args[i + 1], frame));
    NIBBLE_ASSIGN(const bool holds, compare(expr.operators[i], left, right));
    if (!holds) return Value::boolean(false);
    left = std::move(right);
  }
  return Value::boolean(true);
}

Result<Value> Interpreter::negate(const Value& value, bool minus) {
  if (value.is(Type::undefined)) return fault(value.undefined_what());
  if (const auto number = value.to_integer()) {
    if (*number == INT64_MIN) return fault("a number is too large");
    return Value::integer(minus ? -*number : *number);
  }
  if (value.is(Type::real)) return Value::real(minus ? -value.as_real() : value.as_real());
  return fault("'-' and '+' need a number, not " + std::string(value.type_name()));
}

Result<Value> Interpreter::integer_arithmetic(Operator op, std::int64_t left, std::int64_t right) {
  std::int64_t result = 0;
  bool overflow = false;
  switch (op) {
    case Operator::add: overflow = __builtin_add_overflow(left, right, &result); break;
    case Operator::subtract: overflow = __builtin_sub_overflow(left, right, &result); break;
    case Operator::multiply: overflow = __builtin_mul_overflow(left, right, &result); break;
    case Operator::floor_divide:
    case Operator::modulo: {
      if (right == 0) return fault("division by zero");
      if (right == -1) {  // INT64_MIN / -1 does not exist
        if (op == Operator::modulo) return Value::integer(0);
        overflow = __builtin_sub_overflow(std::int64_t{0}, left, &result);
        break;
      }
      std::int64_t remainder = left % right;
      const bool round_down = remainder != 0 && (remainder < 0) != (right < 0);
      result =
          op == Operator::modulo ? remainder + (round_down ? right : 0) : left / right - (round_down ? 1 : 0);
      break;
    }
    default: {  // power, of a non-negative exponent
      result = 1;
      for (std::int64_t i = 0; i < right && !overflow; ++i) {
        if (left == 0 || left == 1 || (left == -1)) {
          result = left == -1 && right % 2 == 0 ? 1 : left;
          break;
        }
        overflow = __builtin_mul_overflow(result, left, &result);
      }
    }
  }
  if (overflow) return fault("a number is too large");
  return Value::integer(result);
}

Result<Value> Interpreter::repeat(const Value& sequence, std::int64_t times) {
  const auto count = static_cast<std::size_t>(std::max<std::int64_t>(times, 0));
  if (sequence.is(Type::text)) {
    const Text& text = sequence.as_text();
    if (count > 0 && text.size() > settings_.max_text_bytes / count) {
      return resource_exhausted("a text grows beyond " + std::to_string(settings_.max_text_bytes) + " bytes");
    }
    NIBBLE_RETURN_IF_ERROR(spend(text.empty() ? 0 : count));
    Text repeated;
    for (std::size_t i = 0; i < count && !text.empty(); ++i) repeated.append(text);
    return make_text(std::move(repeated));
  }
  const List& list = sequence.as_list();
  if (count > 0 && list.items.size() > settings_.max_steps / count) {
    return resource_exhausted("a list grows too long");
  }
  NIBBLE_RETURN_IF_ERROR(spend(list.items.size() * count));
  std::vector<Value> items;
  for (std::size_t i = 0; i < count && !list.items.empty(); ++i) {
    items.insert(items.end(), list.items.begin(), list.items.end());
  }
  return make_list(std::move(items), list.tuple);
}

namespace {

std::string_view spelling(Operator op) {
  switch (op) {
    case Operator::add: return "+";
    case Operator::subtract: return "-";
    case Operator::multiply: return "*";
    case Operator::divide: return "/";
    case Operator::floor_divide: return "//";
    case Operator::modulo: return "%";
    default: return "**";
  }
}

Result<Value> real_arithmetic(Operator op, double left, double right) {
  switch (op) {
    case Operator::add: return Value::real(left + right);
    case Operator::subtract: return Value::real(left - right);
    case Operator::multiply: return Value::real(left * right);
    case Operator::power: {
      const double power = std::pow(left, right);
      if (std::isnan(power) || std::isinf(power)) return fault("'**' has no real result");
      return Value::real(power);
    }
    default: break;
  }
  if (right == 0) return fault("division by zero");
  if (op == Operator::divide) return Value::real(left / right);
  // As CPython: the remainder has the divisor's sign, zeros included, and the quotient agrees with it.
  double remainder = std::fmod(left, right);
  double quotient = (left - remainder) / right;
  if (remainder == 0) {
    remainder = std::copysign(0.0, right);
  } else if ((right < 0) != (remainder < 0)) {
    remainder += right;
    quotient -= 1;
  }
  if (op == Operator::modulo) return Value::real(remainder);
  if (quotient == 0) return Value::real(std::copysign(0.0, left / right));
  const double floored = std::floor(quotient);
  return Value::real(quotient - floored > 0.5 ? floored + 1 : floored);
}

}  // namespace

Result<Value> Interpreter::arithmetic(Operator op, const Value& left, const Value& right) {
  if (left.is(Type::undefined)) return fault(left.undefined_what());
  if (right.is(Type::undefined) && !(left.is(Type::text) && op == Operator::modulo)) {
    return fault(right.undefined_what());
  }
  const auto left_integer = left.to_integer();
  const auto right_integer = right.to_integer();
  if (left_integer && right_integer && op != Operator::divide &&
      !(op == Operator::power && *right_integer < 0)) {
    return integer_arithmetic(op, *left_integer, *right_integer);
  }
  if (left.is_number() && right.is_number()) return real_arithmetic(op, *left.to_real(), *right.to_real());
  if (op == Operator::add && left.is(Type::text) && right.is(Type::text)) {
    Text joined = left.as_text();
    joined.append(right.as_text());
    return make_text(std::move(joined));
  }
  if (op == Operator::add && left.is(Type::list) && right.is(Type::list) &&
      left.as_list().tuple == right.as_list().tuple) {
    std::vector<Value> items = left.as_list().items;
    items.insert(items.end(), right.as_list().items.begin(), right.as_list().items.end());
    return make_list(std::move(items), left.as_list().tuple);
  }
  const auto is_sequence = [](const Value& v) { return v.is(Type::text) || v.is(Type::list); };
  if (op == Operator::multiply && is_sequence(left) && right_integer) return repeat(left, *right_integer);
  if (op == Operator::multiply && is_sequence(right) && left_integer) return repeat(right, *left_integer);
  if (op == Operator::modulo && left.is(Type::text)) {
    const bool several = right.is(Type::list) && right.as_list().tuple;
    return percent_format(*this, left.as_text(), several ? right.as_list().items : std::vector<Value>{right});
  }
  return fault("'" + std::string(spelling(op)) + "' does not go with " + std::string(left.type_name()) +
               " and " + std::string(right.type_name()));
}

}  // namespace nibble::jinja
