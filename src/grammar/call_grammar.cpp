#include "grammar/call_grammar.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "grammar/call_parameters.h"
#include "grammar/compile_clock.h"
#include "grammar/grammar_data.h"
#include "grammar/schema_compiler.h"

namespace nibble {
namespace {

// Nobody reads arguments, so they stand in one line.
constexpr SchemaOptions in_a_line{.whitespace = JsonWhitespace::blanks};

Status placed(const BoundFunction& function, const Status& status) {
  return invalid_argument(function.where + ": " + status.message());
}

class CallCompiler {
 public:
  CallCompiler(const CallRules& rules, const OfferedTools& tools, const GrammarVocabulary& vocabulary,
               const CompileLimits& limits)
      : rules_(rules),
        marks_(call_marks(rules.form)),
        tools_(tools),
        vocabulary_(vocabulary),
        clock_(limits) {
    std::vector<std::string_view> ends;
    if (!marks_.close.empty()) ends.push_back(marks_.close);
    if (rules.form == CallForm::xml_in_tags) ends.push_back("</parameter>");
    if (rules.form == CallForm::arguments_in_tags) ends.push_back(marks_.inside[3]);
    std::vector<Language> without;
    Languages& languages = symbols_.languages;
    for (const std::string_view end : ends) {
      without.push_back(
          languages.except(languages.concat({kEverything, languages.literal(end), kEverything})));
    }
    values_ = languages.all_of(without);
  }

  Result<Symbols> compile(std::span<const BoundFunction> functions) {
    std::vector<SymbolId> calls;
    for (const BoundFunction& function : functions) {
      Result<SymbolId> call = body(function, function.schema);
      if (!call.ok() && !function.strict) call = body(function, std::nullopt);
      if (!call.ok()) return placed(function, call.status());
      calls.push_back(*call);
      if (const Status status = clock_.check(); !status.ok())
        return invalid_argument("tools: their schemas: " + status.message());
    }
    const SymbolId any = symbols_.choice(calls);
    symbols_.root = rules_.text == CallRules::Text::call ? sequence({any, mark(marks_.close)}) : answer(any);
    if (rules_.text == CallRules::Text::either)
      symbols_.root = symbols_.choice(std::vector<SymbolId>{symbols_.root, text_without_calls()});
    return std::move(symbols_);
  }

 private:
  SymbolId text(std::string_view bytes) { return symbols_.text(symbols_.languages.literal(bytes)); }
  SymbolId mark(std::string_view spelling) { return text(vocabulary_.mark(spelling)); }
  SymbolId newlines(std::uint32_t most) {
    return symbols_.text(symbols_.languages.repeat(symbols_.languages.literal("\n"), 0, most));
  }
  SymbolId sequence(std::initializer_list<SymbolId> parts) {
    return symbols_.sequence(std::span(parts.begin(), parts.size()));
  }

  // Of bare JSON. Neither an object nor the mark stands at its beginning.
  SymbolId text_without_calls() {
    Languages& languages = symbols_.languages;
    ByteSet blanks;
    for (const char byte : {' ', '\t', '\r', '\n'}) blanks.add(static_cast<unsigned char>(byte));
    const Language blank = languages.repeat(languages.bytes(blanks), 0, kUnbounded);
    const Language call = languages.any_of({languages.literal("{"), languages.literal(marks_.open)});
    return symbols_.text(languages.except(languages.concat({blank, call, kEverything})));
  }

  // Templates part calls by a newline or by nothing. Bare JSON is one call: the family's templates refuse a
  // conversation that has more in a message.
  SymbolId answer(SymbolId any) {
    if (rules_.form == CallForm::bare_json) return any;
    const SymbolId call = sequence({mark(marks_.open), any, mark(marks_.close)});
    const SymbolId more = symbols_.repeat(sequence({newlines(1), call}), 0, rules_.several ? kUnbounded : 0);
    const bool sections = !marks_.section_open.empty();
    if (!sections) return sequence({newlines(2), call, more});
    return sequence(
        {newlines(2), mark(marks_.section_open), call, more, newlines(1), mark(marks_.section_close)});
  }

  Result<SymbolId> body(const BoundFunction& function, const std::optional<JsonValue>& schema) {
    const JsonValue any = any_object_.root();
    const CompileLimits left = clock_.rest();
    SchemaCompiler compiler(symbols_, schema.value_or(any), in_a_line, left);
    Languages& languages = symbols_.languages;
    switch (rules_.form) {
      case CallForm::xml_in_tags: {
        const ParameterForm form{.before =
                                     [&](std::string_view name) {
                                       return languages.literal("<parameter=" + std::string(name) + ">\n");
                                     },
                                 .behind = languages.literal("\n</parameter>\n"),
                                 .ends_name = ">"};
        NIBBLE_ASSIGN(const SymbolId parameters,
                      written_parameters(symbols_, compiler, function.name, tools_, form, values_));
        return sequence({newlines(1), text("<function=" + function.name + ">\n"), parameters,
                         text("</function>"), newlines(1)});
      }
      case CallForm::arguments_in_tags: {
        const auto mark_text = [&](int i) {
          return languages.literal(vocabulary_.mark(marks_.inside[static_cast<std::size_t>(i)]));
        };
        const Language newline = languages.repeat(languages.literal("\n"), 0, 1);
        const ParameterForm form{.before =
                                     [&](std::string_view name) {
                                       return languages.concat({mark_text(0), languages.literal(name),
                                                                mark_text(1), newline, mark_text(2)});
                                     },
                                 .behind = languages.concat(mark_text(3), newline),
                                 .ends_name = marks_.inside[1]};
        NIBBLE_ASSIGN(const SymbolId parameters,
                      written_parameters(symbols_, compiler, function.name, tools_, form, values_));
        return sequence({text(function.name), newlines(1), parameters});
      }
      default: break;
    }
    compiler.hold_strings_to(values_);
    NIBBLE_ASSIGN(const SymbolId arguments, compiler.compile({compiler.reader().root()}, kObject));
    switch (rules_.form) {
      case CallForm::kimi: {
        const Language digit = languages.bytes(ByteSet::range('0', '9'));
        return sequence({text("functions." + function.name + ":"),
                         symbols_.text(languages.repeat(digit, 1, 4)), mark(marks_.inside[0]), arguments});
      }
      case CallForm::bare_json:
        return sequence(
            {text(R"({"name": ")" + function.name + R"(", "parameters": )"), arguments, text("}")});
      case CallForm::deepseek: return sequence({text(function.name), mark(marks_.inside[0]), arguments});
      case CallForm::deepseek_fenced:
        return sequence({text("function"), mark(marks_.inside[0]), text(function.name + "\n```json\n"),
                         arguments, text("\n```")});
      default:
        return sequence({newlines(1), text(R"({"name": ")" + function.name + R"(", "arguments": )"),
                         arguments, text("}"), newlines(1)});
    }
  }

  const CallRules& rules_;
  CallMarks marks_;
  const OfferedTools& tools_;
  const GrammarVocabulary& vocabulary_;
  CompileClock clock_;
  const JsonDocument any_object_ = JsonDocument::parse(R"({"type":"object"})").value();
  Symbols symbols_;
  Language values_ = kEverything;  // texts in which no mark stands that would end them
};

}  // namespace

std::vector<std::string_view> marks_of(CallForm form) {
  const CallMarks marks = call_marks(form);
  std::vector<std::string_view> all;
  const auto add = [&](std::string_view mark) {
    if (!mark.empty()) all.push_back(mark);
  };
  for (const std::string_view mark : {marks.open, marks.close, marks.section_open, marks.section_close})
    add(mark);
  for (const std::string_view mark : marks.inside) add(mark);
  return all;
}

Result<std::shared_ptr<const Grammar>> compile_calls(std::span<const BoundFunction> functions,
                                                     const CallRules& rules, const OfferedTools& tools,
                                                     const GrammarVocabulary& vocabulary,
                                                     const CompileLimits& limits) {
  NIBBLE_CHECK(!call_marks(rules.form).open.empty(), "the form has marks");
  CallCompiler compiler(rules, tools, vocabulary, limits);
  NIBBLE_ASSIGN(Symbols symbols, compiler.compile(functions));
  return finish_grammar(std::move(symbols), limits);
}

Result<std::shared_ptr<const Grammar>> compile_arguments(const BoundFunction& function,
                                                         const CompileLimits& limits) {
  const JsonDocument any_object = JsonDocument::parse(R"({"type":"object"})").value();
  const auto compile = [&](JsonValue schema) -> Result<std::shared_ptr<const Grammar>> {
    Symbols symbols;
    SchemaCompiler compiler(symbols, schema, in_a_line, limits);
    NIBBLE_ASSIGN(symbols.root, compiler.compile({compiler.reader().root()}, kObject));
    return finish_grammar(std::move(symbols), limits);
  };
  auto grammar = compile(function.schema.value_or(any_object.root()));
  if (!grammar.ok() && !function.strict) grammar = compile(any_object.root());
  if (!grammar.ok()) return placed(function, grammar.status());
  return grammar;
}

}  // namespace nibble
