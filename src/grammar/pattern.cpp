#include "grammar/pattern.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/quote.h"
#include "base/utf8.h"
#include "text/unicode_class.h"

namespace nibble {
namespace {

constexpr std::uint32_t kMostRepeats = 100'000;

struct Piece {
  enum class Kind : std::uint8_t { set, sequence, choice, repeat, begin, end, ahead, not_ahead };
  Kind kind = Kind::sequence;
  CharacterSet set;
  std::vector<Piece> parts;
  std::uint32_t least = 0, most = 0;
  bool plain = true;  // no anchor and no look-ahead inside
};

CharacterSet digits() { return {{'0', '9'}}; }
CharacterSet word() { return {{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}}; }
CharacterSet space() {
  return {{'\t', '\r'},     {' ', ' '},       {0xA0, 0xA0},     {0x1680, 0x1680}, {0x2000, 0x200A},
          {0x2028, 0x2029}, {0x202F, 0x202F}, {0x205F, 0x205F}, {0x3000, 0x3000}, {0xFEFF, 0xFEFF}};
}

class PatternParser {
 public:
  PatternParser(std::string_view text, const PatternOptions& options) : text_(text), options_(options) {}

  Result<Piece> parse() {
    NIBBLE_ASSIGN(Piece piece, choice(0));
    if (at_ < text_.size()) return wrong("an unopened )");
    return piece;
  }

 private:
  Status wrong(std::string_view what) const {
    return invalid_argument("the pattern " + quote(text_, 80) + " has " + std::string(what) + " at byte " +
                            std::to_string(at_));
  }
  bool more() const { return at_ < text_.size(); }
  bool take(std::string_view expected) {
    if (!text_.substr(at_).starts_with(expected)) return false;
    at_ += expected.size();
    return true;
  }

  Result<Piece> choice(int depth) {
    if (depth > options_.max_depth)
      return wrong("more than " + std::to_string(options_.max_depth) + " nested groups");
    Piece out{.kind = Piece::Kind::choice};
    while (true) {
      NIBBLE_ASSIGN(Piece part, sequence(depth));
      out.plain &= part.plain;
      out.parts.push_back(std::move(part));
      if (!take("|")) break;
    }
    if (out.parts.size() == 1) return std::move(out.parts.front());
    return out;
  }

  Result<Piece> sequence(int depth) {
    Piece out{.kind = Piece::Kind::sequence};
    while (more() && text_[at_] != '|' && text_[at_] != ')') {
      NIBBLE_ASSIGN(Piece part, atom(depth));
      NIBBLE_ASSIGN(part, quantified(std::move(part)));
      out.plain &= part.plain;
      out.parts.push_back(std::move(part));
    }
    return out;
  }

  // {n}, {n,} or {n,m}; nothing if the brace is no quantifier, and then it stands for itself.
  std::optional<std::pair<std::uint64_t, std::uint64_t>> braces() {
    std::size_t i = at_ + 1;
    const auto number = [&]() -> std::optional<std::uint64_t> {
      const std::size_t begin = i;
      std::uint64_t value = 0;
      while (i < text_.size() && text_[i] >= '0' && text_[i] <= '9')
        value = std::min<std::uint64_t>(value * 10 + static_cast<std::uint64_t>(text_[i++] - '0'), 1u << 30);
      if (i == begin) return std::nullopt;
      return value;
    };
    const auto least = number();
    if (!least) return std::nullopt;
    std::uint64_t most = *least;
    if (i < text_.size() && text_[i] == ',') {
      ++i;
      most = number().value_or(kUnbounded);
    }
    if (i >= text_.size() || text_[i] != '}') return std::nullopt;
    at_ = i + 1;
    return std::pair(*least, most);
  }

  Result<Piece> quantified(Piece part) {
    std::pair<std::uint64_t, std::uint64_t> times;
    if (take("*")) {
      times = {0, kUnbounded};
    } else if (take("+")) {
      times = {1, kUnbounded};
    } else if (take("?")) {
      times = {0, 1};
    } else if (const auto given = more() && text_[at_] == '{' ? braces() : std::nullopt) {
      times = *given;
    } else {
      return part;
    }
    if (!part.plain) return wrong("a repeated anchor or look-ahead, which is not supported");
    if (times.first > times.second) return wrong("a repetition whose numbers are out of order");
    if (times.first > kMostRepeats || (times.second != kUnbounded && times.second > kMostRepeats))
      return wrong("a repetition of more than " + std::to_string(kMostRepeats));
    take("?");  // a lazy one has the same texts
    if (more() && (text_[at_] == '*' || text_[at_] == '+' || text_[at_] == '?'))
      return wrong("a quantifier of a quantifier");
    Piece out{.kind = Piece::Kind::repeat};
    out.least = static_cast<std::uint32_t>(times.first);
    out.most = static_cast<std::uint32_t>(times.second);
    out.parts.push_back(std::move(part));
    return out;
  }

  Result<Piece> atom(int depth) {
    const char c = text_[at_];
    if (c == '(') return group(depth);
    if (c == '[') {
      NIBBLE_ASSIGN(CharacterSet set, bracket());
      return one_of(std::move(set));
    }
    if (c == '*' || c == '+' || c == '?') return wrong("a quantifier with nothing before it");
    if (c == '{') {
      const std::size_t begin = at_;
      if (braces()) {
        at_ = begin;
        return wrong("a quantifier with nothing before it");
      }
    }
    if (take("^")) return Piece{.kind = Piece::Kind::begin, .set = {}, .parts = {}, .plain = false};
    if (take("$")) return Piece{.kind = Piece::Kind::end, .set = {}, .parts = {}, .plain = false};
    if (take(".")) {
      if (options_.dot_is_all) return one_of(CharacterSet::all());
      return one_of(CharacterSet{{'\n', '\n'}, {'\r', '\r'}}.inverted());
    }
    if (take("\\")) {
      if (more() && text_[at_] == 'b') return wrong("\\b, which is not supported");
      if (more() && text_[at_] == 'B') return wrong("\\B, which is not supported");
      if (take("A")) return Piece{.kind = Piece::Kind::begin, .set = {}, .parts = {}, .plain = false};
      if (take("z") || take("Z"))
        return Piece{.kind = Piece::Kind::end, .set = {}, .parts = {}, .plain = false};
      NIBBLE_ASSIGN(CharacterSet set, escape());
      return one_of(std::move(set));
    }
    const CodePoint point = decode_valid_utf8(text_.data() + at_);
    at_ += point.length;
    return one_of({{point.value, point.value}});
  }

  Piece one_of(CharacterSet set) const {
    Piece out{.kind = Piece::Kind::set};
    out.set = options_.ignore_case ? set.case_folded() : std::move(set);
    return out;
  }

  Result<Piece> group(int depth) {
    at_ += 1;
    auto kind = Piece::Kind::sequence;
    if (take("?")) {
      if (take("=")) {
        kind = Piece::Kind::ahead;
      } else if (take("!")) {
        kind = Piece::Kind::not_ahead;
      } else if (text_.substr(at_).starts_with("<=") || text_.substr(at_).starts_with("<!")) {
        return wrong("a look-behind, which is not supported");
      } else if (take("P<") || take("<")) {
        const std::size_t end = text_.find('>', at_);
        if (end == std::string_view::npos) return wrong("a group's name without >");
        at_ = end + 1;
      } else if (!take(":")) {
        return wrong("a kind of group that is not supported");
      }
    }
    NIBBLE_ASSIGN(Piece inner, choice(depth + 1));
    if (!take(")")) return wrong("a group without )");
    if (kind == Piece::Kind::sequence) return inner;
    Piece out{.kind = kind};
    out.plain = false;
    out.parts.push_back(std::move(inner));
    return out;
  }

  Result<char32_t> hex(std::size_t count) {
    char32_t value = 0;
    for (std::size_t i = 0; i < count; ++i, ++at_) {
      if (!more()) return wrong("an escape that is cut off");
      const char c = text_[at_];
      const int digit = c >= '0' && c <= '9'   ? c - '0'
                        : c >= 'a' && c <= 'f' ? c - 'a' + 10
                        : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                               : -1;
      if (digit < 0) return wrong("an escape with a wrong digit");
      value = value * 16 + static_cast<char32_t>(digit);
    }
    return value;
  }

  Result<CharacterSet> property(bool inverted) {
    if (!take("{")) return wrong("\\p without {");
    const std::size_t end = text_.find('}', at_);
    if (end == std::string_view::npos) return wrong("\\p{ without }");
    const std::string_view name = text_.substr(at_, end - at_);
    static constexpr std::pair<std::string_view, CharClass> kNames[] = {
        {"L", kLetter}, {"Letter", kLetter}, {"N", kNumber},      {"Number", kNumber},
        {"M", kMark},   {"Mark", kMark},     {"P", kPunctuation}, {"Punctuation", kPunctuation},
        {"S", kSymbol}, {"Symbol", kSymbol}, {"Ll", kLower},      {"White_Space", kSpace}};
    for (const auto& [known, bits] : kNames) {
      if (name != known) continue;
      at_ = end + 1;
      CharacterSet out;
      const UnicodeClasses& classes = UnicodeClasses::get();
      std::vector<CharacterSet::Range> ranges;
      for (char32_t c = 0; c <= 0x10FFFF; ++c) {
        if (!(classes.of(c) & bits)) continue;
        if (!ranges.empty() && ranges.back().second + 1 == c) {
          ranges.back().second = c;
        } else {
          ranges.emplace_back(c, c);
        }
      }
      for (const auto& [first, last] : ranges) out.add(first, last);
      return inverted ? out.inverted() : out;
    }
    return wrong("the property " + quote(name) + ", which is not supported");
  }

  // Behind the backslash.
  Result<CharacterSet> escape() {
    if (!more()) return wrong("a backslash at the end");
    const CodePoint point = decode_valid_utf8(text_.data() + at_);
    const char32_t c = point.value;
    at_ += point.length;
    const auto single = [](char32_t value) { return CharacterSet{{value, value}}; };
    switch (c) {
      case 'd': return digits();
      case 'D': return digits().inverted();
      case 'w': return word();
      case 'W': return word().inverted();
      case 's': return space();
      case 'S': return space().inverted();
      case 't': return single('\t');
      case 'n': return single('\n');
      case 'r': return single('\r');
      case 'f': return single('\f');
      case 'v': return single('\v');
      case 'a': return single('\a');
      case 'e': return single(0x1B);
      case 'p': return property(false);
      case 'P': return property(true);
      case 'x': {
        NIBBLE_ASSIGN(const char32_t value, hex(2));
        return single(value);
      }
      case 'u': {
        char32_t value = 0;
        if (take("{")) {
          const std::size_t end = text_.find('}', at_);
          if (end == std::string_view::npos || end == at_ || end - at_ > 6)
            return wrong("a \\u{ without its }");
          NIBBLE_ASSIGN(value, hex(end - at_));
          ++at_;
        } else {
          NIBBLE_ASSIGN(value, hex(4));
          if (value >= 0xD800 && value < 0xDC00 && take("\\u")) {
            NIBBLE_ASSIGN(const char32_t low, hex(4));
            if (low < 0xDC00 || low > 0xDFFF) return wrong("half a surrogate pair");
            value = 0x10000 + ((value - 0xD800) << 10) + (low - 0xDC00);
          }
        }
        if (value > 0x10FFFF) return wrong("an escape that is no character");
        return single(value);
      }
      case 'c':
        if (more() && ((text_[at_] | 32) >= 'a' && (text_[at_] | 32) <= 'z'))
          return single(static_cast<char32_t>(text_[at_++] & 31));
        return wrong("\\c without a letter");
      case '0':
        if (!more() || text_[at_] < '0' || text_[at_] > '9') return single(0);
        return wrong("an octal escape, which is not supported");
      default: break;
    }
    if (c >= '1' && c <= '9') return wrong("a back-reference, which is not supported");
    if ((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z')) return wrong("an escape that is not known");
    return single(c);
  }

  Result<CharacterSet> bracket() {
    at_ += 1;
    const bool inverted = take("^");
    CharacterSet out;
    const auto item = [&]() -> Result<CharacterSet> {
      if (take("\\")) {
        if (take("b")) return CharacterSet{{'\b', '\b'}};
        return escape();
      }
      const CodePoint point = decode_valid_utf8(text_.data() + at_);
      at_ += point.length;
      return CharacterSet{{point.value, point.value}};
    };
    const auto is_one = [](const CharacterSet& set) {
      return set.ranges().size() == 1 && set.ranges()[0].first == set.ranges()[0].second;
    };
    while (true) {
      if (!more()) return wrong("a [ without ]");
      if (take("]")) break;
      NIBBLE_ASSIGN(const CharacterSet low, item());
      if (text_.substr(at_).starts_with("-") && at_ + 1 < text_.size() && text_[at_ + 1] != ']' &&
          is_one(low)) {
        ++at_;
        NIBBLE_ASSIGN(const CharacterSet high, item());
        if (!is_one(high)) {
          out.add(low);
          out.add('-', '-');
          out.add(high);
          continue;
        }
        const char32_t a = low.ranges()[0].first, b = high.ranges()[0].first;
        if (a > b) return wrong("a range of characters that is out of order");
        out.add(a, b);
        continue;
      }
      out.add(low);
    }
    if (options_.ignore_case) out = out.case_folded();
    return inverted ? out.inverted() : out;
  }

  std::string_view text_;
  const PatternOptions& options_;
  std::size_t at_ = 0;
};

// Pieces to languages. A piece with anchors or look-ahead is translated together with all that follows it in
// the text, so that a look-ahead is an intersection with the rest.
class PatternMaker {
 public:
  PatternMaker(Languages& languages, const PatternOptions& options)
      : languages_(languages), options_(options) {
    any_ = characters(languages_, CharacterSet::all(), options_.form);
    if (options_.form == TextForm::json) languages_.add_plain_character(any_);
    all_ = languages_.repeat(any_, 0, kUnbounded);
  }

  Language whole(const Piece& piece) {
    if (!options_.search) return piece.plain ? plain(piece) : then(piece, kEmptyText, true);
    if (piece.plain) return languages_.concat({all_, plain(piece), all_});
    const Language first = then(piece, all_, true);
    const Language later = then(piece, all_, false);
    if (later == kNothing) return first;
    return languages_.any_of({first, languages_.concat({any_, all_, later})});
  }
  bool failed() const { return failed_; }

 private:
  Language plain(const Piece& piece) {
    switch (piece.kind) {
      case Piece::Kind::set: return characters(languages_, piece.set, options_.form);
      case Piece::Kind::sequence: {
        Language made = kEmptyText;
        for (std::size_t i = piece.parts.size(); i-- > 0;)
          made = languages_.concat(plain(piece.parts[i]), made);
        return made;
      }
      case Piece::Kind::choice: {
        std::vector<Language> parts;
        for (const Piece& part : piece.parts) parts.push_back(plain(part));
        return languages_.any_of(parts);
      }
      case Piece::Kind::repeat: return languages_.repeat(plain(piece.parts[0]), piece.least, piece.most);
      default: return kNothing;
    }
  }

  // What may stand from this piece to the end, where `rest` stands behind it.
  Language then(const Piece& piece, Language rest, bool at_begin) {
    if (++work_ > 100'000) failed_ = true;
    if (failed_) return kNothing;
    switch (piece.kind) {
      case Piece::Kind::begin: return at_begin ? rest : kNothing;
      case Piece::Kind::end: return languages_.all_of({rest, kEmptyText});
      case Piece::Kind::ahead: return languages_.all_of({rest, then(piece.parts[0], all_, at_begin)});
      case Piece::Kind::not_ahead:
        return languages_.all_of({rest, languages_.except(then(piece.parts[0], all_, at_begin))});
      case Piece::Kind::choice: {
        std::vector<Language> parts;
        for (const Piece& part : piece.parts) parts.push_back(then(part, rest, at_begin));
        return languages_.any_of(parts);
      }
      case Piece::Kind::sequence: return sequence(piece, rest, at_begin);
      default: return languages_.concat(plain(piece), rest);
    }
  }

  Language sequence(const Piece& piece, Language rest, bool at_begin) {
    // Whether each part stands at the text's begin: only anchors and look-aheads take no room.
    std::vector<bool> begins;
    bool unknown = false;
    for (const Piece& part : piece.parts) {
      begins.push_back(at_begin);
      // Behind a part that may be empty the begin may or may not be here.
      if (unknown && part.kind == Piece::Kind::begin) failed_ = true;
      if (part.plain) {
        unknown |= at_begin && languages_.has_empty_text(plain(part));
        at_begin = false;
      } else if (part.kind == Piece::Kind::choice || part.kind == Piece::Kind::sequence) {
        at_begin = false;
      }
    }
    for (std::size_t i = piece.parts.size(); i-- > 0;) rest = then(piece.parts[i], rest, begins[i]);
    return rest;
  }

  Languages& languages_;
  const PatternOptions& options_;
  Language any_ = kNothing;
  Language all_ = kNothing;
  bool failed_ = false;
  std::size_t work_ = 0;
};

}  // namespace

Result<Language> compile_pattern(Languages& languages, std::string_view pattern,
                                 const PatternOptions& options) {
  if (pattern.size() > options.max_bytes)
    return invalid_argument("a pattern of " + std::to_string(pattern.size()) + " bytes is longer than " +
                            std::to_string(options.max_bytes));
  if (!is_valid_utf8(pattern)) return invalid_argument("the pattern " + quote(pattern, 80) + " is not UTF-8");
  PatternParser parser(pattern, options);
  NIBBLE_ASSIGN(const Piece piece, parser.parse());
  PatternMaker maker(languages, options);
  const Language made = maker.whole(piece);
  if (maker.failed())
    return invalid_argument("the pattern " + quote(pattern, 80) +
                            " has too many look-aheads, or a ^ behind what may be empty");
  return made;
}

}  // namespace nibble
