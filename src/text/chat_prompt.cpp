#include "text/chat_prompt.h"

#include <utility>

namespace nibble {
namespace {

constexpr std::size_t longest_template_of_request = std::size_t{128} << 10;
// Some tenths of a second, and as many values at most.
constexpr jinja::Settings limits_of_request{
    .max_steps = 2'000'000, .max_text_bytes = std::size_t{8} << 20, .max_depth = 200};

}  // namespace

Result<ChatPrompter> ChatPrompter::load(const std::filesystem::path& folder, const Tokenizer& tokenizer,
                                        std::optional<Day> day) {
  NIBBLE_ASSIGN(ChatTemplate chat_template, ChatTemplate::load(folder));
  return ChatPrompter(std::move(chat_template), tokenizer, day);
}

Result<ChatPrompter> ChatPrompter::of_request(std::string_view source, std::string_view tokenizer_config,
                                              const Tokenizer& tokenizer, std::optional<Day> day) {
  if (source.size() > longest_template_of_request) {
    return invalid_argument("the template has " + std::to_string(source.size()) +
                            " bytes; one of a request may have " +
                            std::to_string(longest_template_of_request));
  }
  NIBBLE_ASSIGN(ChatTemplate chat_template,
                ChatTemplate::from_source(source, tokenizer_config, limits_of_request));
  return ChatPrompter(std::move(chat_template), tokenizer, day);
}

Result<std::tm> ChatPrompter::time_of(const ChatRequest& request) const {
  const auto named = request.template_variables ? request.template_variables->find("date") : std::nullopt;
  if (named && !named->is_null()) {
    constexpr const char* field = "chat_template_kwargs.date";
    if (!named->is_string()) return invalid_argument(std::string(field) + " must be a day as \"YYYY-MM-DD\"");
    const Result<Day> day = parse_day(named->as_string());
    if (!day.ok()) return invalid_argument(std::string(field) + ": " + day.status().message());
    return day->begin();
  }
  return day_ ? day_->begin() : local_time();
}

Result<ChatPrompt> ChatPrompter::render(std::vector<Message> messages) const {
  ChatRequest request;
  request.messages = std::move(messages);
  return render(request);
}

Result<ChatPrompt> ChatPrompter::render(const ChatRequest& request) const {
  NIBBLE_ASSIGN(const std::tm now, time_of(request));
  NIBBLE_ASSIGN(RenderedPrompt rendered, template_.render(request, now));
  ChatPrompt prompt;
  prompt.ids = tokenizer_.encode(rendered.text, rendered.trusted);
  prompt.answer = answer_start(tokenizer_, prompt.ids);
  // Its text has begun.
  if (request.continue_final_message && prompt.answer.think == ThinkState::undecided)
    prompt.answer.think = ThinkState::answer;
  if (request.tools && template_.call_form() != CallForm::none) {
    prompt.answer.calls = template_.call_form();
    prompt.answer.tools = std::make_shared<const OfferedTools>(OfferedTools::of(*request.tools));
  }
  prompt.text = std::move(rendered.text);
  return prompt;
}

}  // namespace nibble
