// What the demo model cannot show end to end: answers with reasoning, of the endpoints that have a place for
// it.
#include <gtest/gtest.h>

#include "server/api/generation_request.h"
#include "server/api/message_encoder.h"
#include "server/api/reasoning_text.h"
#include "server/api/response_encoder.h"

namespace nibble::api {
namespace {

const Clock& clock() {
  static const ManualClock standing;
  return standing;
}

const Tokenizer& tokenizer() {
  static const Tokenizer loaded = Tokenizer::load(NIBBLE_SOURCE_DIR "/tests/data/parity/example").value();
  return loaded;
}

ChoicePart reasoned() {
  ChoicePart part;
  part.pieces = {{AnswerPart::reasoning, "hm"}, {AnswerPart::answer, "yes"}};
  part.finish = FinishReason::stop;
  return part;
}

GenerationRequest request(const std::string& fields) {
  return std::get<GenerationRequest>(
      parse_generation_request(Endpoint::responses, R"({"input":"a")" + fields + "}", 100));
}

// The types of a stream's events; their numbers are checked where they have some.
std::vector<std::string> types_of(std::string_view events) {
  std::vector<std::string> types;
  std::int64_t number = 0;
  while (!events.empty()) {
    const std::size_t end = events.find("\n\n"), data = events.find("data: ") + 6;
    const JsonDocument event = JsonDocument::parse(std::string(events.substr(data, end - data))).value();
    types.emplace_back(event.root().find("type")->as_string());
    EXPECT_TRUE(events.starts_with("event: " + types.back() + "\n"));
    if (const auto told = event.root().find("sequence_number")) {
      EXPECT_EQ(told->as_integer(), number++);
    }
    events.remove_prefix(end + 2);
  }
  return types;
}

TEST(ResponseEncoder, ReasoningIsAnItemBeforeTheMessage) {
  for (const bool summary : {false, true}) {
    ResponseEncoder encoder({.id = "resp_1", .model = "m"},
                            request(summary ? R"(,"reasoning":{"summary":"auto"})" : ""), tokenizer(),
                            clock(), {});
    std::string events = encoder.begin({});
    events += encoder.part(reasoned(), {});
    events += encoder.end({});
    const std::string kind = summary ? "response.reasoning_summary_text" : "response.reasoning_text";
    const std::string part = summary ? "response.reasoning_summary_part" : "response.content_part";
    EXPECT_EQ(types_of(events),
              (std::vector<std::string>{
                  "response.created", "response.in_progress", "response.output_item.added", part + ".added",
                  kind + ".delta", kind + ".done", part + ".done", "response.output_item.done",
                  "response.output_item.added", "response.content_part.added", "response.output_text.delta",
                  "response.output_text.done", "response.content_part.done", "response.output_item.done",
                  "response.completed"}));
  }
}

TEST(ResponseEncoder, ReasoningThatIsBroughtBackIsTheSame) {
  ResponseEncoder encoder({.id = "resp_1", .model = "m"},
                          request(R"(,"include":["reasoning.encrypted_content"])"), tokenizer(), clock(), {});
  const ChoicePart part = reasoned();
  const JsonDocument whole = JsonDocument::parse(encoder.whole({&part, 1}, {})).value();
  const JsonValue item = *whole.root().find("output")->elements().begin();
  EXPECT_EQ(unwrapped_reasoning(item.find("encrypted_content")->as_string()), "hm");
  for (const std::string text : {"", "a", "ab", "abc", "\u00e9\n\"", "abcd"})
    EXPECT_EQ(unwrapped_reasoning(wrapped_reasoning(text)), text);
  for (const char* other :
       {"", "gAAAA", "nibble-reasoning-1.Y", "nibble-reasoning-1.YR", "nibble-reasoning-1._w"})
    EXPECT_FALSE(unwrapped_reasoning(other)) << other;
}

TEST(ResponseEncoder, ACompletedResponseTellsWhenItWas) {
  ManualClock clock;
  clock.advance(std::chrono::seconds(70));
  ChoicePart part = reasoned();
  for (const FinishReason finish : {FinishReason::stop, FinishReason::length}) {
    ResponseEncoder encoder({.id = "resp_1", .model = "m"}, request(""), tokenizer(), clock, {});
    const JsonDocument begun = JsonDocument::parse(encoder.unfinished("in_progress")).value();
    EXPECT_TRUE(begun.root().find("completed_at")->is_null());
    part.finish = finish;
    const JsonDocument whole = JsonDocument::parse(encoder.whole({&part, 1}, {})).value();
    const JsonValue at = *whole.root().find("completed_at");
    if (finish == FinishReason::length) {
      EXPECT_TRUE(at.is_null()) << "it was cut";
    } else {
      EXPECT_EQ(at.as_integer(), 70);
    }
  }
}

TEST(ResponseEncoder, WhatIsKeptIsWhatTheConversationGoesOnFrom) {
  std::optional<EndedResponse> kept;
  ResponseEncoder encoder({.id = "resp_1", .model = "m"}, request(""), tokenizer(), clock(),
                          [&](EndedResponse ended) { kept = std::move(ended); });
  const ChoicePart part = reasoned();
  const std::string whole = encoder.whole({&part, 1}, {});
  ASSERT_TRUE(kept && !kept->failed);
  EXPECT_EQ(kept->json, whole);
  EXPECT_EQ(kept->answer.content, "yes");
  EXPECT_EQ(kept->answer.reasoning, "hm");
}

TEST(MessageEncoder, ReasoningIsABlockBeforeTheText) {
  MessageEncoder encoder({.id = "msg_1", .model = "m"}, 5);
  std::string events = encoder.part(reasoned(), {});
  events += encoder.end({});
  EXPECT_EQ(types_of(events),
            (std::vector<std::string>{"message_start", "ping", "content_block_start", "content_block_delta",
                                      "content_block_delta", "content_block_stop", "content_block_start",
                                      "content_block_delta", "content_block_stop", "message_delta",
                                      "message_stop"}));
}

TEST(MessageEncoder, ThinkingEndsWithASignatureThatIsEmpty) {
  MessageEncoder encoder({.id = "msg_1", .model = "m"}, 5);
  const std::string events = encoder.part(reasoned(), {});
  const std::size_t thinking = events.find("thinking_delta"), signature = events.find("signature_delta");
  EXPECT_LT(thinking, signature);
  EXPECT_LT(signature, events.find("content_block_stop"));
  EXPECT_EQ(events.find("signature_delta", signature + 1), events.npos) << "a text has none";
}

TEST(MessageEncoder, ACutAnswerHasNotEndedItsTurn) {
  MessageEncoder encoder({.id = "msg_1", .model = "m"}, 5);
  ChoicePart part;
  part.finish = FinishReason::cut;
  std::string events = encoder.part(part, {});
  events += encoder.end({});
  EXPECT_NE(events.find("max_tokens"), std::string::npos);
}

TEST(MessageEncoder, AnAnswerWithoutATokenStillHasItsBeginning) {
  MessageEncoder encoder({.id = "msg_1", .model = "m"}, 5);
  ChoicePart part;
  part.finish = FinishReason::stop;
  std::string events = encoder.part(part, {});
  events += encoder.end({});
  EXPECT_NE(events.find("message_start"), std::string::npos);
  EXPECT_NE(events.find("end_turn"), std::string::npos);
}

}  // namespace
}  // namespace nibble::api
