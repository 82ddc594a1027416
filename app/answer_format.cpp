#include "app/answer_format.h"

#include "app/input_text.h"
#include "base/json.h"
#include "server/api/grammar_cache.h"

namespace nibble {

std::vector<OptionSpec> format_option_specs(FormatOptions& options) {
  return {{.name = "--json-schema",
           .value = "FILE",
           .help = "a JSON schema (draft 2020-12)",
           .set = noting(options.has_schema, string_value(options.schema))},
          {.name = "--grammar",
           .value = "FILE",
           .help = "a grammar in GBNF, or in the manner of Lark",
           .set = noting(options.has_grammar, string_value(options.grammar))},
          {.name = "--regex",
           .value = "PATTERN",
           .help = "a pattern that the whole text matches",
           .set = noting(options.has_regex, string_value(options.regex))}};
}

namespace {

const char* name_of(const FormatOptions& options) {
  return options.has_regex    ? "--regex"
         : options.has_schema ? "--json-schema"
         : options.has_lark   ? "--lark"
                              : "--grammar";
}

Result<std::shared_ptr<const Grammar>> compile(const FormatOptions& options, const SchemaOptions& schema,
                                               Console& console) {
  if (options.has_regex) return compile_regex(options.regex);
  NIBBLE_ASSIGN(std::string text, read_input_text(options.has_schema ? options.schema
                                                  : options.has_lark ? options.lark
                                                                     : options.grammar,
                                                  console));
  if (options.has_lark) return compile_lark(text);
  if (options.has_grammar) return api::compile_grammar(text);
  NIBBLE_ASSIGN(const JsonDocument document, JsonDocument::parse(std::move(text)));
  return compile_json_schema(document.root(), schema);
}

}  // namespace

Result<std::shared_ptr<const Grammar>> compile_format(const FormatOptions& options,
                                                      const SchemaOptions& schema, Console& console) {
  auto grammar = compile(options, schema, console);
  if (!grammar.ok()) return grammar.status().with_context(name_of(options));
  return grammar;
}

}  // namespace nibble
