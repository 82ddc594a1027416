// What the engine's tests share: a small checkpoint with a reference's answers, and a loop that collects
// ours.
#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include "base/json.h"
#include "engine/engine.h"

namespace nibble {

// A checkpoint of random weights with what transformers makes of it in float32.
inline const std::filesystem::path example_folder =
    std::filesystem::path(NIBBLE_SOURCE_DIR) / "tests/data/parity/example";

inline std::unique_ptr<Engine> load(EngineOptions options = {}) {
  options.model = example_folder.string();
  Result<std::unique_ptr<Engine>> engine = Engine::load(options);
  EXPECT_TRUE(engine.ok()) << engine.status().message();
  return std::move(engine).value();
}

inline std::vector<TokenId> ids_of(JsonValue array) {
  std::vector<TokenId> ids;
  for (JsonValue id : array.elements()) ids.push_back(static_cast<TokenId>(id.as_integer()));
  return ids;
}

struct Expected {
  std::vector<TokenId> prompt, greedy;
  std::vector<double> logprobs, prompt_logprobs;
};

inline std::vector<Expected> expected_prompts() {
  std::ifstream file(example_folder / "expected.json");
  std::stringstream text;
  text << file.rdbuf();
  const JsonDocument document = JsonDocument::parse(text.str()).value();
  std::vector<Expected> prompts;
  for (JsonValue prompt : document.root().find("prompts")->elements()) {
    Expected expected{ids_of(*prompt.find("prompt_ids")), ids_of(*prompt.find("greedy_ids")), {}, {}};
    for (JsonValue value : prompt.find("greedy_logprobs")->elements())
      expected.logprobs.push_back(value.as_double());
    for (JsonValue value : prompt.find("prompt_logprobs")->elements())
      expected.prompt_logprobs.push_back(value.is_null() ? 0 : value.as_double());
    prompts.push_back(std::move(expected));
  }
  return prompts;
}

struct Answer {
  std::vector<TokenId> tokens;
  std::vector<float> logprobs, prompt_logprobs;
  std::vector<TokenLogprob> last_top;
  FinishReason finish = FinishReason::none;
  int cached_tokens = -1;  // of the first event
  // The same bits; how they came about is no part of it.
  bool operator==(const Answer& other) const {
    return tokens == other.tokens && logprobs == other.logprobs && prompt_logprobs == other.prompt_logprobs;
  }
};

inline std::map<RequestId, Answer> run(Engine& engine) {
  std::map<RequestId, Answer> answers;
  std::vector<Event> events;
  while (!engine.idle()) {
    events.clear();
    const Result<StepTimes> step = engine.step(events);
    EXPECT_TRUE(step.ok()) << step.status().message();
    if (!step.ok()) break;
    for (Event& event : events) {
      Answer& answer = answers[event.request];
      EXPECT_EQ(answer.finish, FinishReason::none);
      if (answer.cached_tokens < 0) answer.cached_tokens = event.cached_tokens;
      if (!event.prompt_logprobs.empty()) answer.prompt_logprobs = event.prompt_logprobs;
      if (event.token >= 0) {
        answer.tokens.push_back(event.token);
        answer.logprobs.push_back(event.logprob);
        answer.last_top.assign(event.top.begin(), event.top.end());
      }
      answer.finish = event.finish;
    }
  }
  return answers;
}

inline Request request(RequestId id, const std::vector<TokenId>& prompt, SamplingParams sampling) {
  return {.id = id, .prompt = prompt, .sampling = std::move(sampling)};
}

}  // namespace nibble
