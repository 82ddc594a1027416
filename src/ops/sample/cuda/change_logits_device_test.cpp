// On a GPU, or on its emulation: the CPU's changed logits, bit for bit.
#include <gtest/gtest.h>

#include <cstring>
#include <limits>

#include "ops/cuda/device_test_util.h"
#include "ops/op_test_util.h"
#include "ops/sample/cuda/change_logits_cuda.h"
#include "ops/sample/logit_changes.h"

namespace nibble {
namespace {

using ChangeLogitsOnTheGpu = OnTheGpu;

struct Request {
  std::vector<TokenBias> bias;
  float repetition = 1, frequency = 0, presence = 0;
  std::vector<TokenId> prompt, answer, banned;
  std::vector<std::uint32_t> mask;

  LogitChanges changes() const {
    return {.bias = bias,
            .repetition_penalty = repetition,
            .frequency_penalty = frequency,
            .presence_penalty = presence,
            .prompt = prompt,
            .answer = answer,
            .banned = banned,
            .mask = mask};
  }
};

// Row i of the result is logit row rows[i] as requests[i] wants it, or garbage where there is nothing.
std::vector<float> on_gpu(const std::vector<float>& logits, int vocabulary, int stride,
                          const std::vector<std::int32_t>& rows, const std::vector<Request>& requests) {
  std::vector<std::uint32_t> counts(static_cast<std::size_t>(vocabulary));
  std::vector<LogitChange> list;
  std::vector<std::int32_t> starts = {0}, mask_rows;
  std::vector<std::uint32_t> masks;
  const std::size_t words = (static_cast<std::size_t>(vocabulary) + 31) / 32;
  for (const Request& request : requests) {
    mask_rows.push_back(request.mask.empty() ? -1 : static_cast<std::int32_t>(masks.size() / words));
    masks.insert(masks.end(), request.mask.begin(), request.mask.end());
    list_logit_changes(request.changes(), counts, list);
    starts.push_back(static_cast<std::int32_t>(list.size()));
  }
  for (const std::uint32_t count : counts)
    EXPECT_EQ(count, 0u) << "the next row finds the room as this one did";
  std::vector<float> found(rows.size() * static_cast<std::size_t>(stride));
  list.emplace_back();  // no buffer is empty
  DeviceBuffer device_logits = on_device(logits), device_rows = on_device(rows),
               device_starts = on_device(starts), device_changes = on_device(list),
               device_mask_rows = on_device(mask_rows), device_masks = on_device(masks),
               changed = device_bytes(found.size() * 4, 0xee);
  const Status status = change_logits_cuda({.logits = device_logits.as<float>(),
                                            .vocabulary = vocabulary,
                                            .stride = stride,
                                            .rows = static_cast<int>(rows.size()),
                                            .logit_rows = device_rows.as<std::int32_t>(),
                                            .starts = device_starts.as<std::int32_t>(),
                                            .changes = device_changes.as<LogitChange>(),
                                            .mask_rows = device_mask_rows.as<std::int32_t>(),
                                            .masks = device_masks.as<std::uint32_t>(),
                                            .changed = changed.as<float>()},
                                           nullptr);
  NIBBLE_CHECK(status.ok(), status.message());
  changed.copy_to(std::span(found));
  return found;
}

std::vector<std::uint32_t> random_mask(std::mt19937& random, int vocabulary) {
  std::vector<std::uint32_t> mask((static_cast<std::size_t>(vocabulary) + 31) / 32);
  for (std::uint32_t& word : mask) word = static_cast<std::uint32_t>(random() & random());
  return mask;
}

std::vector<TokenId> random_ids(std::mt19937& random, int vocabulary, int count) {
  std::vector<TokenId> ids;
  for (int i = 0; i < count; ++i)  // every other one in a few, so that many come again
    ids.push_back(static_cast<TokenId>(random() % static_cast<unsigned>(i % 2 == 0 ? vocabulary : 7)));
  return ids;
}

TEST_F(ChangeLogitsOnTheGpu, GivesTheCpusBits) {
  std::mt19937 random(1);
  for (const int vocabulary : small_cases ? std::vector<int>{9, 2100} : std::vector<int>{9, 2100, 201088}) {
    const int stride = vocabulary + 3, all = 6;
    std::vector<float> logits = random_floats(random, static_cast<std::size_t>(all * stride), 3.0f);
    logits[1] = 3e38f;
    logits[static_cast<std::size_t>(stride) + 2] = -3e38f;
    const std::vector<Request> requests = {
        {},
        {.bias = {{3, 0.1f}, {8, 1e8f}, {3, 1e8f}, {3, -1e8f}, {0, std::numeric_limits<float>::max()}}},
        {.repetition = 1.3f, .prompt = random_ids(random, vocabulary, 300), .answer = {2, 2}},
        {.repetition = 0.5f,
         .frequency = 0.7f,
         .presence = -0.3f,
         .prompt = random_ids(random, vocabulary, 20),
         .answer = random_ids(random, vocabulary, 90)},
        {.bias = {{1, -2.5f}, {5, 4.0f}},
         .repetition = 1.1f,
         .presence = 1.9f,
         .prompt = {1, 1, 4},
         .answer = random_ids(random, vocabulary, 40),
         .banned = {5, 6, 6, vocabulary, -1}},
        {.mask = random_mask(random, vocabulary)},
        {.bias = {{1, -2.5f}, {5, 4.0f}},
         .repetition = 1.1f,
         .answer = random_ids(random, vocabulary, 40),
         .banned = {5, 6},
         .mask = random_mask(random, vocabulary)}};
    const std::vector<std::int32_t> rows = {1, 0, 5, 2, 2, 3, 1};
    const std::vector<float> found = on_gpu(logits, vocabulary, stride, rows, requests);
    LogitChangeRoom room;
    for (std::size_t i = 0; i < rows.size(); ++i) {
      const std::span<const float> row(logits.data() + rows[i] * stride,
                                       static_cast<std::size_t>(vocabulary));
      const std::span<const float> expected = change_logits(row, requests[i].changes(), room);
      const float* const at = found.data() + i * static_cast<std::size_t>(stride);
      for (std::size_t id = 0; id < expected.size(); ++id)
        ASSERT_EQ(std::memcmp(at + id, &expected[id], sizeof(float)), 0)
            << vocabulary << " tokens, request " << i << ", id " << id << ": " << at[id] << ", not "
            << expected[id];
      for (int past = vocabulary; past < stride; ++past)
        ASSERT_EQ(std::memcmp(at + past, "\xee\xee\xee\xee", 4), 0);
    }
  }
}

TEST_F(ChangeLogitsOnTheGpu, RefusesAStrideTooShort) {
  EXPECT_NE(change_logits_cuda({.vocabulary = 100, .stride = 60}, nullptr).message().find("60"),
            std::string::npos);
}

}  // namespace
}  // namespace nibble
