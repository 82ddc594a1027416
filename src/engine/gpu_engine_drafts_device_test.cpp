// Drafts of next tokens with a GPU's worker, on a GPU or on its emulation: what comes of a request has the
// bits that it has without them.
#include <gtest/gtest.h>

#include <memory>
#include <tuple>

#include "engine/drafts_test_util.h"
#include "engine/gpu_engine_test_util.h"

namespace nibble {
namespace {

using GpuEngineDrafts = OnAGpuEngine;

struct Way {
  int drafts, sequences;
  bool graphs = false;
};

std::unique_ptr<Engine> drafting_engine(const std::filesystem::path& folder, const char* algorithm,
                                        const Way& way) {
  return gpu_engine(
      folder, {.max_num_seqs = way.sequences, .speculative_algorithm = algorithm, .draft_tokens = way.drafts},
      [&](EngineChoices& choices) { choices.worker.graphs = way.graphs; });
}

// Answers that cross from one page into another, with every wish that looks at a row.
std::vector<Request> short_requests() {
  std::vector<Request> all = requests_of(448);
  for (Request& each : all) each.sampling.max_tokens = 12;
  all[0].sampling.logit_bias = {{5, 1.5f}, {17, -2}};
  all[2].sampling.logprobs = 40;  // the host's to sample
  all[2].prompt.resize(9);
  all.erase(all.begin() + 3);
  return all;
}

// Each with a prediction of its answer, of which some tokens are others.
std::vector<Request> predicted(std::vector<Request> requests, const std::map<RequestId, Told>& told) {
  for (Request& each : requests) {
    std::vector<TokenId> tokens = told.at(each.id).tokens;
    for (std::size_t i = 5; i < tokens.size(); i += 4) tokens[i] ^= 1;
    each.prediction = std::make_shared<const std::vector<TokenId>>(std::move(tokens));
  }
  return requests;
}

TEST_F(GpuEngineDrafts, LeaveTheBitsOfEveryRequestAloneAndInCompany) {
  const std::vector<Request> requests = short_requests();
  const std::map<RequestId, Told> expected =
      told_by(*gpu_engine(example_folder, {.max_num_seqs = 5}), requests);
  std::uint64_t accepted = 0, refused = 0;
  for (const Way& way : {Way{6, 4}, Way{3, 1, true}}) {
    const std::unique_ptr<Engine> engine = drafting_engine(example_folder, "ngram", way);
    EXPECT_TRUE(told_by(*engine, predicted(requests, expected)) == expected) << way.drafts << " drafts";
    accepted += engine->totals().accepted_drafts;
    refused += engine->totals().drafted_tokens - engine->totals().accepted_drafts;
  }
  EXPECT_GT(accepted, 10u);
  EXPECT_GT(refused, 5u);
}

TEST_F(GpuEngineDrafts, OfAConstraintAreHeldToItsMasksAndLeaveTheBits) {
  constexpr TokenId end = 5;
  SamplingParams sampling{.max_tokens = 20, .temperature = 1, .seed = 4, .stop_ids = {end}, .logprobs = 2};
  for (const bool of_the_constraint : {false, true}) {
    sampling.constrained_logprobs = of_the_constraint;
    Request asked = request(1, {7, 8, 9}, sampling);
    const Request mate = request(2, {3, 1, 4}, {.max_tokens = 9, .temperature = 1, .seed = 8, .logprobs = 1});
    asked.constraint = std::make_shared<Remainders>(8, end, 3);
    const std::map<RequestId, Told> expected =
        told_by(*gpu_engine(example_folder, {.max_num_seqs = 4}), {asked, mate});
    const std::vector<TokenId>& answer = expected.at(1).tokens;
    ASSERT_EQ(answer.size(), 9u);
    // True drafts, some that may not come, and some that may and do not.
    std::vector<TokenId> forbidden = answer, other = answer;
    forbidden[6] += 1;
    other[6] = (other[6] + 7) % 448;
    for (const std::vector<TokenId>& drafts : {forbidden, answer, other}) {
      const std::unique_ptr<Engine> engine =
          drafting_engine(example_folder, "forced", {.drafts = 4, .sequences = 2});
      asked.constraint = std::make_shared<Foreseeing>(drafts, 8, end, 3);
      EXPECT_TRUE(told_by(*engine, {asked, mate}) == expected);
      EXPECT_GT(engine->totals().accepted_drafts, 2u);
      EXPECT_EQ(engine->totals().accepted_drafts == engine->totals().drafted_tokens, drafts == answer);
      if (of_the_constraint) break;
    }
  }
}

// Answers across borders of a state's chunks, and a next turn behind the snapshots that were taken there.
TEST_F(GpuEngineDrafts, LeaveTheBitsBesideStatesAndTheirSnapshots) {
  const auto load = [](EngineOptions options) {
    return gpu_engine(example_folder.parent_path() / "qwen3_next_bf16", std::move(options),
                      [](EngineChoices& choices) {
                        choices.cache.page_count = choices.worker.page_counts = {24, 0};
                        choices.worker.graphs = false;
                      });
  };
  std::vector<Request> requests;
  for (const int length : {58, 62}) {
    std::vector<TokenId> prompt;
    for (int i = 0; i < length; ++i) prompt.push_back((7 * i + length) % 400);
    requests.push_back(request(static_cast<RequestId>(length), prompt,
                               {.max_tokens = 12, .temperature = 0.5f, .seed = 3, .logprobs = 2}));
  }
  const std::map<RequestId, Told> first = told_by(*load({.max_num_seqs = 2}), requests);
  std::vector<Request> next = requests;
  for (Request& each : next) {
    const std::vector<TokenId>& answer = first.at(each.id).tokens;
    each.prompt.insert(each.prompt.end(), answer.begin(), answer.end());
  }
  const std::map<RequestId, Told> second = told_by(*load({.max_num_seqs = 2}), next);
  const std::unique_ptr<Engine> engine = load(
      {.max_num_seqs = 2, .snapshot_interval = 64, .speculative_algorithm = "forced", .draft_tokens = 6});
  EXPECT_TRUE(told_by(*engine, predicted(requests, first)) == first);
  EXPECT_TRUE(told_by(*engine, predicted(next, second)) == second) << "next turn";
  EXPECT_EQ(engine->totals().snapshots_resumed, 2u);
  EXPECT_GT(engine->totals().accepted_drafts, 10u);
  EXPECT_GT(engine->totals().drafted_tokens, engine->totals().accepted_drafts);
}

// A row behind a draft that fails may give whatever it likes.
TEST_F(GpuEngineDrafts, ANotANumberBehindOneThatFailsIsNobodys) {
  spoil_embedding(300);
  const Request asked = request(1, {7, 8, 9}, {.max_tokens = 8, .temperature = 0, .logprobs = 2});
  const std::map<RequestId, Told> expected = told_by(*gpu_engine(copy_, {.max_num_seqs = 2}), {asked});
  ASSERT_EQ(expected.at(1).finish, FinishReason::length);
  std::vector<TokenId> drafts = expected.at(1).tokens;
  for (std::size_t i = 2; i < 8; i += 3) drafts[i] = 300;
  Request drafted = asked;
  drafted.constraint = std::make_shared<Foreseeing>(drafts, 100, 5, 100);
  const std::unique_ptr<Engine> engine = drafting_engine(copy_, "forced", {.drafts = 4, .sequences = 2});
  EXPECT_TRUE(told_by(*engine, {drafted}) == expected);
  EXPECT_GT(engine->totals().drafted_tokens, engine->totals().accepted_drafts);
}

// Prompt, then answer and its drafts, over what a cancelled request with drafts has left.
TEST_F(GpuEngineDrafts, WhatIsCancelledAmongThemLeavesItsMatesBitsAlone) {
  const std::vector<Request> plain = short_requests();
  const std::map<RequestId, Told> expected = told_by(*gpu_engine(example_folder, {.max_num_seqs = 3}), plain);
  const std::vector<Request> requests = predicted(plain, expected);
  const std::unique_ptr<Engine> engine =
      drafting_engine(example_folder, "forced", {.drafts = 7, .sequences = 3});
  for (const int steps : {3, 5}) {
    for (const std::size_t i : {0, 1, 4}) ASSERT_TRUE(engine->submit(requests[i]).ok());
    std::map<RequestId, std::vector<TokenId>> tokens;
    for (int i = 0; i < steps; ++i) {
      std::vector<Event> events;
      ASSERT_TRUE(engine->step(events).ok());
      for (const Event& event : events) {
        if (event.token >= 0) tokens[event.request].push_back(event.token);
      }
    }
    engine->cancel(requests[1].id);
    const std::map<RequestId, Told> rest = told_by(*engine, {});
    for (const std::size_t i : {0, 4}) {
      const RequestId id = requests[i].id;
      const std::vector<TokenId>& later = rest.at(id).tokens;
      tokens[id].insert(tokens[id].end(), later.begin(), later.end());
      EXPECT_EQ(tokens[id], expected.at(id).tokens) << steps << " steps";
    }
    EXPECT_EQ(rest.at(requests[1].id).finish, FinishReason::cancelled);
    EXPECT_EQ(engine->load_now().pages_used, 0);
  }
}

}  // namespace
}  // namespace nibble
