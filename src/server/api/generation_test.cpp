#include "server/api/generation.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <functional>
#include <random>

#include "base/json.h"

namespace nibble::api {
namespace {

const Tokenizer& tokenizer() {
  static const Tokenizer loaded = Tokenizer::load(NIBBLE_SOURCE_DIR "/tests/data/parity/example").value();
  return loaded;
}

// Keeps what is answered.
class RecordingExchange final : public http::Exchange {
 public:
  const http::HttpRequest& request() const override { return request_; }
  void answer(http::Response response) override {
    EXPECT_FALSE(ended);
    status = response.status;
    body = std::move(response.body);
    ended = true;
  }
  void begin_stream(http::Response) override {}
  void stream(std::string_view data) override {
    EXPECT_FALSE(ended);
    body += data;
  }
  void end_stream() override { ended = true; }
  void break_stream() override { ended = broken = true; }
  void on_gone(std::function<void()>) override {}

  int status = 200;
  std::string body;
  bool ended = false, broken = false;

 private:
  http::HttpRequest request_;
};

struct Asked {
  std::string fields;
  std::string tools = {};  // that the answer may call
};

// The prompt of a chat with a harmony model ends so.
AnswerStart begun() { return answer_start(tokenizer(), tokenizer().encode_trusted("<|start|>assistant")); }

struct Answering {
  std::shared_ptr<RecordingExchange> exchange = std::make_shared<RecordingExchange>();
  std::unique_ptr<Generation> generation;

  explicit Answering(const Asked& asked) {
    const std::string body = R"({"messages":[{"role":"user","content":"a"}])" +
                             (asked.fields.empty() ? "" : "," + asked.fields) + "}";
    PreparedRequest prepared{.request = std::get<GenerationRequest>(parse_generation_request(
                                 Endpoint::chat, body, tokenizer().vocabulary_size())),
                             .prompts = {{.ids = {1, 2, 3}, .answer = begun(), .text = "abc"}},
                             .stop = {},
                             .memory = {}};
    if (!asked.tools.empty()) {
      const JsonDocument tools = JsonDocument::parse(asked.tools).value();
      prepared.prompts[0].answer.calls = CallForm::harmony;
      prepared.prompts[0].answer.tools = std::make_shared<const OfferedTools>(OfferedTools::of(tools.root()));
    }
    prepared.stop = StopStrings::make(prepared.request.sampling.stop).value();
    auto encoder = make_encoder(prepared.request, AnswerHead{.id = "chatcmpl-x", .model = "m"}, tokenizer());
    generation = std::make_unique<Generation>(exchange, std::move(prepared), std::move(encoder), tokenizer());
  }

  Generation::After give(int choice, TokenId token, FinishReason finish = FinishReason::none) {
    return generation->take(choice, {.token = token, .logprob = -1, .finish = finish});
  }
};

struct Read {
  std::string content, reasoning, finish;
  int finishes = 0;
  std::string told;  // the bytes of the log-probabilities' tokens, joined
  bool tells = false;
};

void read_logprobs(JsonValue choice, Read& read) {
  const JsonValue logprobs = *choice.find("logprobs");
  if (!logprobs.is_object()) return;
  read.tells = true;
  for (const JsonValue token : logprobs.find("content")->elements()) {
    for (const JsonValue byte : token.find("bytes")->elements())
      read.told += static_cast<char>(byte.as_integer());
  }
}

// A stream's chunks joined; each must be a line of server-sent events with JSON in it.
Read read_stream(const std::string& body) {
  Read read;
  std::string_view left = body;
  bool done = false;
  while (!left.empty()) {
    const std::size_t end = left.find("\n\n");
    EXPECT_TRUE(left.starts_with("data: ") && end != left.npos);
    const std::string_view data = left.substr(6, end - 6);
    left.remove_prefix(end + 2);
    if (data == "[DONE]") {
      done = true;
      EXPECT_TRUE(left.empty());
      break;
    }
    const Result<JsonDocument> event = JsonDocument::parse(std::string(data));  // refuses what is not UTF-8
    EXPECT_TRUE(event.ok()) << data;
    const JsonValue choice = *event->root().find("choices")->elements().begin();
    const JsonValue delta = *choice.find("delta");
    read_logprobs(choice, read);
    if (const auto text = delta.find("content")) read.content += text->as_string();
    if (const auto text = delta.find("reasoning_content")) read.reasoning += text->as_string();
    if (const auto finish = choice.find("finish_reason"); finish->is_string()) {
      read.finish = finish->as_string();
      ++read.finishes;
    }
  }
  EXPECT_TRUE(done);
  return read;
}

Read read_whole(const std::string& body) {
  const JsonDocument answer = JsonDocument::parse(body).value();
  const JsonValue choice = *answer.root().find("choices")->elements().begin();
  const JsonValue message = *choice.find("message");
  Read read{.content = std::string(message.find("content")->as_string()),
            .finish = std::string(choice.find("finish_reason")->as_string()),
            .finishes = 1};
  if (const auto text = message.find("reasoning_content")) read.reasoning = text->as_string();
  read_logprobs(choice, read);
  return read;
}

// Tokens as a model gone wrong would say them: mostly markers, some text, some halves of characters.
std::vector<TokenId> babble(std::mt19937& random) {
  static const std::vector<TokenId> markers = tokenizer().encode_trusted(
      "<|start|><|channel|><|message|><|end|><|constrain|><|return|><|call|>analysisfinalcommentary "
      "to=functions.x json");
  std::vector<TokenId> tokens(1 + random() % 24);
  for (TokenId& token : tokens) {
    token = random() % 3 > 0
                ? markers[random() % markers.size()]
                : static_cast<TokenId>(random() % static_cast<unsigned>(tokenizer().vocabulary_size()));
  }
  return tokens;
}

TEST(Generation, WhateverAModelSaysIsAnAnswerWithOneEndStreamedOrWhole) {
  const char* count = std::getenv("NIBBLE_RANDOM_ANSWERS");
  const int rounds = count != nullptr ? std::atoi(count) : 4000;
  std::mt19937 random(3);
  const std::string fields[] = {"", R"("stop":["a","to="])", R"("logprobs":true,"top_logprobs":1)",
                                R"("logprobs":true,"stop":["a","to="])", R"("min_tokens":4,"stop":"e")"};
  for (int round = 0; round < rounds; ++round) {
    const std::vector<TokenId> tokens = babble(random);
    const std::string& asked = fields[random() % std::size(fields)];
    const FinishReason last = random() % 2 == 0 ? FinishReason::stop : FinishReason::length;
    Read reads[2];
    for (const bool stream : {false, true}) {
      Answering answering(
          {.fields = asked + (stream ? std::string(asked.empty() ? "" : ",") + "\"stream\":true" : "")});
      for (std::size_t i = 0; i < tokens.size() && !answering.exchange->ended; ++i)
        answering.give(0, tokens[i], i + 1 == tokens.size() ? last : FinishReason::none);
      ASSERT_TRUE(answering.exchange->ended && !answering.exchange->broken);
      ASSERT_EQ(answering.exchange->status, 200);
      reads[stream] = stream ? read_stream(answering.exchange->body) : read_whole(answering.exchange->body);
      ASSERT_EQ(reads[stream].finishes, 1);
      if (reads[stream].tells) {
        ASSERT_EQ(reads[stream].told, reads[stream].content);
      }
    }
    ASSERT_EQ(reads[0].content, reads[1].content);
    ASSERT_EQ(reads[0].reasoning, reads[1].reasoning);
    ASSERT_EQ(reads[0].finish, reads[1].finish);
  }
}

TEST(Generation, ReasoningIsCountedAndToldApart) {
  Answering answering({});
  const std::vector<TokenId> tokens = tokenizer().encode_trusted(
      "<|channel|>analysis<|message|>abc<|end|><|start|>assistant<|channel|>final<|message|>de<|return|>");
  for (std::size_t i = 0; i < tokens.size(); ++i)
    answering.give(0, tokens[i], i + 1 == tokens.size() ? FinishReason::stop : FinishReason::none);
  const Read read = read_whole(answering.exchange->body);
  EXPECT_EQ(read.reasoning, "abc");
  EXPECT_EQ(read.content, "de");
  const JsonDocument answer = JsonDocument::parse(answering.exchange->body).value();
  const JsonValue usage = *answer.root().find("usage");
  EXPECT_EQ(usage.find("completion_tokens_details")->find("reasoning_tokens")->as_integer(),
            static_cast<std::int64_t>(tokenizer().encode("abc").size()));
  EXPECT_EQ(usage.find("completion_tokens")->as_integer(), static_cast<std::int64_t>(tokens.size()));
}

TEST(Generation, AnAnswerThatItsFormatCutSaysSoAndDoesNotShowItsEnd) {
  const std::vector<TokenId> tokens = tokenizer().encode_trusted("<|channel|>final<|message|>de<|return|>");
  for (const bool stream : {false, true}) {
    Answering answering({.fields = stream ? R"("stream":true)" : ""});
    for (std::size_t i = 0; i < tokens.size(); ++i)
      answering.give(0, tokens[i], i + 1 == tokens.size() ? FinishReason::cut : FinishReason::none);
    const Read read = stream ? read_stream(answering.exchange->body) : read_whole(answering.exchange->body);
    EXPECT_EQ(read.content, "de");
    EXPECT_EQ(read.finish, "length");
  }
}

TEST(Generation, ReasoningIsLeftOutWhereItIsNotWanted) {
  const std::vector<TokenId> tokens = tokenizer().encode_trusted(
      "<|channel|>analysis<|message|>abc<|end|><|start|>assistant<|channel|>final<|message|>de<|return|>");
  for (const bool stream : {false, true}) {
    Answering answering(
        {.fields = std::string(R"("include_reasoning":false)") + (stream ? R"(,"stream":true)" : "")});
    for (std::size_t i = 0; i < tokens.size(); ++i)
      answering.give(0, tokens[i], i + 1 == tokens.size() ? FinishReason::stop : FinishReason::none);
    const Read read = stream ? read_stream(answering.exchange->body) : read_whole(answering.exchange->body);
    EXPECT_EQ(read.reasoning, "");
    EXPECT_EQ(read.content, "de");
  }
}

constexpr std::string_view two_tools =
    R"([{"type":"function","function":{"name":"f"}},{"type":"function","function":{"name":"g"}}])";

// Two calls in one answer; gives the tokens until the answer ends, and returns what was to be done with the
// engine's request.
Generation::After give_two_calls(Answering& answering) {
  const std::vector<TokenId> tokens = tokenizer().encode_trusted(
      "<|channel|>commentary "
      "to=functions.f<|message|>{\"a\":1}<|end|><|start|>assistant<|channel|>commentary "
      "to=functions.g<|message|>{}<|call|>");
  auto after = Generation::After::nothing;
  for (std::size_t i = 0; i < tokens.size() && !answering.exchange->ended; ++i)
    after = answering.give(0, tokens[i], i + 1 == tokens.size() ? FinishReason::stop : FinishReason::none);
  EXPECT_TRUE(answering.exchange->ended);
  return after;
}

TEST(Generation, CallsOfToolsAreToldAsOpenAiTellsThem) {
  Answering answering({.fields = {}, .tools = std::string(two_tools)});
  give_two_calls(answering);
  const JsonDocument answer = JsonDocument::parse(answering.exchange->body).value();
  const JsonValue choice = *answer.root().find("choices")->elements().begin();
  EXPECT_EQ(choice.find("finish_reason")->as_string(), "tool_calls");
  EXPECT_TRUE(choice.find("message")->find("content")->is_null());
  std::vector<std::string> calls, ids;
  for (const JsonValue call : choice.find("message")->find("tool_calls")->elements()) {
    EXPECT_EQ(call.find("type")->as_string(), "function");
    EXPECT_FALSE(call.find("index"));
    ids.emplace_back(call.find("id")->as_string());
    const JsonValue function = *call.find("function");
    calls.push_back(std::string(function.find("name")->as_string()) +
                    std::string(function.find("arguments")->as_string()));
  }
  EXPECT_EQ(calls, (std::vector<std::string>{R"(f{"a":1})", "g{}"}));
  ASSERT_EQ(ids.size(), 2u);
  EXPECT_TRUE(ids[0].starts_with("call_") && ids[1].starts_with("call_") && ids[0] != ids[1]);
}

TEST(Generation, AStreamTellsACallsIdAndNameOnceAndItsArgumentsAsTheyCome) {
  Answering answering({.fields = R"("stream":true)", .tools = std::string(two_tools)});
  give_two_calls(answering);
  std::string told, finish;
  int pieces = 0;
  for (std::string_view left = answering.exchange->body; left.starts_with("data: {");) {
    const std::size_t end = left.find("\n\n");
    const JsonDocument event = JsonDocument::parse(std::string(left.substr(6, end - 6))).value();
    left.remove_prefix(end + 2);
    const JsonValue choice = *event.root().find("choices")->elements().begin();
    if (choice.find("finish_reason")->is_string()) finish = choice.find("finish_reason")->as_string();
    const auto calls = choice.find("delta")->find("tool_calls");
    if (!calls) continue;
    for (const JsonValue call : calls->elements()) {
      ++pieces;
      const JsonValue function = *call.find("function");
      EXPECT_EQ(call.find("id").has_value(), function.find("name").has_value());
      if (const auto name = function.find("name"))
        told += "[" + std::to_string(call.find("index")->as_integer()) + std::string(name->as_string());
      told += function.find("arguments")->as_string();
    }
  }
  EXPECT_EQ(told, R"([0f{"a":1}[1g{})");
  EXPECT_GT(pieces, 3);
  EXPECT_EQ(finish, "tool_calls");
}

TEST(Generation, AnAnswerThatIsToCallOnceEndsBeforeASecondCall) {
  Answering answering({.fields = R"("parallel_tool_calls":false)", .tools = std::string(two_tools)});
  EXPECT_EQ(give_two_calls(answering), Generation::After::cancel);
  const JsonDocument answer = JsonDocument::parse(answering.exchange->body).value();
  const JsonValue choice = *answer.root().find("choices")->elements().begin();
  EXPECT_EQ(choice.find("message")->find("tool_calls")->size(), 1u);
  EXPECT_EQ(choice.find("finish_reason")->as_string(), "tool_calls");
}

TEST(Generation, OneFailedChoiceEndsTheAnswerAndItsSiblings) {
  for (const bool stream : {false, true}) {
    Answering answering({.fields = stream ? R"("n":2,"stream":true)" : R"("n":2)"});
    answering.give(0, 5);
    EXPECT_EQ(answering.generation->take(1, {.finish = FinishReason::error, .error = "no number"}),
              Generation::After::cancel_all);
    EXPECT_TRUE(answering.exchange->ended && answering.generation->done());
    EXPECT_NE(answering.exchange->body.find("no number"), std::string::npos);
    EXPECT_EQ(answering.give(0, 6), Generation::After::nothing);
    EXPECT_EQ(answering.exchange->status, stream ? 200 : 500);
    EXPECT_EQ(answering.exchange->broken, stream);
  }
}

TEST(Generation, CachedTokensOfAPromptCountOnceForAllItsChoices) {
  Answering answering({.fields = R"("n":2)"});
  for (const int choice : {0, 1})
    answering.generation->take(choice, {.token = 5, .finish = FinishReason::length, .cached_tokens = 2});
  const JsonDocument answer = JsonDocument::parse(answering.exchange->body).value();
  const JsonValue usage = *answer.root().find("usage");
  EXPECT_EQ(usage.find("prompt_tokens_details")->find("cached_tokens")->as_integer(), 2);
  EXPECT_EQ(usage.find("prompt_tokens")->as_integer(), 3);
}

}  // namespace
}  // namespace nibble::api
