// A template's source to tokens, with the whitespace control that transformers sets: trim_blocks (a newline
// right after a block goes), lstrip_blocks (blanks before a block at the start of a line go), '-' and '+'
// marks, and the source's last newline dropped.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace nibble::jinja {

struct Token {
  enum class Kind : std::uint8_t {
    data,            // text outside of tags
    variable_begin,  // {{
    variable_end,
    block_begin,  // {%
    block_end,
    name,
    string,  // unescaped
    integer,
    real,
    symbol,  // an operator or bracket
    end
  };
  Kind kind = Kind::end;
  int line = 1;
  std::string text;
};

Result<std::vector<Token>> tokenize(std::string_view source);

// "line 12: <what>": how every fault of a template is named.
Status template_fault(int line, std::string what);

}  // namespace nibble::jinja
