// GBNF, the grammars of llama.cpp's users: root ::= "a" [0-9]+ (b | c)*, comments behind #, {n,m}.
#include <string>
#include <utility>
#include <vector>

#include "base/utf8.h"
#include "grammar/grammar_data.h"
#include "grammar/grammar_text.h"
#include "grammar/pattern.h"

namespace nibble {
namespace {

bool is_name(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' || c == '_';
}

class GbnfParser : GrammarText {
 public:
  GbnfParser(std::string_view text, const CompileLimits& limits) : GrammarText(text, limits) {}

  Result<Symbols> parse() {
    const CompileClock clock(limits_);
    blanks(true);
    while (at_ < text_.size()) {
      NIBBLE_RETURN_IF_ERROR(clock.check());
      const std::string_view name = read_name();
      if (name.empty()) return wrong("a rule's name such as root");
      blanks(false);
      if (!take("::=")) return wrong("::= behind the name of a rule");
      blanks(true);
      NIBBLE_ASSIGN(const SymbolId body, choice(0));
      NIBBLE_RETURN_IF_ERROR(rules_.define(name, body));
      if (at_ < text_.size() && text_[at_] != '\n' && text_[at_] != '\r') return wrong("the end of the rule");
      blanks(true);
    }
    return rules_.finish("root", limits_);
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
      if (c == '#') {
        while (at_ < text_.size() && text_[at_] != '\n' && text_[at_] != '\r') ++at_;
      } else if (c == ' ' || c == '\t' || (lines && (c == '\n' || c == '\r'))) {
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
      if (c == '"' || c == '[' || c == '.') {
        NIBBLE_ASSIGN(const Language language, terminal());
        part = rules_.symbols().text(language);
      } else if (c == '(') {
        ++at_;
        blanks(true);
        NIBBLE_ASSIGN(part, choice(depth + 1));
        if (!take(")")) return wrong(") of a group");
      } else if (is_name(c)) {
        part = rules_.reference(read_name());
      } else {
        break;
      }
      blanks(depth > 0);
      NIBBLE_ASSIGN(part, quantified(part));
      blanks(depth > 0);
      parts.push_back(part);
    }
    return rules_.symbols().sequence(parts);
  }

  Result<SymbolId> quantified(SymbolId part) {
    while (true) {
      if (take("*")) {
        part = rules_.symbols().repeat(part, 0, kUnbounded);
      } else if (take("+")) {
        part = rules_.symbols().repeat(part, 1, kUnbounded);
      } else if (take("?")) {
        part = rules_.symbols().repeat(part, 0, 1);
      } else if (take("{")) {
        NIBBLE_ASSIGN(const std::uint32_t least, number());
        std::uint32_t most = least;
        if (take(",")) {
          most = kUnbounded;
          if (at_ < text_.size() && text_[at_] != '}') {
            NIBBLE_ASSIGN(most, number());
          }
        }
        if (!take("}") || least > most) return wrong("a repetition such as {1,3}");
        part = rules_.symbols().repeat(part, least, most);
      } else {
        return part;
      }
    }
  }

  // A literal, a class or a dot, which are a pattern's with GBNF's escapes: \n, \xNN, \uNNNN, \UNNNNNNNN.
  Result<Language> terminal() {
    const std::size_t begin = at_;
    Languages& languages = rules_.symbols().languages;
    if (take(".")) return characters(languages, CharacterSet::all(), TextForm::plain);
    const char close = text_[at_++] == '"' ? '"' : ']';
    const bool inverted = close == ']' && take("^");
    std::vector<char32_t> points;
    std::vector<bool> plain;  // not written with an escape
    while (true) {
      if (at_ >= text_.size() || (close == '"' && text_[at_] == '\n')) {
        at_ = begin;
        return wrong(close == '"' ? "a \" that is closed" : "a [ that is closed");
      }
      if (text_[at_] == close) break;
      plain.push_back(text_[at_] != '\\');
      NIBBLE_ASSIGN(const char32_t point, character());
      points.push_back(point);
    }
    ++at_;
    if (close == '"') {
      std::string text;
      for (const char32_t point : points) append_utf8(text, point);
      return languages.literal(text);
    }
    CharacterSet set;
    for (std::size_t i = 0; i < points.size(); ++i) {
      if (i + 2 < points.size() && plain[i + 1] && points[i + 1] == '-') {
        if (points[i] > points[i + 2]) return wrong("a range of characters in order, before this");
        set.add(points[i], points[i + 2]);
        i += 2;
      } else {
        set.add(points[i], points[i]);
      }
    }
    return characters(languages, inverted ? set.inverted() : set, TextForm::plain);
  }

  Result<char32_t> character() {
    if (text_[at_] != '\\') {
      const CodePoint point = decode_valid_utf8(text_.data() + at_);
      at_ += point.length;
      return point.value;
    }
    ++at_;
    if (at_ >= text_.size()) return wrong("a character behind the backslash");
    const char c = text_[at_++];
    const std::size_t digits = c == 'x' ? 2 : c == 'u' ? 4 : c == 'U' ? 8 : 0;
    if (digits > 0) {
      char32_t value = 0;
      for (std::size_t i = 0; i < digits; ++i) {
        const char d = at_ < text_.size() ? text_[at_] : ' ';
        const int digit = d >= '0' && d <= '9'                 ? d - '0'
                          : (d | 32) >= 'a' && (d | 32) <= 'f' ? (d | 32) - 'a' + 10
                                                               : -1;
        if (digit < 0) return wrong("a hexadecimal digit");
        value = value * 16 + static_cast<char32_t>(digit);
        ++at_;
      }
      if (value > 0x10FFFF || (value >= 0xD800 && value <= 0xDFFF))
        return wrong("the code of a character, before this");
      return value;
    }
    switch (c) {
      case 'n': return U'\n';
      case 'r': return U'\r';
      case 't': return U'\t';
      case '"':
      case '\\':
      case '[':
      case ']':
      case '-':
      case '^': return static_cast<char32_t>(c);
      default: --at_; return wrong("an escape: \\n \\r \\t \\\" \\\\ \\[ \\] \\x \\u or \\U");
    }
  }
};

}  // namespace

Result<std::shared_ptr<const Grammar>> compile_gbnf(std::string_view text, const CompileLimits& limits) {
  NIBBLE_RETURN_IF_ERROR(check_grammar_text(text, limits));
  GbnfParser parser(text, limits);
  NIBBLE_ASSIGN(Symbols symbols, parser.parse());
  return finish_grammar(std::move(symbols), limits);
}

}  // namespace nibble
