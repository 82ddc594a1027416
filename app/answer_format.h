// The options that say what an answer may be, and what they compile to.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "app/cli.h"
#include "base/options.h"
#include "base/status.h"
#include "grammar/grammar.h"

namespace nibble {

struct FormatOptions {
  std::string schema, grammar, lark, regex;
  bool has_schema = false, has_grammar = false, has_lark = false, has_regex = false;

  int given() const { return has_schema + has_grammar + has_lark + has_regex; }
};

// --json-schema, --grammar and --regex; they set `options`, which outlives them.
std::vector<OptionSpec> format_option_specs(FormatOptions& options);

// Of the one that is given; reads its file.
Result<std::shared_ptr<const Grammar>> compile_format(const FormatOptions& options,
                                                      const SchemaOptions& schema, Console& console);

}  // namespace nibble
