#include "text/jinja/jinja_lexer.h"

#include <algorithm>
#include <array>

#include "text/jinja/jinja_text.h"

namespace nibble::jinja {

Status template_fault(int line, std::string what) {
  return broken_model("chat template line " + std::to_string(line) + ": " + std::move(what));
}

namespace {

constexpr std::size_t kMaxTemplateBytes = std::size_t{1} << 20;

// Every line ending becomes '\n' and one at the very end goes.
std::string normalize(std::string_view source) {
  std::string out;
  out.reserve(source.size());
  for (std::size_t i = 0; i < source.size(); ++i) {
    if (source[i] == '\r') {
      if (i + 1 < source.size() && source[i + 1] == '\n') ++i;
      out += '\n';
    } else {
      out += source[i];
    }
  }
  if (!out.empty() && out.back() == '\n') out.pop_back();
  return out;
}

class Lexer {
 public:
  explicit Lexer(std::string_view source) : source_(normalize(source)) {}

  Result<std::vector<Token>> run() {
    while (at_ < source_.size()) NIBBLE_RETURN_IF_ERROR(text_and_tag());
    emit(Token::Kind::end, {});
    return std::move(tokens_);
  }

 private:
  bool at(std::string_view what, std::size_t from) const {
    return source_.compare(from, what.size(), what) == 0;
  }
  bool at(std::string_view what) const { return at(what, at_); }

  void emit(Token::Kind kind, std::string text) { tokens_.push_back({kind, line_, std::move(text)}); }

  void advance(std::size_t to) {
    line_ += static_cast<int>(std::count(source_.begin() + static_cast<std::ptrdiff_t>(at_),
                                         source_.begin() + static_cast<std::ptrdiff_t>(to), '\n'));
    line_starting_ = to > at_ ? source_[to - 1] == '\n' : line_starting_;
    at_ = to;
  }

  std::size_t skip_spaces(std::size_t from) const {
    while (from < source_.size()) {
      const CodePoint c = code_point_at(source_, from);
      if (!is_space(c.value)) break;
      from += c.length;
    }
    return from;
  }

  // The next "{%", "{{" or "{#".
  std::size_t find_tag() const {
    for (std::size_t i = at_; i + 1 < source_.size(); ++i) {
      if (source_[i] == '{' && (source_[i + 1] == '%' || source_[i + 1] == '{' || source_[i + 1] == '#'))
        return i;
    }
    return std::string::npos;
  }

  // Emits source_[at_, tag) as data, cut as the tag's mark and lstrip_blocks say.
  void emit_data(std::size_t tag, char mark, bool is_variable) {
    std::string_view data(source_.data() + at_, tag - at_);
    if (mark == '-') {
      data = data.substr(0, strip_bounds(data, {.left = false, .right = true}).end);
    } else if (mark != '+' && !is_variable) {
      const std::size_t newline = data.rfind('\n');
      const std::size_t line = newline == data.npos ? 0 : newline + 1;
      if (line > 0 || line_starting_) {
        const std::string_view before_tag = data.substr(line);
        if (strip_bounds(before_tag, {}).begin == before_tag.size()) data = data.substr(0, line);
      }
    }
    if (!data.empty()) emit(Token::Kind::data, std::string(data));
  }

  char mark_after(std::size_t tag) const {
    const std::size_t i = tag + 2;
    return i < source_.size() && (source_[i] == '-' || source_[i] == '+') ? source_[i] : '\0';
  }

  Status text_and_tag() {
    const std::size_t tag = find_tag();
    if (tag == std::string::npos) {
      emit(Token::Kind::data, source_.substr(at_));
      advance(source_.size());
      return {};
    }
    const char mark = mark_after(tag);
    emit_data(tag, mark, source_[tag + 1] == '{');
    const std::size_t inside = tag + 2 + (mark != '\0' ? 1 : 0);
    switch (source_[tag + 1]) {
      case '#': return comment(inside);
      case '{':
        advance(inside);
        emit(Token::Kind::variable_begin, {});
        return tag_body(Token::Kind::variable_end);
      default:
        if (const std::size_t raw = raw_begin_end(inside); raw != std::string::npos) return raw_text(raw);
        advance(inside);
        emit(Token::Kind::block_begin, {});
        return tag_body(Token::Kind::block_end);
    }
  }

  Status comment(std::size_t inside) {
    const std::size_t close = source_.find("#}", inside);
    if (close == std::string::npos) return template_fault(line_, "the comment that begins here has no '#}'");
    const char mark = close > inside ? source_[close - 1] : '\0';
    advance(after_close(close + 2, mark));
    return {};
  }

  // Where the text goes on after a block's or comment's closing bracket.
  std::size_t after_close(std::size_t to, char mark) const {
    if (mark == '-') return skip_spaces(to);
    if (mark != '+' && to < source_.size() && source_[to] == '\n') return to + 1;
    return to;
  }

  // The end of "raw %}" when that is what stands at `inside`.
  std::size_t raw_begin_end(std::size_t inside) const {
    std::size_t i = skip_spaces(inside);
    if (!at("raw", i)) return std::string::npos;
    i = skip_spaces(i + 3);
    if (at("-%}", i)) return skip_spaces(i + 3);
    return at("%}", i) ? i + 2 : std::string::npos;
  }

  Status raw_text(std::size_t begin) {
    const int line = line_;
    advance(begin);
    for (std::size_t tag = source_.find("{%", at_); tag != std::string::npos;
         tag = source_.find("{%", tag + 2)) {
      const char mark = mark_after(tag);
      std::size_t i = skip_spaces(tag + 2 + (mark != '\0' ? 1 : 0));
      if (!at("endraw", i)) continue;
      i = skip_spaces(i + 6);
      const char end_mark =
          i < source_.size() && (source_[i] == '-' || source_[i] == '+') ? source_[i] : '\0';
      if (end_mark != '\0') ++i;
      if (!at("%}", i)) continue;
      emit_data(tag, mark, false);
      advance(after_close(i + 2, end_mark));
      return {};
    }
    return template_fault(line, "'raw' has no 'endraw'");
  }

  Status tag_body(Token::Kind closing) {
    const int line = line_;
    std::string open;  // brackets that wait for their closing one
    while (true) {
      advance(skip_spaces(at_));
      if (at_ >= source_.size()) {
        return template_fault(line, closing == Token::Kind::block_end
                                        ? "the tag that begins here has no '%}'"
                                        : "the expression that begins here has no '}}'");
      }
      if (open.empty()) {
        if (const std::size_t to = tag_end(closing); to != std::string::npos) {
          emit(closing, {});
          advance(to);
          return {};
        }
      }
      NIBBLE_RETURN_IF_ERROR(token(open));
    }
  }

  std::size_t tag_end(Token::Kind closing) const {
    if (closing == Token::Kind::variable_end) {
      if (at("-}}")) return skip_spaces(at_ + 3);
      return at("}}") ? at_ + 2 : std::string::npos;
    }
    if (at("-%}")) return after_close(at_ + 3, '-');
    if (at("+%}")) return after_close(at_ + 3, '+');
    return at("%}") ? after_close(at_ + 2, '\0') : std::string::npos;
  }

  static bool is_digit(char c) { return c >= '0' && c <= '9'; }
  static bool is_name_start(CodePoint c) {
    return c.value == '_' ||
           (c.value < 0x80 ? ((c.value | 32) >= 'a' && (c.value | 32) <= 'z') : is_letter(c.value));
  }

  Status token(std::string& open) {
    const char c = source_[at_];
    if (is_digit(c)) return number();
    if (c == '\'' || c == '"') return string(c);
    if (is_name_start(code_point_at(source_, at_))) {
      std::size_t to = at_;
      while (to < source_.size()) {
        const CodePoint next = code_point_at(source_, to);
        if (!is_name_start(next) && !(next.value < 0x80 && is_digit(static_cast<char>(next.value)))) break;
        to += next.length;
      }
      emit(Token::Kind::name, source_.substr(at_, to - at_));
      advance(to);
      return {};
    }
    return symbol(open);
  }

  std::size_t digits(std::size_t from) const {
    while (from < source_.size() &&
           (is_digit(source_[from]) ||
            (source_[from] == '_' && from + 1 < source_.size() && is_digit(source_[from + 1])))) {
      ++from;
    }
    return from;
  }

  Status number() {
    std::size_t to = digits(at_);
    bool real = false;
    const bool after_dot = at_ > 0 && source_[at_ - 1] == '.';  // a.0.1 are two indices
    if (!after_dot) {
      if (to + 1 < source_.size() && source_[to] == '.' && is_digit(source_[to + 1])) {
        to = digits(to + 1);
        real = true;
      }
      if (to < source_.size() && (source_[to] == 'e' || source_[to] == 'E')) {
        std::size_t exponent = to + 1;
        if (exponent < source_.size() && (source_[exponent] == '+' || source_[exponent] == '-')) ++exponent;
        if (exponent < source_.size() && is_digit(source_[exponent])) {
          to = digits(exponent);
          real = true;
        }
      }
    }
    std::string spelled = source_.substr(at_, to - at_);
    std::erase(spelled, '_');
    if (!real && spelled.size() > 1 && spelled[0] == '0' && spelled.find_first_not_of('0') != spelled.npos) {
      return template_fault(line_, "a number may not begin with 0: " + spelled);
    }
    emit(real ? Token::Kind::real : Token::Kind::integer, std::move(spelled));
    advance(to);
    return {};
  }

  Status string(char quote) {
    std::string value;
    std::size_t i = at_ + 1;
    while (true) {
      if (i >= source_.size()) return template_fault(line_, "the string that begins here does not end");
      const char c = source_[i];
      if (c == quote) break;
      if (c != '\\') {
        value += c;
        ++i;
        continue;
      }
      if (i + 1 >= source_.size()) return template_fault(line_, "the string that begins here does not end");
      NIBBLE_ASSIGN(i, escape(i + 1, value));
    }
    emit(Token::Kind::string, std::move(value));
    advance(i + 1);
    return {};
  }

  // Appends what the escape sequence at `i` (after the backslash) means; returns where the text goes on.
  Result<std::size_t> escape(std::size_t i, std::string& value) {
    const char c = source_[i];
    static constexpr std::string_view kNames = "abfnrtv\\'\"";
    static constexpr std::string_view kMeanings = "\a\b\f\n\r\t\v\\'\"";
    if (const std::size_t named = kNames.find(c); named != kNames.npos) {
      value += kMeanings[named];
      return i + 1;
    }
    if (c == '\n') return i + 1;
    if (c >= '0' && c <= '7') {
      char32_t code = 0;
      std::size_t to = i;
      while (to < source_.size() && to < i + 3 && source_[to] >= '0' && source_[to] <= '7') {
        code = code * 8 + static_cast<char32_t>(source_[to++] - '0');
      }
      append_code_point(value, code);
      return to;
    }
    const std::size_t length = c == 'x' ? 2 : c == 'u' ? 4 : c == 'U' ? 8 : 0;
    if (length == 0) {
      if (c == 'N') return template_fault(line_, "the escape \\N{...} is not supported");
      value += '\\';  // Python keeps an escape that it does not know
      return i;
    }
    char32_t code = 0;
    for (std::size_t k = 1; k <= length; ++k) {
      static constexpr std::string_view kHex = "0123456789abcdef";
      const char digit = i + k < source_.size() ? source_[i + k] : '\0';
      const std::size_t value_of =
          kHex.find(digit >= 'A' && digit <= 'F' ? static_cast<char>(digit + 32) : digit);
      if (value_of == kHex.npos)
        return template_fault(line_, "a \\x, \\u or \\U escape has too few hexadecimal digits");
      code = code * 16 + static_cast<char32_t>(value_of);
    }
    if (code > 0x10FFFF || (code >= 0xD800 && code < 0xE000)) {
      return template_fault(line_, "an escape names no character");
    }
    append_code_point(value, code);
    return i + 1 + length;
  }

  Status symbol(std::string& open) {
    static constexpr std::array<std::string_view, 6> kLong = {"//", "**", "==", "!=", ">=", "<="};
    static constexpr std::string_view kShort = "+-/*%~[](){}><=.:|,;";
    for (const std::string_view symbol : kLong) {
      if (at(symbol)) {
        emit(Token::Kind::symbol, std::string(symbol));
        advance(at_ + 2);
        return {};
      }
    }
    const char c = source_[at_];
    if (kShort.find(c) == kShort.npos) {
      return template_fault(line_,
                            "unexpected '" + source_.substr(at_, code_point_at(source_, at_).length) + "'");
    }
    if (c == '(') open += ')';
    if (c == '[') open += ']';
    if (c == '{') open += '}';
    if (c == ')' || c == ']' || c == '}') {
      if (open.empty() || open.back() != c)
        return template_fault(line_, std::string("unexpected '") + c + "'");
      open.pop_back();
    }
    emit(Token::Kind::symbol, std::string(1, c));
    advance(at_ + 1);
    return {};
  }

  const std::string source_;
  std::size_t at_ = 0;
  int line_ = 1;
  bool line_starting_ = true;  // what was consumed last ended a line
  std::vector<Token> tokens_;
};

}  // namespace

Result<std::vector<Token>> tokenize(std::string_view source) {
  if (source.size() > kMaxTemplateBytes) return broken_model("chat template: larger than 1 MiB");
  return Lexer(source).run();
}

}  // namespace nibble::jinja
