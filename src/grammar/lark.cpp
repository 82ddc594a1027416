// Grammars in the manner of Lark: start: item ("," item)*, terminals in capitals, "text"i, /pattern/,
// [optional], x~2..3, comments behind //. All blanks count: %ignore and %import are refused.
#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "grammar/grammar_data.h"
#include "grammar/grammar_text.h"
#include "grammar/pattern.h"

namespace nibble {
namespace {

bool is_name(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
}

class LarkParser : GrammarText {
 public:
  LarkParser(std::string_view text, const CompileLimits& limits) : GrammarText(text, limits) {}

  Result<Symbols> parse() {
    const CompileClock clock(limits_);
    blanks(true);
    while (at_ < text_.size()) {
      NIBBLE_RETURN_IF_ERROR(clock.check());
      if (text_[at_] == '%') return wrong("a rule: %ignore, %import and other directives are not supported");
      if (text_[at_] == '?' || text_[at_] == '!') ++at_;  // about trees, which are not made here
      const std::string_view name = read_name();
      if (name.empty()) return wrong("a rule's name such as start");
      if (take(".")) read_name();  // a priority: every way of reading a text is followed
      blanks(false);
      if (!take(":")) return wrong(": behind the name of a rule");
      blanks(true);
      NIBBLE_ASSIGN(const SymbolId body, choice(0));
      NIBBLE_RETURN_IF_ERROR(rules_.define(name, body));
    }
    return rules_.finish("start", limits_);
  }

 private:
  std::string_view read_name() {
    const std::size_t begin = at_;
    while (at_ < text_.size() && is_name(text_[at_])) ++at_;
    return text_.substr(begin, at_ - begin);
  }
  void blanks(bool lines) {
    while (at_ < text_.size()) {
      const char c = text_[at_];
      if (text_.substr(at_).starts_with("//")) {
        while (at_ < text_.size() && text_[at_] != '\n') ++at_;
      } else if (c == ' ' || c == '\t' || c == '\r' || (lines && c == '\n')) {
        ++at_;
      } else {
        return;
      }
    }
  }

  Result<SymbolId> choice(int depth) {
    if (depth > limits_.max_depth) return too_deep();
    std::vector<SymbolId> parts;
    while (true) {
      NIBBLE_ASSIGN(const SymbolId part, sequence(depth));
      parts.push_back(part);
      // An alternative may stand on a line of its own.
      blanks(true);
      if (!take("|")) break;
      blanks(true);
    }
    return rules_.symbols().choice(parts);
  }

  Result<SymbolId> sequence(int depth) {
    std::vector<SymbolId> parts;
    while (at_ < text_.size()) {
      const char c = text_[at_];
      SymbolId part = kNoSymbol;
      if (c == '"') {
        NIBBLE_ASSIGN(part, text_or_range());
      } else if (c == '/') {
        NIBBLE_ASSIGN(part, pattern());
      } else if (c == '(' || c == '[') {
        ++at_;
        blanks(true);
        NIBBLE_ASSIGN(part, choice(depth + 1));
        if (!take(c == '(' ? ")" : "]")) return wrong("the end of a group");
        if (c == '[') part = rules_.symbols().repeat(part, 0, 1);
      } else if (is_name(c)) {
        part = rules_.reference(read_name());
      } else if (take("->")) {
        blanks(false);
        read_name();  // an alias, about trees as well
        blanks(depth > 0);
        continue;
      } else {
        break;
      }
      NIBBLE_ASSIGN(part, quantified(part));
      blanks(depth > 0);
      parts.push_back(part);
    }
    if (at_ < text_.size() && std::string_view("|)]\n").find(text_[at_]) == std::string_view::npos)
      return wrong("a text, a pattern, a name or a group");
    return rules_.symbols().sequence(parts);
  }

  Result<SymbolId> quantified(SymbolId part) {
    Symbols& symbols = rules_.symbols();
    if (take("*")) return symbols.repeat(part, 0, kUnbounded);
    if (take("+")) return symbols.repeat(part, 1, kUnbounded);
    if (take("?")) return symbols.repeat(part, 0, 1);
    if (!take("~")) return part;
    NIBBLE_ASSIGN(const std::uint32_t least, number());
    std::uint32_t most = least;
    if (take("..")) {
      NIBBLE_ASSIGN(most, number());
    }
    if (least > most) return wrong("a repetition such as ~1..3, before this");
    return symbols.repeat(part, least, most);
  }

  // What stands between two marks, with its backslashes.
  Result<std::string_view> between(char mark) {
    const std::size_t begin = ++at_;
    while (!ended() && text_[at_] != mark && text_[at_] != '\n')
      at_ = std::min(at_ + (text_[at_] == '\\' ? 2 : 1), text_.size());
    if (ended() || text_[at_] != mark) return wrong(std::string(1, mark) + " that ends the text or pattern");
    return text_.substr(begin, at_++ - begin);
  }

  // "text", "text"i or "a".."z".
  Result<SymbolId> text_or_range() {
    NIBBLE_ASSIGN(const std::string_view inside, between('"'));
    if (take("..")) {
      if (at_ >= text_.size() || text_[at_] != '"') return wrong("the last character of a range");
      NIBBLE_ASSIGN(const std::string_view last, between('"'));
      return compiled("[" + escaped(inside, true) + "-" + escaped(last, true) + "]", take("i"), false);
    }
    return compiled(escaped(inside, false), take("i"), false);
  }

  // Plain text as a pattern: its own escapes stay, and what a pattern would read otherwise gets one.
  static std::string escaped(std::string_view text, bool in_brackets) {
    std::string out;
    for (std::size_t i = 0; i < text.size(); ++i) {
      if (text[i] == '\\' && i + 1 < text.size()) {
        const char c = text[++i];
        const bool known = std::string_view("nrtfvxu\\").find(c) != std::string_view::npos;
        out.append(known || !is_name(c) ? "\\" : "\\\\").push_back(c);
      } else {
        if (std::string_view(in_brackets ? "]^-[" : "^$.|?*+()[]{}").find(text[i]) != std::string_view::npos)
          out.push_back('\\');
        out.push_back(text[i]);
      }
    }
    return out;
  }

  Result<SymbolId> pattern() {
    NIBBLE_ASSIGN(const std::string_view inside, between('/'));
    bool ignore_case = false, all = false;
    while (at_ < text_.size() && std::string_view("imsux").find(text_[at_]) != std::string_view::npos) {
      const char flag = text_[at_];
      if (flag != 'i' && flag != 's' && flag != 'u') return wrong("the flags i, s or u");
      ignore_case |= flag == 'i';
      all |= flag == 's';
      ++at_;
    }
    return compiled(inside, ignore_case, all);
  }

  Result<SymbolId> compiled(std::string_view pattern, bool ignore_case, bool dot_is_all) {
    NIBBLE_ASSIGN(const Language language, compile_pattern(rules_.symbols().languages, pattern,
                                                           {.ignore_case = ignore_case,
                                                            .dot_is_all = dot_is_all,
                                                            .max_depth = limits_.max_depth}));
    return rules_.symbols().text(language);
  }
};

}  // namespace

Result<std::shared_ptr<const Grammar>> compile_lark(std::string_view text, const CompileLimits& limits) {
  NIBBLE_RETURN_IF_ERROR(check_grammar_text(text, limits));
  LarkParser parser(text, limits);
  NIBBLE_ASSIGN(Symbols symbols, parser.parse());
  return finish_grammar(std::move(symbols), limits);
}

}  // namespace nibble
