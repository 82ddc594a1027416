// The parser's cursor over the tokens, and expressions. Statements are in jinja_parser.cpp.
#pragma once

#include <algorithm>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "text/jinja/jinja_ast.h"
#include "text/jinja/jinja_lexer.h"

namespace nibble::jinja {

inline constexpr int kMaxExpressionDepth = 200;  // of the parser's own recursion inside one expression

class ExpressionParser {
 protected:
  explicit ExpressionParser(std::vector<Token> tokens) : tokens_(std::move(tokens)) {}

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

  // --- Expressions

  Result<ExprPtr> expression();
  // An expression, or several with commas: a tuple. `end_name` may follow it in place of a bracket.
  Result<ExprPtr> tuple(bool parenthesized, bool with_conditional, std::string_view end_name = {});
  // At '|', or at the name of the first filter of a block (`node` is null then).
  Result<ExprPtr> filter(ExprPtr node);

  int depth_ = 0;
  int branch_depth_ = 0;  // in an 'if' an unknown filter or test fails when it is reached, as with jinja2
  Template parsed_;

 private:
  struct Spelling {
    std::string_view text;
    Expr::Operator op;
  };
  static const Spelling kComparisons[6], kSums[2], kProducts[4], kPowers[1];

  ExprPtr make(Expr::Kind kind, int at_line) const;
  ExprPtr constant(Value value) const;
  void add(Expr& node, ExprPtr child) const;
  Result<ExprPtr> checked(ExprPtr node) const;

  // A function a rule of the grammar, loosest first.
  Result<ExprPtr> or_expression();
  Result<ExprPtr> and_expression();
  Result<ExprPtr> not_expression();
  Result<ExprPtr> comparison();
  Result<ExprPtr> sum();
  Result<ExprPtr> concatenation();
  Result<ExprPtr> product();
  Result<ExprPtr> power();
  Result<ExprPtr> filtered_unary();
  Result<ExprPtr> unary(bool with_filters);
  Result<ExprPtr> primary();
  Result<ExprPtr> name_or_literal();
  Result<ExprPtr> list();
  Result<ExprPtr> dict();
  Result<ExprPtr> postfix(ExprPtr node);
  Result<ExprPtr> filters_and_tests(ExprPtr node);
  Result<ExprPtr> attribute(ExprPtr object);
  Result<ExprPtr> subscript(ExprPtr object);
  Result<ExprPtr> call(ExprPtr callee);
  Result<ExprPtr> test(ExprPtr node);
  Status arguments(Expr& node);
  // Operands of `rule` joined by left-associative operators.
  using Rule = Result<ExprPtr> (ExpressionParser::*)();
  Result<ExprPtr> binary(Rule rule, std::span<const Spelling> spellings);
  std::optional<Expr::Operator> find_operator(std::span<const Spelling> spellings) const;
  bool at_tuple_end(std::string_view end_name) const;
  // A test's only argument may stand without parentheses: x is divisibleby 3.
  bool begins_argument() const;

  std::vector<Token> tokens_;
  std::size_t next_ = 0;
};

}  // namespace nibble::jinja
