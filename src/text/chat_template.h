// Which chat format a model folder asks for, and rendering conversations in it.
//
// A model's template is chat_template.jinja, else tokenizer_config.json's "chat_template" (a text, or a list
// of named ones of which "default" is taken). OpenAI's own template of gpt-oss is recognised and replaced by
// the native harmony renderer; any other template is rendered as it is, also for a gpt_oss model. A gpt_oss
// model without a template speaks harmony.
#pragma once

#include <ctime>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "base/status.h"
#include "text/call_form.h"
#include "text/conversation.h"
#include "text/jinja/jinja.h"

namespace nibble {

// Immutable once loaded; render may be called from any number of threads at once.
class ChatTemplate {
 public:
  enum class Kind { jinja, harmony };

  // not_found when the model names no template at all.
  static Result<ChatTemplate> load(const std::filesystem::path& model_dir);
  // A template given by its text; `tokenizer_config` (may be empty JSON, "{}") tells its special tokens.
  static Result<ChatTemplate> from_source(std::string_view source, std::string_view tokenizer_config = "{}",
                                          const jinja::Settings& limits = {});
  static ChatTemplate harmony(std::string why);

  // `now` is the local time that a template may print.
  Result<RenderedPrompt> render(const ChatRequest& request, const std::tm& now) const;

  Kind kind() const { return kind_; }
  // What was chosen and why, as a sentence for logs and plans.
  const std::string& why() const { return why_; }
  // How it has the model write calls of tools.
  CallForm call_form() const { return call_form_; }

 private:
  ChatTemplate() = default;
  // How a template wants what the API leaves open.
  struct ToolCallForm {
    bool arguments_as_text = false;     // a call's arguments: their JSON text, not a mapping
    bool null_content_as_text = false;  // an absent content: "", not None
  };
  static Result<jinja::Value> message_value(const Message& message, ToolCallForm form);
  Result<RenderedPrompt> render_jinja(const ChatRequest& request, const std::tm& now,
                                      ToolCallForm form) const;
  Result<RenderedPrompt> render_whole(const ChatRequest& request, const std::tm& now) const;
  void choose_tool_call_form();

  Kind kind_ = Kind::jinja;
  std::string why_;
  CallForm call_form_ = CallForm::none;
  jinja::Settings limits_;
  std::vector<JinjaTemplate> jinja_;  // the one, unless harmony
  // bos_token and the others of tokenizer_config.json: the model's own text, so trusted.
  std::vector<std::pair<std::string, std::string>> special_tokens_;
  ToolCallForm form_;
  // Kimi's tokenizer sorts the keys of tools, all the way down, before its template sees them.
  bool sorts_tools_ = false;
};

// Whether a template is OpenAI's harmony template (or one edited from it): it defines the three macros by
// which that template is built.
bool is_openai_harmony_template(const JinjaTemplate& parsed);

}  // namespace nibble
