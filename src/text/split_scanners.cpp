#include "text/split_scanners.h"

#include <climits>
#include <cstdint>

#include "base/utf8.h"
#include "text/unicode_class.h"

namespace nibble {
namespace {

// [^\s\p{L}\p{N}]: asked as "none of these bits".
constexpr CharClass kSpaceLetterNumber = kSpace | kLetter | kNumber;

// excluded: a character of the script Han has no class, as in a set with &&[^\p{Han}].
enum class Han : bool { included, excluded };

// A position in the text with the class of the character there.
class Cursor {
 public:
  Cursor(std::string_view text, std::size_t at)
      : classes_(&UnicodeClasses::get()),
        begin_(text.data()),
        p_(text.data() + at),
        end_(p_ + text.size() - at) {}

  bool at_end() const { return p_ == end_; }
  // Byte at the cursor; 0 at the end.
  char byte() const { return at_end() ? '\0' : *p_; }
  std::size_t offset() const { return static_cast<std::size_t>(p_ - begin_); }
  void seek(std::size_t offset) { p_ = begin_ + offset; }

  struct Char {
    CharClass cls;
    std::uint8_t length;  // 0 at the end, where no class bit is set
  };
  template <Han han = Han::included>
  Char peek() const {
    return peek_at<han>(p_);
  }
  void skip(Char c) { p_ += c.length; }

  // Runs of characters that have one of `bits` / none of them; how many were skipped does not matter.
  void skip_any_of(CharClass bits) {
    while (p_ != end_) {
      const Char c = peek_at(p_);
      if (!(c.cls & bits)) return;
      p_ += c.length;
    }
  }
  void skip_none_of(CharClass bits) {
    while (p_ != end_) {
      const Char c = peek_at(p_);
      if (c.cls & bits) return;
      p_ += c.length;
    }
  }
  void skip_bytes(std::string_view set) {
    while (p_ != end_ && set.find(*p_) != std::string_view::npos) ++p_;
  }
  // At most `most` characters with one of `bits`.
  void skip_up_to(int most, CharClass bits) {
    for (; most > 0 && p_ != end_; --most) {
      const Char c = peek_at(p_);
      if (!(c.cls & bits)) return;
      p_ += c.length;
    }
  }

 private:
  template <Han han = Han::included>
  Char peek_at(const char* p) const {
    if (p == end_) return {0, 0};
    const auto byte = static_cast<unsigned char>(*p);
    if (byte < 0x80) return {classes_->of_ascii(byte), 1};
    const CodePoint c = decode_valid_utf8(p);
    if (han == Han::excluded && is_han(c.value)) return {0, static_cast<std::uint8_t>(c.length)};
    return {classes_->of(c.value), static_cast<std::uint8_t>(c.length)};
  }

  const UnicodeClasses* classes_;
  const char* begin_;
  const char* p_;
  const char* end_;
};

bool is_newline(char byte) { return byte == '\n' || byte == '\r'; }

// End of (?i:'s|'t|'re|'ve|'m|'ll|'d) at `at`, or `at`. Simple case folding makes U+017F an s.
std::size_t match_contraction(std::string_view text, std::size_t at, bool fold_case) {
  if (at + 1 >= text.size() || text[at] != '\'') return at;
  const auto letter = [&](std::size_t i) -> char {
    if (i >= text.size()) return '\0';
    const char c = text[i];
    return fold_case && c >= 'A' && c <= 'Z' ? static_cast<char>(c | 0x20) : c;
  };
  const char first = letter(at + 1);
  const char second = letter(at + 2);
  switch (first) {
    case 's':
    case 't':
    case 'm':
    case 'd': return at + 2;
    case 'r':
    case 'v': return second == 'e' ? at + 3 : at;
    case 'l': return second == 'l' ? at + 3 : at;
    case '\xC5': return fold_case && second == '\xBF' ? at + 3 : at;
    default: return at;
  }
}

// \s*[\r\n]+|\s+(?!\S)|\s+ (the first alternative only if `break_at_newlines`) at a white-space character: up
// to the last line break of the run; else the run without its last character, which a word after it takes;
// else the run.
std::size_t match_space(Cursor cursor, bool break_at_newlines) {
  const std::size_t start = cursor.offset();
  std::size_t last = start;
  std::size_t after_newline = start;
  while (true) {
    const Cursor::Char c = cursor.peek();
    if (!(c.cls & kSpace)) break;
    const bool newline = is_newline(cursor.byte());
    last = cursor.offset();
    cursor.skip(c);
    if (newline) after_newline = cursor.offset();
  }
  if (break_at_newlines && after_newline != start) return after_newline;
  return cursor.at_end() || last == start ? cursor.offset() : last;
}

// [\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+ or, failing that, the same with + and *, at the
// cursor; where it ends, or the cursor's offset. With the first set's run taken whole, the second set either
// goes on behind it, or is left the last character of the run that is in both.
struct CasedWord {
  std::size_t end;
  bool ends_lower;  // the first alternative matched
};
template <Han han>
CasedWord match_cased_word(Cursor cursor) {
  constexpr CharClass kFirst = kUpper | kOtherLetter | kMark;
  constexpr CharClass kSecond = kLower | kOtherLetter | kMark;
  const std::size_t start = cursor.offset();
  std::size_t after_both = start;
  Cursor::Char c = cursor.peek<han>();
  while (c.cls & kFirst) {
    cursor.skip(c);
    if (c.cls & kSecond) after_both = cursor.offset();
    c = cursor.peek<han>();
  }
  if (c.cls & kSecond) {
    for (; c.cls & kSecond; c = cursor.peek<han>()) cursor.skip(c);
    return {cursor.offset(), true};
  }
  if (after_both != start) return {after_both, true};
  return {cursor.offset(), false};
}

template <Han han>
std::size_t match_cased_words(std::string_view text, std::size_t at) {
  Cursor cursor(text, at);
  const Cursor::Char first = cursor.peek();
  std::size_t end = at;
  if (!(first.cls & (kLetter | kNumber)) && !is_newline(text[at])) {
    Cursor behind = cursor;
    behind.skip(first);
    const CasedWord word = match_cased_word<han>(behind);
    // A leading mark can be the optional character or the word's first: as the former it must not keep the
    // first alternative from matching.
    if (word.ends_lower || (word.end != behind.offset() && !(first.cls & kMark))) {
      end = word.end;
    } else if (first.cls & kMark) {
      end = match_cased_word<han>(cursor).end;
    }
  } else {
    end = match_cased_word<han>(cursor).end;
  }
  return end == at ? at : match_contraction(text, end, true);
}

// What o200k and Kimi have behind their words; `signs_take`: what follows a run of signs and belongs to it.
std::size_t match_numbers_signs_space(std::string_view text, std::size_t at, std::string_view signs_take) {
  Cursor cursor(text, at);
  const Cursor::Char first = cursor.peek();
  if (first.cls & kNumber) {
    cursor.skip_up_to(3, kNumber);
    return cursor.offset();
  }
  Cursor behind = cursor;
  if (text[at] == ' ') behind.skip(first);
  if (const Cursor::Char c = behind.peek(); c.length != 0 && !(c.cls & kSpaceLetterNumber)) {
    behind.skip_none_of(kSpaceLetterNumber);
    behind.skip_bytes(signs_take);
    return behind.offset();
  }
  return match_space(cursor, true);
}

std::size_t match_o200k(std::string_view text, std::size_t at) {
  const std::size_t end = match_cased_words<Han::included>(text, at);
  return end != at ? end : match_numbers_signs_space(text, at, "\r\n/");
}

std::size_t match_han(std::string_view text, std::size_t at) {
  while (at < text.size()) {
    const CodePoint c = decode_valid_utf8(text.data() + at);
    if (!is_han(c.value)) break;
    at += c.length;
  }
  return at;
}

std::size_t match_kimi(std::string_view text, std::size_t at) {
  if (const std::size_t end = match_han(text, at); end != at) return end;
  const std::size_t end = match_cased_words<Han::excluded>(text, at);
  return end != at ? end : match_numbers_signs_space(text, at, "\r\n");
}

// (?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[word]+|\p{N}{1,digits}|
// ?[^\s[word]\p{N}]+[\r\n]*|\s*[\r\n]+|...
template <int digits, CharClass word>
std::size_t match_cl100k(std::string_view text, std::size_t at) {
  if (const std::size_t end = match_contraction(text, at, true); end != at) return end;
  Cursor cursor(text, at);
  const Cursor::Char first = cursor.peek();
  if (first.cls & kNumber) {
    cursor.skip_up_to(digits, kNumber);
    return cursor.offset();
  }
  Cursor behind = cursor;
  if (!(first.cls & kLetter) && !is_newline(text[at])) behind.skip(first);
  // A mark that no word follows is one itself where words have marks.
  if (!(behind.peek().cls & word) && (first.cls & word)) behind = cursor;
  if (behind.peek().cls & word) {
    behind.skip_any_of(word);
    return behind.offset();
  }
  behind = cursor;
  if (text[at] == ' ') behind.skip(first);
  constexpr CharClass kNoSign = kSpace | word | kNumber;
  if (const Cursor::Char c = behind.peek(); c.length != 0 && !(c.cls & kNoSign)) {
    behind.skip_none_of(kNoSign);
    behind.skip_bytes("\r\n");
    return behind.offset();
  }
  return match_space(cursor, true);
}

std::size_t match_gpt2(std::string_view text, std::size_t at) {
  if (const std::size_t end = match_contraction(text, at, false); end != at) return end;
  const Cursor cursor(text, at);
  Cursor behind = cursor;
  if (text[at] == ' ') behind.skip(behind.peek());
  const Cursor::Char c = behind.peek();
  if (c.cls & kLetter) {
    behind.skip_any_of(kLetter);
  } else if (c.cls & kNumber) {
    behind.skip_any_of(kNumber);
  } else if (c.length != 0 && !(c.cls & kSpace)) {
    behind.skip_none_of(kSpaceLetterNumber);
  } else {
    return match_space(cursor, false);
  }
  return behind.offset();
}

template <int most>
std::size_t match_numbers(std::string_view text, std::size_t at) {
  Cursor cursor(text, at);
  cursor.skip_up_to(most, kNumber);
  return cursor.offset();
}

// [一-龥぀-ゟ゠-ヿ]+
std::size_t match_cjk(std::string_view text, std::size_t at) {
  while (at < text.size()) {
    const CodePoint c = decode_valid_utf8(text.data() + at);
    if (!(c.value >= 0x4E00 && c.value <= 0x9FA5) && !(c.value >= 0x3040 && c.value <= 0x30FF)) break;
    at += c.length;
  }
  return at;
}

bool is_ascii_letter(char c) { return (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z'); }

// DeepSeek-V3's third pattern, kDeepSeekWordPattern. What none of its alternatives take (a number, a control
// character before no letter) stays between matches.
std::size_t match_deepseek_word(std::string_view text, std::size_t at) {
  Cursor cursor(text, at);
  const Cursor::Char first = cursor.peek();
  if (static_cast<unsigned char>(text[at]) < 0x80 && (first.cls & (kPunctuation | kSymbol)) &&
      at + 1 < text.size() && is_ascii_letter(text[at + 1])) {
    at += 2;
    while (at < text.size() && is_ascii_letter(text[at])) ++at;
    return at;
  }
  Cursor behind = cursor;
  if (!(first.cls & (kLetter | kPunctuation | kSymbol)) && !is_newline(text[at])) behind.skip(first);
  if (!(behind.peek().cls & (kLetter | kMark)) && (first.cls & kMark)) behind = cursor;
  if (behind.peek().cls & (kLetter | kMark)) {
    behind.skip_any_of(kLetter | kMark);
    return behind.offset();
  }
  behind = cursor;
  if (text[at] == ' ') behind.skip(first);
  if (behind.peek().cls & (kPunctuation | kSymbol)) {
    behind.skip_any_of(kPunctuation | kSymbol);
    behind.skip_bytes("\r\n");
    return behind.offset();
  }
  return first.cls & kSpace ? match_space(cursor, true) : at;
}

constexpr SplitScanner kScanners[] = {
    {"o200k", kO200kPattern, match_o200k},
    {"kimi", kKimiPattern, match_kimi},
    {"qwen2", kQwen2Pattern, match_cl100k<1, kLetter>},
    {"qwen3.5", kQwen35Pattern, match_cl100k<1, kLetter | kMark>},
    {"llama3", kLlama3Pattern, match_cl100k<3, kLetter>},
    {"gpt2", kGpt2Pattern, match_gpt2},
    {"one number", kOneNumberPattern, match_numbers<1>},
    {"three digits", kThreeDigitsPattern, match_numbers<3>},
    {"numbers", kNumbersPattern, match_numbers<INT_MAX>},
    {"cjk", kCjkPattern, match_cjk},
    {"deepseek word", kDeepSeekWordPattern, match_deepseek_word},
};

}  // namespace

const SplitScanner* find_split_scanner(std::string_view pattern) {
  for (const SplitScanner& scanner : kScanners) {
    if (scanner.pattern == pattern) return &scanner;
  }
  return nullptr;
}

std::span<const SplitScanner> split_scanners() { return kScanners; }

}  // namespace nibble
