// Chat templates: the subset of Jinja that models ship (docs/internals/text.md says which), rendered as
// transformers renders it (ImmutableSandboxedEnvironment, trim_blocks, lstrip_blocks, loopcontrols) but with
// limits, and with the knowledge of which bytes the template wrote and which came with the request.
#pragma once

#include <ctime>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/status.h"
#include "text/conversation.h"

namespace nibble::jinja {

class Value;
struct Template;

struct Settings {
  std::size_t max_steps = 20'000'000;                  // nodes evaluated, plus one for every 8 bytes made
  std::size_t max_text_bytes = std::size_t{32} << 20;  // of the output, or of any text on the way
  int max_depth = 400;                                 // of nested evaluations, macros included
  std::tm now = {};                                    // what strftime_now formats
};

using Variables = std::vector<std::pair<std::string, Value>>;

}  // namespace nibble::jinja

namespace nibble {

// Immutable once parsed; render may be called from any number of threads at once.
class JinjaTemplate {
 public:
  // A fault names its line: "chat template line 3: there is no filter 'x' here".
  static Result<JinjaTemplate> parse(std::string_view source);

  Result<RenderedPrompt> render(const jinja::Variables& variables,
                                const jinja::Settings& settings = {}) const;
  // Whether the template defines a macro of this name at its top level.
  bool defines_macro(std::string_view name) const;

 private:
  explicit JinjaTemplate(std::shared_ptr<const jinja::Template> parsed) : parsed_(std::move(parsed)) {}
  std::shared_ptr<const jinja::Template> parsed_;
};

}  // namespace nibble
