#include "runtime/step_message.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

namespace nibble {
namespace {

constexpr int owners = 4;

struct Example {
  Batch batch;
  std::vector<std::vector<PageId>> pages;
  std::vector<std::vector<StateSnapshot>> snapshots;
};

Example example_of(unsigned seed) {
  std::mt19937 random(seed);
  const auto below = [&](unsigned most) { return static_cast<int>(random() % most); };
  Example example;
  const int sequences = below(5);
  example.batch.of_prompts = below(2) == 1;
  example.pages.reserve(static_cast<std::size_t>(2 * sequences));
  example.snapshots.reserve(static_cast<std::size_t>(sequences));
  for (int i = 0; i < sequences; ++i) {
    BatchSequence sequence;
    sequence.owner = below(owners);
    sequence.row_begin = static_cast<int>(example.batch.tokens.size());
    sequence.row_count = 1 + below(6);
    sequence.draft_count = below(static_cast<unsigned>(sequence.row_count));
    sequence.first_position = below(10'000);
    sequence.state = below(4) - 1;
    sequence.resumes = below(4) - 1;
    sequence.logit_begin = static_cast<int>(example.batch.logit_rows.size());
    sequence.logit_count = below(3);
    for (int row = 0; row < sequence.row_count; ++row) example.batch.tokens.push_back(below(50'000));
    for (int row = 0; row < sequence.logit_count; ++row)
      example.batch.logit_rows.push_back({.row = sequence.row_begin, .target = below(9) - 1});
    for (auto& group : sequence.pages) {
      auto& pages = example.pages.emplace_back(static_cast<std::size_t>(below(20)));
      for (PageId& page : pages) page = below(1000) - 1;
      group = pages;
    }
    auto& snapshots = example.snapshots.emplace_back(static_cast<std::size_t>(below(3)));
    for (StateSnapshot& each : snapshots) each = {.position = 64 * below(9), .slot = below(7)};
    sequence.snapshots = snapshots;
    example.batch.sequences.push_back(sequence);
  }
  return example;
}

TEST(StepMessage, BringsAllThatRanksLookAt) {
  std::vector<std::byte> bytes;
  ReceivedStep step(owners);
  for (unsigned seed = 0; seed < 500; ++seed) {
    const Example example = example_of(seed);
    write_step(example.batch, bytes);
    ASSERT_TRUE(step.read(bytes).ok());
    const Batch& came = step.batch();
    ASSERT_EQ(came.of_prompts, example.batch.of_prompts);
    ASSERT_EQ(came.tokens, example.batch.tokens);
    ASSERT_EQ(came.sequences.size(), example.batch.sequences.size());
    ASSERT_EQ(came.logit_rows.size(), example.batch.logit_rows.size());
    for (std::size_t i = 0; i < came.logit_rows.size(); ++i)
      ASSERT_EQ(came.logit_rows[i].row, example.batch.logit_rows[i].row);
    for (std::size_t i = 0; i < came.sequences.size(); ++i) {
      const BatchSequence &is = came.sequences[i], &was = example.batch.sequences[i];
      ASSERT_EQ(is.owner, was.owner);
      ASSERT_EQ(is.row_begin, was.row_begin);
      ASSERT_EQ(is.row_count, was.row_count);
      ASSERT_EQ(is.first_position, was.first_position);
      ASSERT_EQ(is.state, was.state);
      ASSERT_EQ(is.resumes, was.resumes);
      ASSERT_EQ(is.logit_begin, was.logit_begin);
      ASSERT_EQ(is.logit_count, was.logit_count);
      ASSERT_EQ(is.draft_count, was.draft_count);
      for (std::size_t group = 0; group < is.pages.size(); ++group)
        ASSERT_TRUE(std::ranges::equal(is.pages[group], was.pages[group]));
      ASSERT_EQ(is.snapshots.size(), was.snapshots.size());
      for (std::size_t k = 0; k < is.snapshots.size(); ++k) {
        ASSERT_EQ(is.snapshots[k].position, was.snapshots[k].position);
        ASSERT_EQ(is.snapshots[k].slot, was.snapshots[k].slot);
      }
    }
  }
}

TEST(StepMessage, CutOrChangedBytesAreRefusedOrMeanAStepWithinBounds) {
  std::vector<std::byte> bytes;
  ReceivedStep step(owners);
  std::mt19937 random(3);
  for (unsigned seed = 0; seed < 300; ++seed) {
    write_step(example_of(seed).batch, bytes);
    for (std::size_t cut = 0; cut < bytes.size(); cut += 1 + random() % 7)
      EXPECT_FALSE(step.read(std::span(bytes).first(cut)).ok());
    for (int change = 0; change < 20 && !bytes.empty(); ++change) {
      std::vector<std::byte> changed = bytes;
      changed[random() % changed.size()] ^= std::byte(1 + random() % 255);
      if (!step.read(changed).ok()) continue;
      for (const BatchSequence& each : step.batch().sequences) {
        EXPECT_LE(static_cast<std::size_t>(each.row_begin + each.row_count), step.batch().tokens.size());
        EXPECT_TRUE(each.owner >= 0 && each.owner < owners);
      }
    }
  }
}

TEST(StepMessage, ATokenIsAwaitedOfASequenceOfTheStepBefore) {
  std::vector<std::byte> bytes;
  const auto step_of = [&](int awaits) {
    Batch batch;
    batch.tokens = {awaits < 0 ? 7 : -1, 8};
    batch.sequences = {{.row_begin = 0, .row_count = 1, .awaits = awaits}, {.row_begin = 1, .row_count = 1}};
    write_step(batch, bytes);
  };
  for (const int awaits : {-2, -1, 0, 1, 2}) {
    ReceivedStep step(1);
    step_of(-1);
    ASSERT_TRUE(step.read(bytes).ok());
    step_of(awaits);
    const bool can_be = awaits >= -1 && awaits < 2;
    ASSERT_EQ(step.read(bytes).ok(), can_be) << awaits;
    if (can_be) {
      EXPECT_EQ(step.batch().sequences[0].awaits, awaits);
    }
  }
}

TEST(StepMessage, ASequenceOfAnOwnerThatThereIsNotIsRefused) {
  std::vector<std::byte> bytes;
  ReceivedStep step(owners);
  for (const int owner : {-1, 0, owners - 1, owners}) {
    Batch batch;
    batch.tokens = {7};
    batch.sequences = {{.owner = owner, .row_count = 1}};
    write_step(batch, bytes);
    EXPECT_EQ(step.read(bytes).ok(), owner >= 0 && owner < owners) << owner;
  }
}

}  // namespace
}  // namespace nibble
