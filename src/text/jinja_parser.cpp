#include "text/jinja_parser.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <span>

#include "text/jinja_filters.h"
#include "text/jinja_lexer.h"

namespace nibble::jinja {
namespace {

constexpr int kMaxHeight = 200;           // of an expression's tree
constexpr int kMaxExpressionDepth = 200;  // of the parser's own recursion inside one expression
constexpr int kMaxBlockDepth = 50;

using Kind = Expr::Kind;
using Operator = Expr::Operator;

struct Spelling {
  std::string_view text;
  Operator op;
};
constexpr std::array<Spelling, 6> kComparisons = {{{"==", Operator::equal},
                                                   {"!=", Operator::not_equal},
                                                   {"<", Operator::less},
                                                   {"<=", Operator::less_equal},
                                                   {">", Operator::greater},
                                                   {">=", Operator::greater_equal}}};
constexpr std::array<Spelling, 2> kSums = {{{"+", Operator::add}, {"-", Operator::subtract}}};
constexpr std::array<Spelling, 4> kProducts = {{{"*", Operator::multiply},
                                                {"/", Operator::divide},
                                                {"//", Operator::floor_divide},
                                                {"%", Operator::modulo}}};
constexpr std::array<Spelling, 1> kPowers = {{{"**", Operator::power}}};

class Parser {
 public:
  explicit Parser(std::vector<Token> tokens) : tokens_(std::move(tokens)) {}

  Result<Template> run() {
    std::string_view ended_by;
    NIBBLE_ASSIGN(parsed_.body, block({}, ended_by));
    return std::move(parsed_);
  }

 private:
  // --- Tokens

  const Token& current() const { return tokens_[next_]; }
  const Token& after() const { return tokens_[std::min(next_ + 1, tokens_.size() - 1)]; }
  int line() const { return current().line; }
  void skip() {
    if (next_ + 1 < tokens_.size()) ++next_;
  }
  bool is_symbol(std::string_view text) const {
    return current().kind == Token::Kind::symbol && current().text == text;
  }
  bool is_name(std::string_view text) const {
    return current().kind == Token::Kind::name && current().text == text;
  }
  bool skip_symbol(std::string_view text) {
    if (!is_symbol(text)) return false;
    skip();
    return true;
  }
  bool skip_name(std::string_view text) {
    if (!is_name(text)) return false;
    skip();
    return true;
  }

  static std::string describe(const Token& token) {
    switch (token.kind) {
      case Token::Kind::variable_end: return "'}}'";
      case Token::Kind::block_end: return "'%}'";
      case Token::Kind::end: return "the end of the template";
      case Token::Kind::string: return "a string";
      default: return "'" + token.text + "'";
    }
  }
  Status fault(std::string what) const { return template_fault(line(), std::move(what)); }
  Status expected(std::string_view what) const {
    return fault("expected " + std::string(what) + ", not " + describe(current()));
  }
  Status expect_symbol(std::string_view text) {
    if (!skip_symbol(text)) return expected("'" + std::string(text) + "'");
    return {};
  }
  Result<std::string> expect_name(std::string_view what) {
    if (current().kind != Token::Kind::name) return expected(what);
    std::string name = current().text;
    skip();
    return name;
  }

  Symbol intern(const std::string& name) {
    return parsed_.symbols.try_emplace(name, static_cast<Symbol>(parsed_.symbols.size())).first->second;
  }

  // --- Expressions

  ExprPtr make(Kind kind, int at_line) const {
    auto node = std::make_unique<Expr>();
    node->kind = kind;
    node->line = at_line;
    return node;
  }
  ExprPtr constant(Value value) const {
    auto node = make(Kind::constant, line());
    node->value = std::move(value);
    return node;
  }
  void add(Expr& node, ExprPtr child) const {
    if (child) node.height = std::max(node.height, child->height + 1);
    node.args.push_back(std::move(child));
  }
  Result<ExprPtr> checked(ExprPtr node) const {
    if (node->height > kMaxHeight)
      return template_fault(node->line, "the expression is too long or nests too deeply");
    return node;
  }

  // Bounds the parser's recursion; every cycle through the grammar passes one of these.
  class Deeper {
   public:
    explicit Deeper(int& depth) : depth_(++depth) {}
    ~Deeper() { --depth_; }
    Deeper(const Deeper&) = delete;
    Deeper& operator=(const Deeper&) = delete;

   private:
    int& depth_;
  };

  Result<ExprPtr> expression() {
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

  Result<ExprPtr> or_expression() {
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

  Result<ExprPtr> and_expression() {
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

  Result<ExprPtr> not_expression() {
    if (!is_name("not")) return comparison();
    const Deeper deeper(depth_);
    if (depth_ > kMaxExpressionDepth) return fault("the expression nests too deeply");
    auto node = make(Kind::not_, line());
    skip();
    NIBBLE_ASSIGN(ExprPtr operand, not_expression());
    add(*node, std::move(operand));
    return checked(std::move(node));
  }

  std::optional<Operator> find_operator(std::span<const Spelling> spellings) const {
    if (current().kind != Token::Kind::symbol) return std::nullopt;
    for (const Spelling& spelling : spellings) {
      if (current().text == spelling.text) return spelling.op;
    }
    return std::nullopt;
  }

  Result<ExprPtr> comparison() {
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

  using Rule = Result<ExprPtr> (Parser::*)();

  // Operands of `rule` joined by left-associative operators.
  Result<ExprPtr> binary(Rule rule, std::span<const Spelling> spellings) {
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

  Result<ExprPtr> sum() { return binary(&Parser::concatenation, kSums); }
  Result<ExprPtr> product() { return binary(&Parser::power, kProducts); }
  Result<ExprPtr> power() { return binary(&Parser::filtered_unary, kPowers); }
  Result<ExprPtr> filtered_unary() { return unary(true); }

  Result<ExprPtr> concatenation() {
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

  Result<ExprPtr> unary(bool with_filters) {
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

  Result<ExprPtr> primary() {
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

  Result<ExprPtr> name_or_literal() {
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

  bool at_tuple_end(std::string_view end_name) const {
    return current().kind == Token::Kind::variable_end || current().kind == Token::Kind::block_end ||
           is_symbol(")") || (!end_name.empty() && is_name(end_name));
  }

  // An expression, or several with commas: a tuple.
  Result<ExprPtr> tuple(bool parenthesized, bool with_conditional, std::string_view end_name = {}) {
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

  Result<ExprPtr> list() {
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

  Result<ExprPtr> dict() {
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

  Result<ExprPtr> postfix(ExprPtr node) {
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

  Result<ExprPtr> filters_and_tests(ExprPtr node) {
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

  Result<ExprPtr> attribute(ExprPtr object) {
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

  Result<ExprPtr> subscript(ExprPtr object) {
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

  Status arguments(Expr& node) {
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

  Result<ExprPtr> call(ExprPtr callee) {
    auto node = make(Kind::call, line());
    add(*node, std::move(callee));
    NIBBLE_RETURN_IF_ERROR(arguments(*node));
    return checked(std::move(node));
  }

  // At '|', or at the name of the first filter of a block (`node` is null then).
  Result<ExprPtr> filter(ExprPtr node) {
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

  Result<ExprPtr> test(ExprPtr node) {
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

  // A test's only argument may stand without parentheses: x is divisibleby 3.
  bool begins_argument() const {
    switch (current().kind) {
      case Token::Kind::name: return !is_name("else") && !is_name("or") && !is_name("and");
      case Token::Kind::string:
      case Token::Kind::integer:
      case Token::Kind::real: return true;
      default: return is_symbol("(") || is_symbol("[") || is_symbol("{");
    }
  }

  // --- Statements

  Status end_tag() {
    if (current().kind != Token::Kind::block_end) return expected("'%}'");
    skip();
    return {};
  }

  // Statements up to a tag of one of `ends`, whose name is taken and told. No ends: up to the template's end.
  Result<Block> block(std::span<const std::string_view> ends, std::string_view& ended_by) {
    if (++block_depth_ > kMaxBlockDepth) return fault("blocks nest too deeply");
    Block body;
    while (true) {
      switch (current().kind) {
        case Token::Kind::data: {
          Statement data;
          data.line = line();
          data.text = Text::from_template(current().text);
          skip();
          body.push_back(std::move(data));
          continue;
        }
        case Token::Kind::variable_begin: {
          Statement output;
          output.kind = Statement::Kind::output;
          output.line = line();
          skip();
          NIBBLE_ASSIGN(ExprPtr value, tuple(false, true));
          output.expressions.push_back(std::move(value));
          if (current().kind != Token::Kind::variable_end) return expected("'}}'");
          skip();
          body.push_back(std::move(output));
          continue;
        }
        case Token::Kind::block_begin: {
          skip();
          for (const std::string_view end : ends) {
            if (!is_name(end)) continue;
            skip();
            ended_by = end;
            --block_depth_;
            return body;
          }
          NIBBLE_ASSIGN(Statement parsed, statement());
          NIBBLE_RETURN_IF_ERROR(end_tag());
          body.push_back(std::move(parsed));
          continue;
        }
        default: break;
      }
      if (!ends.empty()) return expected("'{% " + std::string(ends.back()) + " %}'");
      --block_depth_;
      return body;
    }
  }

  // The body between this tag and {% end %}; leaves the closing '%}' to the caller.
  Result<Block> body_until(std::string_view end) {
    NIBBLE_RETURN_IF_ERROR(end_tag());
    std::string_view ended_by;
    return block({&end, 1}, ended_by);
  }

  Result<Statement> statement() {
    using Parse = Status (Parser::*)(Statement&);
    struct Tag {
      std::string_view name;
      Parse parse;
    };
    static constexpr std::array<Tag, 10> kTags = {{{"if", &Parser::parse_if},
                                                   {"for", &Parser::parse_for},
                                                   {"set", &Parser::parse_set},
                                                   {"macro", &Parser::parse_macro},
                                                   {"call", &Parser::parse_call_block},
                                                   {"filter", &Parser::parse_filter_block},
                                                   {"with", &Parser::parse_with},
                                                   {"generation", &Parser::parse_generation},
                                                   {"break", &Parser::parse_break},
                                                   {"continue", &Parser::parse_continue}}};
    Statement parsed;
    parsed.line = line();
    NIBBLE_ASSIGN(const std::string name, expect_name("a tag's name"));
    for (const Tag& tag : kTags) {
      if (tag.name != name) continue;
      NIBBLE_RETURN_IF_ERROR((this->*tag.parse)(parsed));
      return parsed;
    }
    return template_fault(parsed.line, "there is no tag '" + name + "' here");
  }

  Status parse_if(Statement& parsed) {
    parsed.kind = Statement::Kind::if_;
    static constexpr std::array<std::string_view, 3> kAfterIf = {"elif", "else", "endif"};
    static constexpr std::array<std::string_view, 1> kAfterElse = {"endif"};
    std::string_view ended_by = "elif";
    while (ended_by == "elif") {
      NIBBLE_ASSIGN(ExprPtr condition, tuple(false, false));
      parsed.expressions.push_back(std::move(condition));
      NIBBLE_RETURN_IF_ERROR(end_tag());
      ++branch_depth_;
      NIBBLE_ASSIGN(Block body, block(kAfterIf, ended_by));
      --branch_depth_;
      parsed.blocks.push_back(std::move(body));
    }
    if (ended_by == "else") {
      NIBBLE_RETURN_IF_ERROR(end_tag());
      ++branch_depth_;
      NIBBLE_ASSIGN(Block body, block(kAfterElse, ended_by));
      --branch_depth_;
      parsed.blocks.push_back(std::move(body));
    }
    return {};
  }

  Status parse_for(Statement& parsed) {
    parsed.kind = Statement::Kind::for_;
    NIBBLE_ASSIGN(parsed.target, target(false));
    if (!skip_name("in")) return expected("'in'");
    NIBBLE_ASSIGN(ExprPtr items, tuple(false, false, "recursive"));
    parsed.expressions.push_back(std::move(items));
    ExprPtr condition;
    if (skip_name("if")) {
      NIBBLE_ASSIGN(condition, expression());
    }
    parsed.expressions.push_back(std::move(condition));
    if (is_name("recursive")) return fault("a recursive loop is not supported");
    NIBBLE_RETURN_IF_ERROR(end_tag());
    static constexpr std::array<std::string_view, 2> kEnds = {"else", "endfor"};
    static constexpr std::array<std::string_view, 1> kAfterElse = {"endfor"};
    std::string_view ended_by;
    ++loop_depth_;
    NIBBLE_ASSIGN(Block body, block(kEnds, ended_by));
    --loop_depth_;
    parsed.blocks.push_back(std::move(body));
    if (ended_by == "else") {
      NIBBLE_RETURN_IF_ERROR(end_tag());
      NIBBLE_ASSIGN(Block otherwise, block(kAfterElse, ended_by));
      parsed.blocks.push_back(std::move(otherwise));
    }
    return {};
  }

  // A name, name.attribute (of a namespace), or names with commas.
  Result<Target> target(bool with_attribute) {
    Target whole;
    whole.is_tuple = true;
    bool comma = false;
    while (true) {
      if (!whole.parts.empty()) {
        if (!skip_symbol(",")) break;
        comma = true;
      }
      if (is_name("in") || is_symbol("=") || is_symbol(")") || current().kind == Token::Kind::block_end)
        break;
      NIBBLE_ASSIGN(Target part, target_part(with_attribute));
      whole.parts.push_back(std::move(part));
    }
    if (whole.parts.empty()) return expected("a name to assign to");
    if (!comma) return Target(std::move(whole.parts[0]));
    return whole;
  }

  Result<Target> target_part(bool with_attribute) {
    if (skip_symbol("(")) {
      const Deeper deeper(depth_);
      if (depth_ > kMaxExpressionDepth) return fault("the assignment nests too deeply");
      NIBBLE_ASSIGN(Target nested, target(with_attribute));
      NIBBLE_RETURN_IF_ERROR(expect_symbol(")"));
      return nested;
    }
    Target part;
    NIBBLE_ASSIGN(part.name, expect_name("a name to assign to"));
    static constexpr std::array<std::string_view, 6> kConstants = {"true", "false", "none",
                                                                   "True", "False", "None"};
    if (std::find(kConstants.begin(), kConstants.end(), part.name) != kConstants.end()) {
      return fault("'" + part.name + "' cannot be assigned to");
    }
    part.symbol = intern(part.name);
    if (with_attribute && skip_symbol(".")) {
      NIBBLE_ASSIGN(part.attribute, expect_name("the name of an attribute"));
    }
    return part;
  }

  Status parse_set(Statement& parsed) {
    NIBBLE_ASSIGN(parsed.target, target(true));
    ExprPtr value;
    if (skip_symbol("=")) {
      parsed.kind = Statement::Kind::set;
      NIBBLE_ASSIGN(value, tuple(false, true));
      parsed.expressions.push_back(std::move(value));
      return {};
    }
    parsed.kind = Statement::Kind::set_block;
    if (is_symbol("|")) {
      NIBBLE_ASSIGN(value, filter(nullptr));
    }
    parsed.expressions.push_back(std::move(value));
    NIBBLE_ASSIGN(Block body, body_until("endset"));
    parsed.blocks.push_back(std::move(body));
    return {};
  }

  Result<std::vector<Parameter>> parameters() {
    std::vector<Parameter> list;
    NIBBLE_RETURN_IF_ERROR(expect_symbol("("));
    while (!is_symbol(")")) {
      if (!list.empty()) NIBBLE_RETURN_IF_ERROR(expect_symbol(","));
      Parameter parameter;
      NIBBLE_ASSIGN(parameter.name, expect_name("a parameter's name"));
      parameter.symbol = intern(parameter.name);
      if (skip_symbol("=")) {
        NIBBLE_ASSIGN(parameter.fallback, expression());
      } else if (!list.empty() && list.back().fallback) {
        return fault("a parameter without a default follows one with a default");
      }
      list.push_back(std::move(parameter));
    }
    skip();
    return list;
  }

  // `break` and `continue` belong to a loop inside of the macro.
  Result<Block> macro_body(std::string_view end) {
    const int loops = std::exchange(loop_depth_, 0);
    NIBBLE_ASSIGN(Block body, body_until(end));
    loop_depth_ = loops;
    return body;
  }

  Status parse_macro(Statement& parsed) {
    parsed.kind = Statement::Kind::macro;
    auto macro = std::make_shared<MacroDefinition>();
    NIBBLE_ASSIGN(macro->name, expect_name("the macro's name"));
    macro->symbol = intern(macro->name);
    NIBBLE_ASSIGN(macro->parameters, parameters());
    NIBBLE_ASSIGN(macro->body, macro_body("endmacro"));
    parsed.macro = std::move(macro);
    return {};
  }

  Status parse_call_block(Statement& parsed) {
    parsed.kind = Statement::Kind::call_block;
    auto caller = std::make_shared<MacroDefinition>();
    caller->name = "caller";
    caller->symbol = intern("caller");
    if (is_symbol("(")) {
      NIBBLE_ASSIGN(caller->parameters, parameters());
    }
    NIBBLE_ASSIGN(ExprPtr value, expression());
    if (value->kind != Kind::call) return fault("expected a call");
    parsed.expressions.push_back(std::move(value));
    NIBBLE_ASSIGN(caller->body, macro_body("endcall"));
    parsed.macro = std::move(caller);
    return {};
  }

  Status parse_filter_block(Statement& parsed) {
    parsed.kind = Statement::Kind::filter_block;
    NIBBLE_ASSIGN(ExprPtr value, filter(nullptr));
    parsed.expressions.push_back(std::move(value));
    NIBBLE_ASSIGN(Block body, body_until("endfilter"));
    parsed.blocks.push_back(std::move(body));
    return {};
  }

  Status parse_with(Statement& parsed) {
    parsed.kind = Statement::Kind::with;
    while (current().kind != Token::Kind::block_end) {
      if (!parsed.bindings.empty()) NIBBLE_RETURN_IF_ERROR(expect_symbol(","));
      NIBBLE_ASSIGN(Target bound, target_part(false));
      NIBBLE_RETURN_IF_ERROR(expect_symbol("="));
      NIBBLE_ASSIGN(ExprPtr value, expression());
      parsed.bindings.emplace_back(std::move(bound), std::move(value));
    }
    NIBBLE_ASSIGN(Block body, body_until("endwith"));
    parsed.blocks.push_back(std::move(body));
    return {};
  }

  // transformers' own tag: it marks what the assistant wrote, for training, and prints its body.
  Status parse_generation(Statement& parsed) {
    parsed.kind = Statement::Kind::scope;
    NIBBLE_ASSIGN(Block body, body_until("endgeneration"));
    parsed.blocks.push_back(std::move(body));
    return {};
  }

  Status parse_break(Statement& parsed) {
    parsed.kind = Statement::Kind::break_;
    if (loop_depth_ == 0) return fault("'break' outside of a loop");
    return {};
  }
  Status parse_continue(Statement& parsed) {
    parsed.kind = Statement::Kind::continue_;
    if (loop_depth_ == 0) return fault("'continue' outside of a loop");
    return {};
  }

  std::vector<Token> tokens_;
  std::size_t next_ = 0;
  int depth_ = 0;
  int block_depth_ = 0;
  int loop_depth_ = 0;
  int branch_depth_ = 0;  // in an 'if' an unknown filter or test fails when it is reached, as with jinja2
  Template parsed_;
};

}  // namespace

Result<Template> parse_template(std::string_view source) {
  NIBBLE_ASSIGN(std::vector<Token> tokens, tokenize(source));
  return Parser(std::move(tokens)).run();
}

}  // namespace nibble::jinja
