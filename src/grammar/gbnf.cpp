// GBNF, the grammars of llama.cpp's users: root ::= "a" [0-9]+ (b | c)*, comments behind #, {n,m}.
#include <algorithm>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "base/quote.h"
#include "base/utf8.h"
#include "grammar/grammar_data.h"
#include "grammar/pattern.h"
#include "grammar/rules.h"

namespace nibble {
namespace {

bool is_name(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' || c == '_';
}

class GbnfParser {
 public:
  GbnfParser(std::string_view text, const CompileLimits& limits) : text_(text), limits_(limits) {}

  Result<Symbols> parse() {
    blanks(true);
    while (at_ < text_.size()) {
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
    return rules_.finish("root");
  }

 private:
  Status wrong(std::string_view expected) const {
    const auto line = std::count(text_.begin(), text_.begin() + static_cast<std::ptrdiff_t>(at_), '\n') + 1;
    return invalid_argument("the grammar's line " + std::to_string(line) + " at " +
                            quote(text_.substr(at_, 20)) + ": expected " + std::string(expected));
  }
  bool take(std::string_view what) {
    if (!text_.substr(at_).starts_with(what)) return false;
    at_ += what.size();
    return true;
  }
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
    if (depth > limits_.max_depth)
      return wrong("at most " + std::to_string(limits_.max_depth) + " nested groups");
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

  Result<std::uint32_t> number() {
    std::uint32_t value = 0;
    const std::size_t begin = at_;
    while (at_ < text_.size() && text_[at_] >= '0' && text_[at_] <= '9')
      value = std::min<std::uint32_t>(value * 10 + static_cast<std::uint32_t>(text_[at_++] - '0'), 1'000'000);
    if (at_ == begin || value > 100'000) return wrong("a number of repetitions, at most 100000");
    return value;
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

  std::string_view text_;
  const CompileLimits& limits_;
  std::size_t at_ = 0;
  Rules rules_;
};

}  // namespace

Result<std::shared_ptr<const Grammar>> compile_gbnf(std::string_view text, const CompileLimits& limits) {
  if (text.size() > limits.max_bytes)
    return invalid_argument("a grammar of " + std::to_string(text.size()) + " bytes is longer than " +
                            std::to_string(limits.max_bytes));
  if (!is_valid_utf8(text)) return invalid_argument("the grammar is not UTF-8");
  GbnfParser parser(text, limits);
  NIBBLE_ASSIGN(Symbols symbols, parser.parse());
  return finish_grammar(std::move(symbols), limits);
}

}  // namespace nibble
