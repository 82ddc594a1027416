// What may stand behind `is`, and in select and reject.
#include <algorithm>

#include "text/jinja/jinja_filters.h"

namespace nibble::jinja {
namespace {

template <Type type>
Result<bool> is_type(Interpreter&, const Value& input, const Arguments&) {
  return input.is(type);
}
Result<bool> is_defined(Interpreter&, const Value& input, const Arguments&) {
  return !input.is(Type::undefined);
}
template <bool value>
Result<bool> is_boolean_value(Interpreter&, const Value& input, const Arguments&) {
  return input.is(Type::boolean) && input.as_bool() == value;
}
Result<bool> is_number(Interpreter&, const Value& input, const Arguments&) { return input.is_number(); }
Result<bool> is_sequence(Interpreter&, const Value& input, const Arguments&) {
  return input.is(Type::undefined) || input.is(Type::text) || input.is(Type::list) || input.is(Type::dict);
}
Result<bool> is_iterable(Interpreter&, const Value& input, const Arguments&) {
  return input.is(Type::undefined) || input.is(Type::text) || input.is(Type::list) || input.is(Type::dict) ||
         input.is(Type::loop);
}
Result<bool> is_callable(Interpreter&, const Value& input, const Arguments&) {
  return input.is(Type::macro) || input.is(Type::function) || input.is(Type::method);
}

Result<const Value*> other(const Arguments& arguments) {
  NIBBLE_ASSIGN(const Bound bound, Bound::bind("the test", arguments, {"other"}));
  return bound.required(0);
}

Result<bool> is_equal(Interpreter& interpreter, const Value& input, const Arguments& arguments) {
  NIBBLE_ASSIGN(const Value* right, other(arguments));
  NIBBLE_RETURN_IF_ERROR(interpreter.spend(std::min(input.extent().weight, right->extent().weight)));
  return equal(input, *right);
}
Result<bool> is_not_equal(Interpreter& interpreter, const Value& input, const Arguments& arguments) {
  NIBBLE_ASSIGN(const bool same, is_equal(interpreter, input, arguments));
  return !same;
}

enum class Wanted { less, less_equal, greater, greater_equal };
template <Wanted wanted>
Result<bool> is_ordered(Interpreter&, const Value& input, const Arguments& arguments) {
  NIBBLE_ASSIGN(const Value* right, other(arguments));
  const auto compared = order(input, *right);
  if (!compared) {
    return fault(std::string(input.type_name()) + " and " + std::string(right->type_name()) +
                 " have no order");
  }
  switch (wanted) {
    case Wanted::less: return *compared < 0;
    case Wanted::less_equal: return *compared <= 0;
    case Wanted::greater: return *compared > 0;
    default: return *compared >= 0;
  }
}

Result<bool> is_in(Interpreter& interpreter, const Value& input, const Arguments& arguments) {
  NIBBLE_ASSIGN(const Value* container, other(arguments));
  return interpreter.contains(*container, input);
}

Result<bool> is_same_as(Interpreter&, const Value& input, const Arguments& arguments) {
  NIBBLE_ASSIGN(const Value* right, other(arguments));
  return input.type() == right->type() && equal(input, *right);
}

Result<std::int64_t> remainder(const Value& input, std::int64_t divisor) {
  const auto number = input.to_integer();
  if (!number)
    return fault("odd, even and divisibleby need an integer, not " + std::string(input.type_name()));
  if (divisor == 0) return fault("division by zero");
  return divisor == -1 ? 0 : *number % divisor;
}
Result<bool> is_even(Interpreter&, const Value& input, const Arguments&) {
  NIBBLE_ASSIGN(const std::int64_t rest, remainder(input, 2));
  return rest == 0;
}
Result<bool> is_odd(Interpreter&, const Value& input, const Arguments&) {
  NIBBLE_ASSIGN(const std::int64_t rest, remainder(input, 2));
  return rest != 0;
}
Result<bool> is_divisible_by(Interpreter&, const Value& input, const Arguments& arguments) {
  NIBBLE_ASSIGN(const Value* divisor, other(arguments));
  const auto number = divisor->to_integer();
  if (!number) return fault("divisibleby needs an integer");
  NIBBLE_ASSIGN(const std::int64_t rest, remainder(input, *number));
  return rest == 0;
}

Result<bool> of_case(Interpreter& interpreter, const Value& input, std::string_view method) {
  NIBBLE_ASSIGN(const Text text, interpreter.text_of(input));
  NIBBLE_ASSIGN(const Value holds, call_method(interpreter, Value::text(text), std::string(method), {}));
  return holds.as_bool();
}
Result<bool> is_upper(Interpreter& interpreter, const Value& input, const Arguments&) {
  return of_case(interpreter, input, "isupper");
}
Result<bool> is_lower(Interpreter& interpreter, const Value& input, const Arguments&) {
  return of_case(interpreter, input, "islower");
}

constexpr Test kTests[] = {
    {"!=", is_not_equal},
    {"<", is_ordered<Wanted::less>},
    {"<=", is_ordered<Wanted::less_equal>},
    {"==", is_equal},
    {">", is_ordered<Wanted::greater>},
    {">=", is_ordered<Wanted::greater_equal>},
    {"boolean", is_type<Type::boolean>},
    {"callable", is_callable},
    {"defined", is_defined},
    {"divisibleby", is_divisible_by},
    {"eq", is_equal},
    {"equalto", is_equal},
    {"even", is_even},
    {"false", is_boolean_value<false>},
    {"float", is_type<Type::real>},
    {"ge", is_ordered<Wanted::greater_equal>},
    {"greaterthan", is_ordered<Wanted::greater>},
    {"gt", is_ordered<Wanted::greater>},
    {"in", is_in},
    {"integer", is_type<Type::integer>},
    {"iterable", is_iterable},
    {"le", is_ordered<Wanted::less_equal>},
    {"lessthan", is_ordered<Wanted::less>},
    {"lower", is_lower},
    {"lt", is_ordered<Wanted::less>},
    {"mapping", is_type<Type::dict>},
    {"ne", is_not_equal},
    {"none", is_type<Type::none>},
    {"number", is_number},
    {"odd", is_odd},
    {"sameas", is_same_as},
    {"sequence", is_sequence},
    {"string", is_type<Type::text>},
    {"true", is_boolean_value<true>},
    {"undefined", is_type<Type::undefined>},
    {"upper", is_upper},
};

}  // namespace

const Test* find_test(std::string_view name) {
  for (const Test& test : kTests) {
    if (test.name == name) return &test;
  }
  return nullptr;
}

}  // namespace nibble::jinja
