// What /health says, from what is known of the engine.
#pragma once

#include <chrono>
#include <string_view>

namespace nibble::api {

struct EngineState {
  bool loaded = false;
  bool failed = false;
  bool draining = false;
  bool degraded = false;                     // something runs that a gate refuses, or not what was planned
  std::chrono::nanoseconds since_a_step{0};  // or since there was nothing to do
  std::chrono::nanoseconds step_limit{0};    // of one step; 0: it may take what it takes
};

struct Health {
  int status = 200;
  std::string_view state;
};

constexpr Health health_of(const EngineState& engine) {
  if (!engine.loaded) return {503, "loading"};
  if (engine.failed) return {503, "failed"};
  if (engine.draining) return {503, "draining"};
  if (engine.step_limit.count() > 0 && engine.since_a_step > engine.step_limit) return {503, "stuck"};
  return {200, engine.degraded ? "degraded" : "ok"};
}

}  // namespace nibble::api
