#include "server/api/health.h"

#include <gtest/gtest.h>

namespace nibble::api {
namespace {

using std::chrono::seconds;

TEST(Health, AStepIsStuckWhenItsOwnLimitHasPassedAndNotBefore) {
  const auto state = [](seconds since, seconds limit) {
    return health_of({.loaded = true, .since_a_step = since, .step_limit = limit}).state;
  };
  EXPECT_EQ(state(seconds(31), seconds(0)), "ok");  // a CPU's prefill may take minutes
  EXPECT_EQ(state(seconds(100000), seconds(0)), "ok");
  EXPECT_EQ(state(seconds(31), seconds(60)), "ok");
  EXPECT_EQ(state(seconds(60), seconds(60)), "ok");
  EXPECT_EQ(state(seconds(61), seconds(60)), "stuck");
  EXPECT_EQ(state(seconds(6), seconds(5)), "stuck");
}

TEST(Health, OnlyAnEngineThatAnswersIsHealthy) {
  const seconds late(61), limit(60);
  const struct {
    EngineState engine;
    int status;
    std::string_view state;
  } cases[] = {
      {{}, 503, "loading"},
      {{.loaded = true}, 200, "ok"},
      {{.loaded = true, .degraded = true}, 200, "degraded"},
      {{.loaded = true, .draining = true, .since_a_step = late, .step_limit = limit}, 503, "draining"},
      {{.loaded = true, .failed = true, .draining = true}, 503, "failed"},
      {{.loaded = true, .degraded = true, .since_a_step = late, .step_limit = limit}, 503, "stuck"},
  };
  for (const auto& [engine, status, state] : cases) {
    EXPECT_EQ(health_of(engine).status, status) << state;
    EXPECT_EQ(health_of(engine).state, state);
  }
}

}  // namespace
}  // namespace nibble::api
