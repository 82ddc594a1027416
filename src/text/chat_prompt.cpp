#include "text/chat_prompt.h"

#include <ctime>
#include <utility>

namespace nibble {
namespace {

std::tm local_time() {
  const std::time_t now = std::time(nullptr);
  std::tm local = {};
  ::localtime_r(&now, &local);
  return local;
}

}  // namespace

Result<ChatPrompter> ChatPrompter::load(const std::filesystem::path& folder, const Tokenizer& tokenizer) {
  NIBBLE_ASSIGN(ChatTemplate chat_template, ChatTemplate::load(folder));
  return ChatPrompter(std::move(chat_template), tokenizer);
}

Result<ChatPrompt> ChatPrompter::render(std::vector<Message> messages) const {
  ChatRequest request;
  request.messages = std::move(messages);
  return render(request);
}

Result<ChatPrompt> ChatPrompter::render(const ChatRequest& request) const {
  NIBBLE_ASSIGN(RenderedPrompt rendered, template_.render(request, local_time()));
  ChatPrompt prompt;
  prompt.ids = tokenizer_.encode(rendered.text, rendered.trusted);
  // Whatever wrote it, a prompt that ends so is answered in harmony: the header of the message is open.
  if (rendered.text.ends_with("<|start|>assistant")) prompt.format = AnswerFormat::harmony;
  prompt.text = std::move(rendered.text);
  return prompt;
}

}  // namespace nibble
