#include "text/jinja/jinja.h"

#include "text/jinja/jinja_interpreter.h"
#include "text/jinja/jinja_parser.h"

namespace nibble {

Result<JinjaTemplate> JinjaTemplate::parse(std::string_view source) {
  NIBBLE_ASSIGN(jinja::Template parsed, jinja::parse_template(source));
  return JinjaTemplate(std::make_shared<const jinja::Template>(std::move(parsed)));
}

Result<RenderedPrompt> JinjaTemplate::render(const jinja::Variables& variables,
                                             const jinja::Settings& settings) const {
  NIBBLE_ASSIGN(const jinja::Text text, jinja::Interpreter(*parsed_, settings).run(variables));
  return RenderedPrompt{text.bytes(), text.trusted()};
}

bool JinjaTemplate::defines_macro(std::string_view name) const {
  for (const jinja::Statement& statement : parsed_->body) {
    if (statement.kind == jinja::Statement::Kind::macro && statement.macro->name == name) return true;
  }
  return false;
}

}  // namespace nibble
