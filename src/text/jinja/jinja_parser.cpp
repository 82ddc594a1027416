#include "text/jinja/jinja_parser.h"

#include <array>

#include "text/jinja/jinja_expression_parser.h"

namespace nibble::jinja {
namespace {

constexpr int kMaxBlockDepth = 50;

class Parser : private ExpressionParser {
 public:
  explicit Parser(std::vector<Token> tokens) : ExpressionParser(std::move(tokens)) {}

  Result<Template> run() {
    std::string_view ended_by;
    NIBBLE_ASSIGN(parsed_.body, block({}, ended_by));
    return std::move(parsed_);
  }

 private:
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
    NIBBLE_ASSIGN(Block body, captured_body("endset"));
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

  // A body whose output is a value: `break` and `continue` belong to a loop inside of it.
  Result<Block> captured_body(std::string_view end) {
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
    NIBBLE_ASSIGN(macro->body, captured_body("endmacro"));
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
    if (value->kind != Expr::Kind::call) return fault("expected a call");
    parsed.expressions.push_back(std::move(value));
    NIBBLE_ASSIGN(caller->body, captured_body("endcall"));
    parsed.macro = std::move(caller);
    return {};
  }

  Status parse_filter_block(Statement& parsed) {
    parsed.kind = Statement::Kind::filter_block;
    NIBBLE_ASSIGN(ExprPtr value, filter(nullptr));
    parsed.expressions.push_back(std::move(value));
    NIBBLE_ASSIGN(Block body, captured_body("endfilter"));
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

  int block_depth_ = 0;
  int loop_depth_ = 0;
};

}  // namespace

Result<Template> parse_template(std::string_view source) {
  NIBBLE_ASSIGN(std::vector<Token> tokens, tokenize(source));
  return Parser(std::move(tokens)).run();
}

}  // namespace nibble::jinja
