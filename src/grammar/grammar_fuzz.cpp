// Any bytes as a schema, a grammar or a pattern: refused with a sentence, or a grammar that any text can be
// tried on.
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/check.h"
#include "grammar/grammar_data.h"

using namespace nibble;

namespace {

Result<std::shared_ptr<const Grammar>> compile(char kind, std::string_view text) {
  const CompileLimits limits{.max_bytes = 4096, .max_states = 20'000, .max_milliseconds = 200};
  switch (kind) {
    case 'g': return compile_gbnf(text, limits);
    case 'l': return compile_lark(text, limits);
    case 'r': return compile_regex(text, limits);
    default: break;
  }
  NIBBLE_ASSIGN(const JsonDocument document, JsonDocument::parse(std::string(text)));
  return compile_json_schema(document.root(), {}, limits);
}

}  // namespace

// The first byte names the kind; behind the first zero byte stands a text to try.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  if (input.empty()) return 0;
  const std::size_t cut = input.find('\0');
  const auto grammar = compile(input[0], input.substr(1, cut - 1));
  if (!grammar.ok()) {
    NIBBLE_CHECK(!grammar.status().message().empty());
    return 0;
  }
  Matcher matcher = (*grammar)->matcher();
  Matcher::State state = matcher.start();
  for (const char byte : cut == std::string_view::npos ? "{\"a\":[1,null]}" : input.substr(cut + 1))
    state = matcher.step(state, static_cast<std::uint8_t>(byte));
  return 0;
}
