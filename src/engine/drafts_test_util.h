// What tests of drafts share: requests of which some hold and some fail, and all that is told of them.
#pragma once

#include <gtest/gtest.h>

#include <map>
#include <utility>
#include <vector>

#include "engine/constraint_test_util.h"
#include "engine/engine_test_util.h"

namespace nibble {

// Prompts that say most things twice, so that drafts are found; greedy answers of small models repeat
// themselves, and drawn ones refuse most drafts.
inline std::vector<Request> requests_of(int vocabulary) {
  std::vector<Request> all;
  for (RequestId id = 0; id < 6; ++id) {
    std::vector<TokenId> prompt;
    for (int i = 0; i < 24 + 7 * static_cast<int>(id); ++i)
      prompt.push_back(static_cast<TokenId>((i % 11 * 37 + static_cast<int>(id) * 5) % vocabulary));
    SamplingParams sampling{.max_tokens = 60, .temperature = 0, .logprobs = 3};
    if (id % 2 == 1) {
      sampling.temperature = id == 5 ? 1.0f : 0.2f;
      sampling.seed = id;
      sampling.min_tokens = 20;
      sampling.stop_ids = {static_cast<TokenId>(id)};
    }
    if (id == 4) sampling.frequency_penalty = 0.5f;
    all.push_back(request(id, prompt, sampling));
  }
  return all;
}

// With all log-probabilities that were told.
struct Told {
  std::vector<TokenId> tokens, tops;
  std::vector<float> logprobs;
  FinishReason finish = FinishReason::none;
  bool operator==(const Told&) const = default;
};

inline std::map<RequestId, Told> told_by(Engine& engine, const std::vector<Request>& requests) {
  for (const Request& each : requests) EXPECT_TRUE(engine.submit(each).ok());
  std::map<RequestId, Told> all;
  std::vector<Event> events;
  while (!engine.idle()) {
    events.clear();
    EXPECT_TRUE(engine.step(events).ok());
    for (const Event& event : events) {
      Told& told = all[event.request];
      told.finish = event.finish;
      if (event.token < 0) continue;
      told.tokens.push_back(event.token);
      told.logprobs.push_back(event.logprob);
      for (const TokenLogprob& top : event.top) {
        told.tops.push_back(top.id);
        told.logprobs.push_back(top.logprob);
      }
    }
  }
  return all;
}

// Drafts what it was told, and forbids as Remainders does.
class Foreseeing final : public Remainders {
 public:
  Foreseeing(std::vector<TokenId> answer, int length, TokenId end, int free)
      : Remainders(length, end, free), answer_(std::move(answer)) {}
  void accept(TokenId token) override {
    Remainders::accept(token);
    ++place_;
  }
  void roll_back(int tokens) override {
    Remainders::roll_back(tokens);
    place_ -= static_cast<std::size_t>(tokens);
  }
  bool may_draft() const override { return place_ < answer_.size(); }
  int draft(std::span<TokenId> room) override {
    std::size_t count = 0;
    while (count < room.size() && place_ + count < answer_.size()) {
      room[count] = answer_[place_ + count];
      ++count;
    }
    return static_cast<int>(count);
  }

 private:
  std::vector<TokenId> answer_;
  std::size_t place_ = 0;
};

}  // namespace nibble
