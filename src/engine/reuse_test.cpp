// Reusing keys and values changes no bit of any result: the same requests cold, after one another, side by
// side, in several choices, preempted, and with steps planned ahead.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "base/clock.h"
#include "engine/choices.h"
#include "engine/engine_test_util.h"

namespace nibble {
namespace {

using Change = std::function<void(EngineChoices&)>;

std::unique_ptr<Engine> load_changed(const Change& change, EngineOptions options = {}) {
  options.model = example_folder.string();
  Result<std::unique_ptr<Engine>> engine = load_engine(options, change, {});
  EXPECT_TRUE(engine.ok()) << engine.status().message();
  return std::move(engine).value();
}

// Prompts cut from one text at many lengths, and from texts that leave it half way.
std::vector<Request> cut_from_one_text(std::initializer_list<std::size_t> lengths) {
  std::mt19937 random(11);
  std::vector<TokenId> text;
  for (int i = 0; i < 5000; ++i) text.push_back(static_cast<TokenId>(random() % 448));
  std::vector<Request> requests;
  for (const std::size_t length : lengths) {
    for (const bool leaves : {false, true}) {
      if (leaves && length < 20) continue;
      Request asked{.id = requests.size()};
      asked.prompt.assign(text.begin(), text.begin() + static_cast<std::ptrdiff_t>(length));
      if (leaves) asked.prompt[length / 2] = 447 - asked.prompt[length / 2];
      asked.sampling = {.max_tokens = 6, .temperature = 0, .logprobs = 3};
      if (requests.size() % 3 == 1) {
        asked.sampling.temperature = 1.2f;
        asked.sampling.top_p = 0.9f;
        asked.sampling.seed = length;
      }
      asked.sampling.prompt_logprobs = requests.size() % 5 == 4;
      requests.push_back(std::move(asked));
    }
  }
  return requests;
}

void submit(Engine& engine, std::vector<Request> requests) {
  for (Request& asked : requests) ASSERT_TRUE(engine.submit(std::move(asked)).ok());
}

std::map<RequestId, Answer> cold_answers(const std::vector<Request>& requests) {
  std::unique_ptr<Engine> engine = load({.threads = 1, .max_num_seqs = 1, .no_prefix_cache = true});
  submit(*engine, requests);
  std::map<RequestId, Answer> answers = run(*engine);
  for (const auto& [id, answer] : answers) EXPECT_EQ(answer.cached_tokens, 0);
  return answers;
}

TEST(Reuse, PromptsCutFromOneAnotherKeepTheirBits) {
  const std::vector<Request> requests = cut_from_one_text({1, 15, 16, 17, 33, 511, 2048, 4097});
  const auto expected = cold_answers(requests);
  std::unique_ptr<Engine> engine = load({.threads = 2, .max_num_seqs = 3});
  std::mt19937 random(3);
  for (int round = 0; round < 3; ++round) {
    std::vector<Request> shuffled = requests;
    std::shuffle(shuffled.begin(), shuffled.end(), random);
    submit(*engine, shuffled);
    const auto answers = run(*engine);
    for (const auto& [id, answer] : expected) {
      EXPECT_EQ(answers.at(id), answer) << id;
      const Request& asked = requests[id];
      const int prompt = static_cast<int>(asked.prompt.size());
      const int whole_pages = asked.sampling.prompt_logprobs ? 0 : (prompt - 1) / 16 * 16;
      EXPECT_TRUE(round == 0 || answers.at(id).cached_tokens == whole_pages) << id;
    }
  }
  EXPECT_GT(engine->totals().prefix_hit_tokens, engine->totals().prefix_query_tokens / 2);
  EXPECT_EQ(engine->load_now().pages_used, 0);
}

// Whoever knows the key can make prompts whose pages have one name, which makes looking them up slow.
TEST(Reuse, ThePrefixCachesKeyIsDrawnAtEachStartAndMovesNoBit) {
  std::vector<HashKey> keys;
  const auto note = [&](EngineChoices& choices) { keys.push_back(choices.cache.key); };
  const std::vector<Request> requests = cut_from_one_text({17, 33, 200});
  const auto answers_twice = [&](const Change& change) {
    std::unique_ptr<Engine> engine = load_changed(change, {.threads = 2, .max_num_seqs = 3});
    submit(*engine, requests);
    run(*engine);
    submit(*engine, requests);
    return run(*engine);
  };
  const auto drawn = answers_twice(note), again = answers_twice(note);
  ASSERT_EQ(keys.size(), 2u);
  EXPECT_NE(keys[0], keys[1]);
  for (const HashKey& key : keys) EXPECT_NE(key, HashKey{});
  EXPECT_EQ(drawn, again);
  EXPECT_EQ(drawn, answers_twice([](EngineChoices& choices) { choices.cache.key = {1, 2}; }));
}

TEST(Reuse, TheFullerPoolOfPagesSaysHowFullTheCacheIs) {
  std::unique_ptr<Engine> engine = load_changed(
      [](EngineChoices& choices) {
        choices.worker.page_counts = choices.cache.page_count = {3, 60};
      },
      {.threads = 1, .max_num_seqs = 1});
  Request asked = cut_from_one_text({40})[0];
  asked.sampling.max_tokens = 4;
  submit(*engine, {asked});
  std::vector<Event> events;
  ASSERT_TRUE(engine->step(events).ok());
  EXPECT_EQ(engine->load_now().used_share, 1.0);
  run(*engine);
  EXPECT_EQ(engine->load_now().used_share, 0.0);
}

TEST(Reuse, ChoicesOfOnePromptAreWhatEachIsAlone) {
  std::vector<Request> requests = cut_from_one_text({100, 128, 300});
  std::vector<Request> choices;
  for (const Request& asked : requests) {
    for (std::uint32_t choice = 0; choice < 4; ++choice) {
      Request one = asked;
      one.id = choices.size();
      one.sampling.temperature = 1.0f;
      one.sampling.choice = choice;
      one.sampling.prompt_logprobs = false;
      choices.push_back(std::move(one));
    }
  }
  const auto expected = cold_answers(choices);
  std::unique_ptr<Engine> engine = load({.threads = 2, .max_num_seqs = 24});
  submit(*engine, choices);
  EXPECT_EQ(run(*engine), expected);
  EXPECT_GE(engine->totals().prefix_hit_tokens, 3u * 3 * (96 + 112 + 288) / 2);
}

TEST(Reuse, PreemptedRequestsGoOnWithTheSameBits) {
  std::vector<Request> requests = cut_from_one_text({1, 40, 64, 90, 130});
  for (Request& asked : requests) asked.sampling.max_tokens = 40;
  const auto expected = cold_answers(requests);
  for (const bool plans_ahead : {false, true}) {
    for (const int every : {0, 1, 2, 5}) {
      // Without being forced to, they run out of the few pages.
      const auto few_pages = [&](EngineChoices& choices) {
        choices.scheduler.preempt_every = every;
        choices.plan_ahead = plans_ahead;
        choices.worker.page_counts = choices.cache.page_count = {every == 0 ? 14 : 40, 60};
      };
      std::unique_ptr<Engine> engine =
          load_changed(few_pages, {.threads = 2, .max_num_seqs = 5, .max_num_batched_tokens = 48});
      submit(*engine, requests);
      EXPECT_EQ(run(*engine), expected) << every << (plans_ahead ? " ahead" : "");
      EXPECT_GT(engine->totals().preemptions, 0u) << every;
    }
  }
}

TEST(Reuse, AStepPlannedAheadChangesNoBit) {
  std::vector<Request> requests = cut_from_one_text({1, 17, 70, 200, 511});
  const auto expected = cold_answers(requests);
  for (Request& asked : requests) {
    // Half of them end before the engine could know.
    const std::vector<TokenId>& tokens = expected.at(asked.id).tokens;
    if (asked.id % 2 == 0) asked.sampling.stop_ids = {tokens[tokens.size() / 2]};
  }
  const auto answers_of = [&](bool plans_ahead, int seqs) {
    std::unique_ptr<Engine> engine =
        load_changed([&](EngineChoices& choices) { choices.plan_ahead = plans_ahead; },
                     {.threads = 2, .max_num_seqs = seqs, .max_num_batched_tokens = 64});
    submit(*engine, requests);
    return run(*engine);
  };
  for (const int seqs : {1, 3, 10}) EXPECT_EQ(answers_of(true, seqs), answers_of(false, seqs)) << seqs;
}

TEST(Reuse, SaltsShareNothing) {
  std::unique_ptr<Engine> engine = load();
  Request asked = cut_from_one_text({64})[0];
  int cached[4];
  const char* salts[] = {"", "a", "b", "b"};
  for (std::size_t i = 0; i < 4; ++i) {
    asked.cache_salt = salts[i];
    submit(*engine, {asked});
    cached[i] = run(*engine).at(asked.id).cached_tokens;
  }
  EXPECT_EQ(cached[1], 0);
  EXPECT_EQ(cached[2], 0);
  EXPECT_EQ(cached[3], 48);
}

TEST(Reuse, ARequestWhoseTimeIsOverSaysSo) {
  std::unique_ptr<Engine> engine = load();
  Request asked = cut_from_one_text({64})[0];
  asked.deadline = SystemClock().now();
  submit(*engine, {asked});
  EXPECT_EQ(run(*engine).at(asked.id).finish, FinishReason::timeout);
}

TEST(Reuse, TheKvCacheHoldsWhatWasAskedForAndTheContextFollows) {
  std::unique_ptr<Engine> engine = load({.kv_cache_tokens = 1000});
  EXPECT_EQ(engine->model().kv_tokens, 1008);
  EXPECT_EQ(engine->model().max_model_len, 1008);
  EngineOptions both{.model = example_folder.string(), .max_model_len = 2000, .kv_cache_tokens = 1000};
  EXPECT_NE(Engine::load(both).status().message().find("--kv-cache-tokens"), std::string::npos);
}

}  // namespace
}  // namespace nibble
