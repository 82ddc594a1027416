#include "app/activity.h"

#include <gtest/gtest.h>

#include <optional>

namespace nibble {
namespace {

TEST(Activity, SaysWhatHappenedSinceTheLastLineAndNothingOfIdleTime) {
  const ManualClock clock;
  std::string lines;
  std::optional<Log> log(std::in_place, LogOptions{.write = [&](std::string_view line) { lines += line; }},
                         clock);
  Activity activity(*log);
  activity.report({}, 10);
  EngineCounts counts{.steps = 5, .prompt_tokens = 100, .generated_tokens = 45};
  counts.load = {.queued = 1, .running = 3, .pages_used = 25, .pages = 200, .used_share = 0.125};
  counts.totals = {.prefix_query_tokens = 80, .prefix_hit_tokens = 20};
  activity.report(counts, 10);
  counts.load = {.pages = 200};
  counts.steps = 6;
  counts.generated_tokens = 46;
  activity.report(counts, 10);
  activity.report(counts, 10);
  log.reset();
  EXPECT_EQ(
      lines,
      "1970-01-01T00:00:00.000Z info engine prompt_tokens_per_s=10.0 generation_tokens_per_s=4.5 running=3 "
      "waiting=1 kv_usage_percent=12.5 prefix_hit_percent=25.0\n"
      "1970-01-01T00:00:00.000Z info engine prompt_tokens_per_s=0.0 generation_tokens_per_s=0.1 running=0 "
      "waiting=0 kv_usage_percent=0.0 prefix_hit_percent=0.0\n");
}

}  // namespace
}  // namespace nibble
