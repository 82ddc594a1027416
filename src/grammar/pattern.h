// Regular expressions as ECMA-262 writes them (what JSON schemas' `pattern` means), as languages. Look-ahead
// and anchors are exact at any place that is not repeated; back-references and look-behind are refused.
#pragma once

#include <cstdint>
#include <string_view>

#include "base/status.h"
#include "grammar/characters.h"
#include "grammar/languages.h"

namespace nibble {

struct PatternOptions {
  TextForm form = TextForm::plain;
  bool search = false;       // a match anywhere in the text, as `pattern` asks; else the whole text
  bool ignore_case = false;  // of ASCII letters
  bool dot_is_all = false;   // . is a line's end too
  int max_depth = 64;
  std::size_t max_bytes = 16 << 10;
};

// Errors say what is wrong and at which byte of the pattern.
Result<Language> compile_pattern(Languages& languages, std::string_view pattern,
                                 const PatternOptions& options);

}  // namespace nibble
