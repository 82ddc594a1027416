#include "text/jinja/jinja_text.h"

#include <utf8proc.h>

#include <algorithm>

#include "base/check.h"

namespace nibble::jinja {

Text Text::from_template(std::string bytes) {
  Text text;
  if (!bytes.empty()) text.spans_.push_back({0, bytes.size()});
  text.bytes_ = std::move(bytes);
  return text;
}

Text Text::from_request(std::string bytes) {
  Text text;
  if (bytes.empty()) text.spans_.push_back({0, 0});
  text.bytes_ = std::move(bytes);
  return text;
}

bool Text::wholly_trusted() const {
  if (bytes_.empty()) return spans_.empty();
  return spans_.size() == 1 && spans_[0].begin == 0 && spans_[0].end == bytes_.size();
}

std::vector<TextSpan> Text::trusted() const {
  std::vector<TextSpan> spans;
  for (const TextSpan& span : spans_) {
    if (span.end > span.begin) spans.push_back(span);
  }
  return spans;
}

void Text::append_span(TextSpan span) {
  const bool seam = span.begin == span.end;
  if (!spans_.empty() && spans_.back().end == span.begin && (!seam || spans_.back().begin == span.begin)) {
    // A trusted piece joins the trusted piece or grows out of the seam before it; two seams are one.
    spans_.back().end = span.end;
    return;
  }
  spans_.push_back(span);
}

void Text::append(const Text& other) {
  const std::size_t shift = bytes_.size();
  bool joins = true;
  for (const TextSpan& span : other.spans_) {
    // Spans of `other` that touch each other are apart, and stay so; only the first may join ours.
    if (joins) {
      append_span({span.begin + shift, span.end + shift});
    } else {
      spans_.push_back({span.begin + shift, span.end + shift});
    }
    joins = false;
  }
  bytes_ += other.bytes_;
}

void Text::append_slice(const Text& other, std::size_t begin, std::size_t end) {
  append(other.slice(begin, end));
}

void Text::append_trusted(std::string_view bytes) {
  if (bytes.empty()) return;
  append_span({bytes_.size(), bytes_.size() + bytes.size()});
  bytes_ += bytes;
}

void Text::append_untrusted(std::string_view bytes) {
  if (bytes.empty()) append_span({bytes_.size(), bytes_.size()});
  bytes_ += bytes;
}

Text Text::slice(std::size_t begin, std::size_t end) const {
  if (begin >= end) return wholly_trusted() ? Text() : from_request({});
  Text part;
  part.bytes_ = bytes_.substr(begin, end - begin);
  const auto first = std::lower_bound(spans_.begin(), spans_.end(), begin,
                                      [](const TextSpan& span, std::size_t at) { return span.end < at; });
  for (auto span = first; span != spans_.end() && span->begin <= end; ++span) {
    const std::size_t from = std::max(span->begin, begin);
    const std::size_t to = std::min(span->end, end);
    // A trusted span that merely touches the slice is no part of it; a seam at its edge still is.
    if (from == to && span->begin != span->end) continue;
    part.spans_.push_back({from - begin, to - begin});
  }
  return part;
}

Text Text::with_bytes(std::string bytes) const {
  NIBBLE_CHECK(bytes.size() == bytes_.size());
  Text other = *this;
  other.bytes_ = std::move(bytes);
  return other;
}

CodePoint code_point_at(std::string_view text, std::size_t at) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char lead = byte(at);
  if (lead < 0x80) return {lead, 1};
  const std::size_t length = lead >= 0xF0 ? 4 : lead >= 0xE0 ? 3 : lead >= 0xC2 ? 2 : 1;
  if (length == 1 || lead > 0xF4 || at + length > text.size()) return {0xFFFD, 1};
  char32_t value = lead & (0xFF >> (length + 1));
  for (std::size_t i = 1; i < length; ++i) {
    if ((byte(at + i) & 0xC0) != 0x80) return {0xFFFD, 1};
    value = (value << 6) | (byte(at + i) & 0x3F);
  }
  return {value, length};
}

std::size_t count_code_points(std::string_view text) {
  std::size_t count = 0;
  for (std::size_t at = 0; at < text.size(); ++count) at += code_point_at(text, at).length;
  return count;
}

std::size_t code_point_offset(std::string_view text, std::size_t index) {
  std::size_t at = 0;
  while (index > 0 && at < text.size()) {
    at += code_point_at(text, at).length;
    --index;
  }
  return at;
}

void append_code_point(std::string& out, char32_t value) {
  utf8proc_uint8_t buffer[4];
  const auto length = utf8proc_encode_char(static_cast<utf8proc_int32_t>(value), buffer);
  out.append(reinterpret_cast<const char*>(buffer), static_cast<std::size_t>(length));
}

bool is_space(char32_t c) {
  if (c < 0x80) return (c >= 0x09 && c <= 0x0D) || (c >= 0x1C && c <= 0x20);
  return c == 0x85 || c == 0xA0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200A) || c == 0x2028 ||
         c == 0x2029 || c == 0x202F || c == 0x205F || c == 0x3000;
}

bool is_line_break(char32_t c) {
  return (c >= 0x0A && c <= 0x0D) || (c >= 0x1C && c <= 0x1E) || c == 0x85 || c == 0x2028 || c == 0x2029;
}

namespace {
utf8proc_category_t category(char32_t c) { return utf8proc_category(static_cast<utf8proc_int32_t>(c)); }
}  // namespace

bool is_printable(char32_t c) {
  if (c == ' ') return true;
  switch (category(c)) {
    case UTF8PROC_CATEGORY_CN:
    case UTF8PROC_CATEGORY_CC:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_CS:
    case UTF8PROC_CATEGORY_CO:
    case UTF8PROC_CATEGORY_ZS:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP: return false;
    default: return true;
  }
}

bool is_letter(char32_t c) {
  const auto of = category(c);
  return of >= UTF8PROC_CATEGORY_LU && of <= UTF8PROC_CATEGORY_LO;
}
bool is_decimal(char32_t c) { return category(c) == UTF8PROC_CATEGORY_ND; }
bool is_cased_upper(char32_t c) { return category(c) == UTF8PROC_CATEGORY_LU; }
bool is_cased_lower(char32_t c) { return category(c) == UTF8PROC_CATEGORY_LL; }
char32_t to_upper(char32_t c) {
  return static_cast<char32_t>(utf8proc_toupper(static_cast<utf8proc_int32_t>(c)));
}
char32_t to_lower(char32_t c) {
  return static_cast<char32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(c)));
}

TextSpan strip_bounds(std::string_view text, Strip sides, std::string_view chars, bool has_chars) {
  const auto removed = [&](CodePoint c, std::size_t at) {
    if (!has_chars) return is_space(c.value);
    const std::string_view spelled = text.substr(at, c.length);
    for (std::size_t i = 0; i < chars.size();) {
      const std::size_t length = code_point_at(chars, i).length;
      if (chars.substr(i, length) == spelled) return true;
      i += length;
    }
    return false;
  };
  TextSpan kept{0, text.size()};
  if (sides.left) {
    while (kept.begin < text.size()) {
      const CodePoint c = code_point_at(text, kept.begin);
      if (!removed(c, kept.begin)) break;
      kept.begin += c.length;
    }
  }
  if (sides.right) {
    while (kept.end > kept.begin) {
      std::size_t at = kept.end - 1;
      while (at > kept.begin && kept.end - at < 4 && (static_cast<unsigned char>(text[at]) & 0xC0) == 0x80)
        --at;
      CodePoint c = code_point_at(text, at);
      if (at + c.length != kept.end) {
        at = kept.end - 1;
        c = {0xFFFD, 1};
      }
      if (!removed(c, at)) break;
      kept.end = at;
    }
  }
  return kept;
}

}  // namespace nibble::jinja
