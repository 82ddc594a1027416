// Text that remembers, byte for byte, who wrote it: the template (trusted) or the request.
//
// Every string operation of the interpreter ends in append() or slice(), so there is one place where trust
// is carried and none where it can be invented. Three rules keep a client's text inert:
//   - trust never grows: an operation may drop it (tojson, numbers, case mapping that changes a letter's
//     length) but only template literals and the model's own variables bring it in;
//   - neighbouring trusted pieces join, so that '<|' + role + '|>' works where all three are trusted;
//   - an empty text of the request still separates ("seam"): a client who sends "" cannot make two trusted
//     halves join into a control token.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "text/tokenizer.h"

namespace nibble::jinja {

class Text {
 public:
  Text() = default;  // empty, written by the template
  static Text from_template(std::string bytes);
  static Text from_request(std::string bytes);

  const std::string& bytes() const { return bytes_; }
  std::size_t size() const { return bytes_.size(); }
  bool empty() const { return bytes_.empty(); }
  bool wholly_trusted() const;
  // Ascending and disjoint; touching spans are apart because a seam lies between them.
  std::vector<TextSpan> trusted() const;

  void append(const Text& other);
  // Bytes [begin, end) of `other`.
  void append_slice(const Text& other, std::size_t begin, std::size_t end);
  void append_trusted(std::string_view bytes);
  void append_untrusted(std::string_view bytes);
  Text slice(std::size_t begin, std::size_t end) const;
  // Other bytes in the same places (a change of case): the trust stays where it is.
  Text with_bytes(std::string bytes) const;

 private:
  void append_span(TextSpan span);

  std::string bytes_;
  // Trusted spans and, as empty spans, seams. A span that begins where its neighbour ends is apart from it.
  std::vector<TextSpan> spans_;
};

// --- Code points, as Python counts them. Bytes that are not UTF-8 count one each.

struct CodePoint {
  char32_t value = 0;
  std::size_t length = 0;  // bytes
};
CodePoint code_point_at(std::string_view text, std::size_t at);
std::size_t count_code_points(std::string_view text);
// The byte at which code point `index` begins; text.size() if there are not so many.
std::size_t code_point_offset(std::string_view text, std::size_t index);
void append_code_point(std::string& out, char32_t value);

bool is_space(char32_t c);       // str.isspace
bool is_line_break(char32_t c);  // what str.splitlines ends a line at
bool is_printable(char32_t c);   // what repr() shows as it is
bool is_letter(char32_t c);
bool is_decimal(char32_t c);
bool is_cased_upper(char32_t c);
bool is_cased_lower(char32_t c);
char32_t to_upper(char32_t c);
char32_t to_lower(char32_t c);

// The bounds of `text` without what str.strip() removes at its sides; `chars` empty means whitespace.
struct Strip {
  bool left = true;
  bool right = true;
};
TextSpan strip_bounds(std::string_view text, Strip sides, std::string_view chars = {},
                      bool has_chars = false);

}  // namespace nibble::jinja
