#include "text/jinja/jinja_expression_parser.h"

#include <charconv>

#include "text/jinja/jinja_filters.h"

namespace nibble::jinja {

using Kind = Expr::Kind;
using Operator = Expr::Operator;

constexpr int kMaxHeight = 200;  // of an expression's tree

const ExpressionParser::Spelling ExpressionParser::kComparisons[6] = {
    {"==", Operator::equal},      {"!=", Operator::not_equal}, {"<", Operator::less},
    {"<=", Operator::less_equal}, {">", Operator::greater},    {">=", Operator::greater_equal}};
const ExpressionParser::Spelling ExpressionParser::kSums[2] = {{"+", Operator::add},
                                                               {"-", Operator::subtract}};
const ExpressionParser::Spelling ExpressionParser::kProducts[4] = {{"*", Operator::multiply},
                                                                   {"/", Operator::divide},
                                                                   {"//", Operator::floor_divide},
                                                                   {"%", Operator::modulo}};
const ExpressionParser::Spelling ExpressionParser::kPowers[1] = {{"**", Operator::power}};

ExprPtr ExpressionParser::make(Kind kind, int at_line) const {
  auto node = std::make_unique<Expr>();
  node->kind = kind;
  node->line = at_line;
  return node;
}

ExprPtr ExpressionParser::constant(Value value) const {
  auto node = make(Kind::constant, line());
  node->value = std::move(value);
  return node;
}

void ExpressionParser::add(Expr& node, ExprPtr child) const {
  if (child) node.height = std::max(node.height, child->height + 1);
  node.args.push_back(std::move(child));
}

Result<ExprPtr> ExpressionParser::checked(ExprPtr node) const {
  if (node->height > kMaxHeight)
    return template_fault(node->line, "the expression is too long or nests too deeply");
  return node;
}

Result<ExprPtr> ExpressionParser::expression() {
  const Deeper deeper(depth_);
  if (depth_ > kMaxExpressionDepth) return fault("the expression nests too deeply");
  NIBBLE_ASSIGN(ExprPtr node, or_expression());
  while (is_name("if")) {
    auto conditional = make(Kind::conditional, line());
    skip();
    NIBBLE_ASSIGN(ExprPtr condition, or_expression());
    ExprPtr otherwise;
    if (skip_name("else")) {
      NIBBLE_ASSIGN(otherwise, expression());
    }
    add(*conditional, std::move(node));
    add(*conditional, std::move(condition));
    add(*conditional, std::move(otherwise));
    NIBBLE_ASSIGN(node, checked(std::move(conditional)));
  }
  return node;
}

Result<ExprPtr> ExpressionParser::or_expression() {
  NIBBLE_ASSIGN(ExprPtr left, and_expression());
  while (is_name("or")) {
    auto node = make(Kind::or_, line());
    skip();
    NIBBLE_ASSIGN(ExprPtr right, and_expression());
    add(*node, std::move(left));
    add(*node, std::move(right));
    NIBBLE_ASSIGN(left, checked(std::move(node)));
  }
  return left;
}

Result<ExprPtr> ExpressionParser::and_expression() {
  NIBBLE_ASSIGN(ExprPtr left, not_expression());
  while (is_name("and")) {
    auto node = make(Kind::and_, line());
    skip();
    NIBBLE_ASSIGN(ExprPtr right, not_expression());
    add(*node, std::move(left));
    add(*node, std::move(right));
    NIBBLE_ASSIGN(left, checked(std::move(node)));
  }
  return left;
}

Result<ExprPtr> ExpressionParser::not_expression() {
  if (!is_name("not")) return comparison();
  const Deeper deeper(depth_);
  if (depth_ > kMaxExpressionDepth) return fault("the expression nests too deeply");
  auto node = make(Kind::not_, line());
  skip();
  NIBBLE_ASSIGN(ExprPtr operand, not_expression());
  add(*node, std::move(operand));
  return checked(std::move(node));
}

std::optional<Operator> ExpressionParser::find_operator(std::span<const Spelling> spellings) const {
  if (current().kind != Token::Kind::symbol) return std::nullopt;
  for (const Spelling& spelling : spellings) {
    if (current().text == spelling.text) return spelling.op;
  }
  return std::nullopt;
}

Result<ExprPtr> ExpressionParser::comparison() {
  NIBBLE_ASSIGN(ExprPtr first, sum());
  auto node = make(Kind::compare, line());
  add(*node, std::move(first));
  while (true) {
    if (const auto op = find_operator(kComparisons)) {
      node->operators.push_back(*op);
      skip();
    } else if (is_name("in")) {
      node->operators.push_back(Operator::in);
      skip();
    } else if (is_name("not") && after().kind == Token::Kind::name && after().text == "in") {
      node->operators.push_back(Operator::not_in);
      skip();
      skip();
    } else {
      break;
    }
    NIBBLE_ASSIGN(ExprPtr operand, sum());
    add(*node, std::move(operand));
  }
  if (node->operators.empty()) return std::move(node->args[0]);
  return checked(std::move(node));
}

Result<ExprPtr> ExpressionParser::binary(Rule rule, std::span<const Spelling> spellings) {
  NIBBLE_ASSIGN(ExprPtr left, (this->*rule)());
  while (const auto op = find_operator(spellings)) {
    auto node = make(Kind::binary, line());
    node->operators.push_back(*op);
    skip();
    NIBBLE_ASSIGN(ExprPtr right, (this->*rule)());
    add(*node, std::move(left));
    add(*node, std::move(right));
    NIBBLE_ASSIGN(left, checked(std::move(node)));
  }
  return left;
}

Result<ExprPtr> ExpressionParser::sum() { return binary(&ExpressionParser::concatenation, kSums); }

Result<ExprPtr> ExpressionParser::product() { return binary(&ExpressionParser::power, kProducts); }

Result<ExprPtr> ExpressionParser::power() { return binary(&ExpressionParser::filtered_unary, kPowers); }

Result<ExprPtr> ExpressionParser::filtered_unary() { return unary(true); }

Result<ExprPtr> ExpressionParser::concatenation() {
  NIBBLE_ASSIGN(ExprPtr first, product());
  if (!is_symbol("~")) return first;
  auto node = make(Kind::concat, line());
  add(*node, std::move(first));
  while (skip_symbol("~")) {
    NIBBLE_ASSIGN(ExprPtr operand, product());
    add(*node, std::move(operand));
  }
  return checked(std::move(node));
}

Result<ExprPtr> ExpressionParser::unary(bool with_filters) {
  const Deeper deeper(depth_);
  if (depth_ > kMaxExpressionDepth) return fault("the expression nests too deeply");
  ExprPtr node;
  if (is_symbol("-") || is_symbol("+")) {
    node = make(is_symbol("-") ? Kind::negate : Kind::plus, line());
    skip();
    NIBBLE_ASSIGN(ExprPtr operand, unary(false));
    add(*node, std::move(operand));
  } else {
    NIBBLE_ASSIGN(node, primary());
  }
  NIBBLE_ASSIGN(node, postfix(std::move(node)));
  if (with_filters) return filters_and_tests(std::move(node));
  return checked(std::move(node));
}

Result<ExprPtr> ExpressionParser::primary() {
  const Token& token = current();
  switch (token.kind) {
    case Token::Kind::name: return name_or_literal();
    case Token::Kind::string: {
      std::string joined;  // neighbouring strings are one
      const int at_line = line();
      while (current().kind == Token::Kind::string) {
        joined += current().text;
        skip();
      }
      auto node = make(Kind::constant, at_line);
      node->value = Value::trusted(std::move(joined));
      return node;
    }
    case Token::Kind::integer: {
      std::int64_t number = 0;
      const auto parsed = std::from_chars(token.text.data(), token.text.data() + token.text.size(), number);
      if (parsed.ec != std::errc()) return fault("the number " + token.text + " is too large");
      auto node = constant(Value::integer(number));
      skip();
      return node;
    }
    case Token::Kind::real: {
      double number = 0;
      std::from_chars(token.text.data(), token.text.data() + token.text.size(), number);
      auto node = constant(Value::real(number));
      skip();
      return node;
    }
    default: break;
  }
  if (skip_symbol("(")) {
    NIBBLE_ASSIGN(ExprPtr node, tuple(true, true));
    NIBBLE_RETURN_IF_ERROR(expect_symbol(")"));
    return node;
  }
  if (is_symbol("[")) return list();
  if (is_symbol("{")) return dict();
  return fault("unexpected " + describe(token));
}

Result<ExprPtr> ExpressionParser::name_or_literal() {
  const std::string name = current().text;
  ExprPtr node;
  if (name == "true" || name == "True" || name == "false" || name == "False") {
    node = constant(Value::boolean(name[0] == 't' || name[0] == 'T'));
  } else if (name == "none" || name == "None") {
    node = constant(Value::none());
  } else {
    node = make(Kind::name, line());
    node->symbol = intern(name);
    node->text = name;
  }
  skip();
  return node;
}

bool ExpressionParser::at_tuple_end(std::string_view end_name) const {
  return current().kind == Token::Kind::variable_end || current().kind == Token::Kind::block_end ||
         is_symbol(")") || (!end_name.empty() && is_name(end_name));
}

Result<ExprPtr> ExpressionParser::tuple(bool parenthesized, bool with_conditional,
                                        std::string_view end_name) {
  auto node = make(Kind::tuple, line());
  bool is_tuple = false;
  while (true) {
    if (!node->args.empty()) NIBBLE_RETURN_IF_ERROR(expect_symbol(","));
    if (at_tuple_end(end_name)) break;
    NIBBLE_ASSIGN(ExprPtr item, with_conditional ? expression() : or_expression());
    add(*node, std::move(item));
    if (!is_symbol(",")) break;
    is_tuple = true;
  }
  if (!is_tuple && !node->args.empty()) return std::move(node->args[0]);
  if (!is_tuple && !parenthesized) return expected("an expression");
  return checked(std::move(node));
}

Result<ExprPtr> ExpressionParser::list() {
  auto node = make(Kind::list, line());
  skip();
  while (!is_symbol("]")) {
    if (!node->args.empty()) {
      NIBBLE_RETURN_IF_ERROR(expect_symbol(","));
      if (is_symbol("]")) break;
    }
    NIBBLE_ASSIGN(ExprPtr item, expression());
    add(*node, std::move(item));
  }
  skip();
  return checked(std::move(node));
}

Result<ExprPtr> ExpressionParser::dict() {
  auto node = make(Kind::dict, line());
  skip();
  while (!is_symbol("}")) {
    if (!node->args.empty()) {
      NIBBLE_RETURN_IF_ERROR(expect_symbol(","));
      if (is_symbol("}")) break;
    }
    NIBBLE_ASSIGN(ExprPtr key, expression());
    NIBBLE_RETURN_IF_ERROR(expect_symbol(":"));
    NIBBLE_ASSIGN(ExprPtr value, expression());
    add(*node, std::move(key));
    add(*node, std::move(value));
  }
  skip();
  return checked(std::move(node));
}

Result<ExprPtr> ExpressionParser::postfix(ExprPtr node) {
  while (true) {
    if (is_symbol(".")) {
      NIBBLE_ASSIGN(node, attribute(std::move(node)));
    } else if (is_symbol("[")) {
      NIBBLE_ASSIGN(node, subscript(std::move(node)));
    } else if (is_symbol("(")) {
      NIBBLE_ASSIGN(node, call(std::move(node)));
    } else {
      return node;
    }
  }
}

Result<ExprPtr> ExpressionParser::filters_and_tests(ExprPtr node) {
  while (true) {
    if (is_symbol("|")) {
      NIBBLE_ASSIGN(node, filter(std::move(node)));
    } else if (is_name("is")) {
      NIBBLE_ASSIGN(node, test(std::move(node)));
    } else if (is_symbol("(")) {
      NIBBLE_ASSIGN(node, call(std::move(node)));
    } else {
      return checked(std::move(node));
    }
  }
}

Result<ExprPtr> ExpressionParser::attribute(ExprPtr object) {
  auto node = make(Kind::attribute, line());
  skip();
  add(*node, std::move(object));
  if (current().kind == Token::Kind::integer) {
    node->kind = Kind::item;
    NIBBLE_ASSIGN(ExprPtr index, primary());
    add(*node, std::move(index));
  } else {
    NIBBLE_ASSIGN(node->text, expect_name("a name or number after '.'"));
  }
  return checked(std::move(node));
}

Result<ExprPtr> ExpressionParser::subscript(ExprPtr object) {
  auto node = make(Kind::item, line());
  skip();
  add(*node, std::move(object));
  ExprPtr first;
  if (!is_symbol(":")) {
    NIBBLE_ASSIGN(first, expression());
  }
  add(*node, std::move(first));
  if (is_symbol(":")) {
    node->kind = Kind::slice;
    for (int part = 0; part < 2; ++part) {
      ExprPtr bound;
      if (skip_symbol(":") && !is_symbol(":") && !is_symbol("]")) {
        NIBBLE_ASSIGN(bound, expression());
      }
      add(*node, std::move(bound));
    }
  }
  if (is_symbol(",")) return fault("an index of several parts is not supported");
  NIBBLE_RETURN_IF_ERROR(expect_symbol("]"));
  return checked(std::move(node));
}

Status ExpressionParser::arguments(Expr& node) {
  NIBBLE_RETURN_IF_ERROR(expect_symbol("("));
  bool comma = false;
  while (!is_symbol(")")) {
    if (comma) {
      NIBBLE_RETURN_IF_ERROR(expect_symbol(","));
      if (is_symbol(")")) break;
    }
    comma = true;
    if (is_symbol("*") || is_symbol("**")) return fault("'*' and '**' arguments are not supported");
    if (current().kind == Token::Kind::name && after().kind == Token::Kind::symbol && after().text == "=") {
      std::string name = current().text;
      skip();
      skip();
      NIBBLE_ASSIGN(ExprPtr value, expression());
      node.height = std::max(node.height, value->height + 1);
      node.keywords.emplace_back(std::move(name), std::move(value));
      continue;
    }
    if (!node.keywords.empty()) return fault("an argument without a name follows one with a name");
    NIBBLE_ASSIGN(ExprPtr value, expression());
    add(node, std::move(value));
  }
  skip();
  return {};
}

Result<ExprPtr> ExpressionParser::call(ExprPtr callee) {
  auto node = make(Kind::call, line());
  add(*node, std::move(callee));
  NIBBLE_RETURN_IF_ERROR(arguments(*node));
  return checked(std::move(node));
}

Result<ExprPtr> ExpressionParser::filter(ExprPtr node) {
  bool first = node == nullptr;
  while (first || is_symbol("|")) {
    if (is_symbol("|")) skip();
    first = false;
    auto filtered = make(Kind::filter, line());
    NIBBLE_ASSIGN(filtered->text, expect_name("a filter's name"));
    filtered->filter = find_filter(filtered->text);
    if (filtered->filter == nullptr && branch_depth_ == 0) {
      return template_fault(filtered->line, "there is no filter '" + filtered->text + "' here");
    }
    add(*filtered, std::move(node));
    if (is_symbol("(")) NIBBLE_RETURN_IF_ERROR(arguments(*filtered));
    NIBBLE_ASSIGN(node, checked(std::move(filtered)));
  }
  return node;
}

Result<ExprPtr> ExpressionParser::test(ExprPtr node) {
  auto tested = make(Kind::test, line());
  skip();
  const bool negated = skip_name("not");
  NIBBLE_ASSIGN(tested->text, expect_name("a test's name"));
  tested->test = find_test(tested->text);
  if (tested->test == nullptr && branch_depth_ == 0) {
    return template_fault(tested->line, "there is no test '" + tested->text + "' here");
  }
  add(*tested, std::move(node));
  if (is_symbol("(")) {
    NIBBLE_RETURN_IF_ERROR(arguments(*tested));
  } else if (begins_argument()) {
    if (is_name("is")) return fault("tests cannot be chained with 'is'");
    NIBBLE_ASSIGN(ExprPtr argument, primary());
    NIBBLE_ASSIGN(argument, postfix(std::move(argument)));
    add(*tested, std::move(argument));
  }
  if (!negated) return checked(std::move(tested));
  auto inverted = make(Kind::not_, tested->line);
  add(*inverted, std::move(tested));
  return checked(std::move(inverted));
}

bool ExpressionParser::begins_argument() const {
  switch (current().kind) {
    case Token::Kind::name: return !is_name("else") && !is_name("or") && !is_name("and");
    case Token::Kind::string:
    case Token::Kind::integer:
    case Token::Kind::real: return true;
    default: return is_symbol("(") || is_symbol("[") || is_symbol("{");
  }
}

}  // namespace nibble::jinja
