// Drafts of next tokens are checked, not believed: what comes of a request has the bits that it has without
// them.
#include <gtest/gtest.h>

#include <memory>
#include <tuple>

#include "engine/choices.h"
#include "engine/drafts_test_util.h"

namespace nibble {
namespace {

std::unique_ptr<Engine> load(const std::filesystem::path& model, EngineOptions options) {
  options.model = model.string();
  Result<std::unique_ptr<Engine>> engine = Engine::load(options);
  EXPECT_TRUE(engine.ok()) << engine.status().message();
  return std::move(engine).value();
}

EngineOptions without_drafts() { return {.threads = 1, .speculative_algorithm = "none"}; }

class DraftsOf : public testing::TestWithParam<const char*> {
 protected:
  std::filesystem::path folder() const { return example_folder.parent_path() / GetParam(); }
};

TEST_P(DraftsOf, LeaveTheBitsOfEveryRequest) {
  const std::unique_ptr<Engine> plain = load(folder(), without_drafts());
  const std::vector<Request> requests = requests_of(plain->model().vocabulary);
  const std::map<RequestId, Told> expected = told_by(*plain, requests);
  std::uint64_t accepted = 0, refused = 0;
  for (const auto& [drafts, threads, seqs, rows] :
       {std::tuple{1, 1, 6, 64}, {3, 2, 3, 20}, {8, 3, 6, 333}, {16, 2, 1, 9}}) {
    const std::unique_ptr<Engine> engine = load(folder(), {.threads = threads,
                                                           .max_num_seqs = seqs,
                                                           .max_num_batched_tokens = rows,
                                                           .speculative_algorithm = "ngram",
                                                           .draft_tokens = drafts});
    EXPECT_TRUE(told_by(*engine, requests) == expected) << drafts << " drafts";
    accepted += engine->totals().accepted_drafts;
    refused += engine->totals().drafted_tokens - engine->totals().accepted_drafts;
  }
  EXPECT_GT(accepted, 5u);
  EXPECT_GT(refused, 20u);
}

// Of every kind of attention: with sinks and windows, with wide heads, and of latents.
INSTANTIATE_TEST_SUITE_P(All, DraftsOf, testing::Values("example", "qwen3_moe_fp8", "deepseek_v3_fp8"));

TEST(DraftsOfAConstraint, AreHeldToItsMasksAndLeaveTheBits) {
  constexpr TokenId end = 5;
  const std::vector<Expected> prompts = expected_prompts();
  SamplingParams sampling{.max_tokens = 30, .temperature = 1, .seed = 4, .stop_ids = {end}, .logprobs = 2};
  for (const bool of_the_constraint : {false, true}) {
    sampling.constrained_logprobs = of_the_constraint;
    Request asked = request(1, prompts[0].prompt, sampling);
    asked.constraint = std::make_shared<Remainders>(20, end, 4);
    const std::unique_ptr<Engine> plain = load(example_folder, without_drafts());
    const Told expected = told_by(*plain, {asked})[1];
    ASSERT_EQ(expected.tokens.size(), 21u);
    // True drafts, some that may not come, and some that may and do not.
    std::vector<TokenId> forbidden = expected.tokens, other = expected.tokens;
    for (std::size_t i = 6; i < 20; i += 5) {
      forbidden[i] += 1;
      other[i] = (other[i] + 7) % plain->model().vocabulary;
    }
    for (const std::vector<TokenId>& drafts : {expected.tokens, forbidden, other}) {
      const std::unique_ptr<Engine> engine = load(example_folder, {.threads = 2, .draft_tokens = 4});
      asked.constraint = std::make_shared<Foreseeing>(drafts, 20, end, 4);
      EXPECT_TRUE(told_by(*engine, {asked})[1] == expected);
      EXPECT_GT(engine->totals().accepted_drafts, 8u);
      EXPECT_EQ(engine->totals().accepted_drafts == engine->totals().drafted_tokens,
                drafts == expected.tokens);
    }
  }
}

TEST(DraftsPlanned, AreRefusedWhereTheyCannotBeChecked) {
  EngineOptions options{.speculative_algorithm = "ngram", .draft_tokens = 61};
  options.model = (example_folder.parent_path() / "qwen3_next_bf16").string();
  options.given.draft_tokens = true;
  const auto engine = Engine::load(options);
  ASSERT_FALSE(engine.ok());
  EXPECT_EQ(engine.status().message(),
            "--speculative-num-draft-tokens 61: layers keep a state, which is brought forward once in 64 "
            "positions: a step checks at most 60; give 8");
  options.draft_tokens = 60;
  EXPECT_TRUE(Engine::load(options).ok());
  options.speculative_algorithm = "eagle";
  EXPECT_FALSE(Engine::load(options).ok());
}

}  // namespace
}  // namespace nibble
