#include "text/open_message.h"

#include <gtest/gtest.h>

#include "base/file.h"
#include "text/chat_template.h"

namespace nibble {
namespace {

constexpr std::tm kNow{.tm_mday = 5, .tm_mon = 7, .tm_year = 125};

ChatRequest conversation(std::string last) {
  ChatRequest request;
  request.messages = {{.role = Role::user, .content = "Once"},
                      {.role = Role::assistant, .content = "Once"},
                      {.role = Role::user, .content = "Tell me"},
                      {.role = Role::assistant, .content = std::move(last)}};
  request.add_generation_prompt = false;
  request.continue_final_message = true;
  return request;
}

std::string rendered(const ChatTemplate& chat, const ChatRequest& request) {
  const auto prompt = chat.render(request, kNow);
  if (!prompt.ok()) return "refused: " + prompt.status().message();
  for (const TextSpan& span : prompt->trusted)
    EXPECT_TRUE(span.begin < span.end && span.end <= prompt->text.size());
  return prompt->text;
}

ChatTemplate jinja(std::string_view source) { return ChatTemplate::from_source(source).value(); }

constexpr const char* chatml =
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}";
constexpr const char* trimming =
    "{% for m in messages %}[{{ m.role }}]{{ m.content | trim }}[end]{% endfor %}";

TEST(OpenMessage, ThePromptEndsWithTheLastMessagesText) {
  EXPECT_EQ(rendered(jinja(chatml), conversation("Once upon ")),
            "<|im_start|>user\nOnce<|im_end|>\n<|im_start|>assistant\nOnce<|im_end|>\n<|im_start|>user\nTell "
            "me<|im_end|>\n<|im_start|>assistant\nOnce upon ");
}

TEST(OpenMessage, WhiteSpaceThatTheTemplateLeavesOutIsLeftOut) {
  EXPECT_EQ(rendered(jinja(trimming), conversation(" \nOnce upon ")),
            "[user]Once[end][assistant]Once[end][user]Tell me[end][assistant]Once upon");
}

// A text that stands in the template too is not taken for the message.
TEST(OpenMessage, TheTemplatesOwnTextIsNotTheMessage) {
  for (const char* last : {"end", "]", "assistant", "user"})
    EXPECT_TRUE(rendered(jinja(trimming), conversation(last)).ends_with("[assistant]" + std::string(last)));
}

TEST(OpenMessage, InHarmonyTheFinalMessageStaysOpen) {
  const std::string prompt = rendered(ChatTemplate::harmony(""), conversation("Once upon "));
  EXPECT_TRUE(prompt.ends_with("<|start|>assistant<|channel|>final<|message|>Once upon ")) << prompt;
}

// The cut prompt is what the template writes for the message, up to its text's end.
TEST(OpenMessage, EveryKnownTemplateGoesOnWithTheMessage) {
  int templates = 0;
  for (const auto& entry :
       std::filesystem::directory_iterator(NIBBLE_SOURCE_DIR "/tests/data/chat_templates")) {
    if (entry.path().extension() != ".jinja") continue;
    const auto chat = ChatTemplate::from_source(read_file(entry.path(), 1 << 20).value());
    if (!chat.ok()) continue;
    ChatRequest request = conversation("The fox said to all the other animals:");
    request.messages.erase(request.messages.begin(), request.messages.begin() + 2);
    const std::string cut = rendered(*chat, request);
    request.continue_final_message = false;
    const std::string whole = rendered(*chat, request);
    if (whole.starts_with("refused")) continue;
    EXPECT_TRUE(cut.ends_with("The fox said to all the other animals:")) << entry.path() << cut;
    EXPECT_TRUE(whole.starts_with(cut)) << entry.path();
    ++templates;
  }
  EXPECT_GT(templates, 3);
}

TEST(OpenMessage, WhatHasNoTextToContinueIsRefused) {
  ChatRequest request = conversation(" \n");
  EXPECT_EQ(rendered(jinja(chatml), request), "refused: the last message has no text to continue");
  request.messages.back().content.reset();
  EXPECT_EQ(rendered(jinja(chatml), request), "refused: the last message has no text to continue");
  request.messages.back().tool_calls = {{.id = "1", .name = "f", .arguments = "{}"}};
  EXPECT_EQ(rendered(jinja(chatml), request),
            "refused: the last message calls a tool: it cannot be continued");
  const std::string changed = rendered(jinja("{% for m in messages %}{{ m.content | upper }}|{% endfor %}"),
                                       conversation("Once upon"));
  EXPECT_TRUE(changed.starts_with("refused: the chat template does not end with")) << changed;
}

}  // namespace
}  // namespace nibble
