// Equal requests through the engine, and what they measured.
//
// Other work on a machine takes CPUs away in the midst of a step, so a step counts only if the process had
// its threads' CPUs for at least clean_share of the time; where no step had, all count. A rate is that of the
// median token: half of the tokens came in faster steps.
#pragma once

#include <functional>
#include <vector>

#include "base/time_table.h"
#include "engine/engine.h"

namespace nibble {

inline constexpr double clean_share = 0.97;

struct BenchLoad {
  int depth = 0;  // tokens of a prompt before those that are measured
  int input_len = 0;
  int output_len = 0;
  int concurrency = 0;  // requests in flight
  // As many as are in flight: all decode together until the last one has its tokens. More: one that ends is
  // followed by the next.
  int requests = 0;
  int step_tokens = 0;     // the engine's tokens a step
  int cpus = 1;            // that the engine's threads run on
  std::uint64_t seed = 0;  // of the random prompts
  bool profile = false;    // times by op are wanted
  // Above 0: all requests run once before, and what is measured has their answers as predictions, of which so
  // many tokens of 100 are right.
  int predicted = 0;
};

// Nearest-rank percentiles, in seconds.
struct Percentiles {
  double p50 = 0, p90 = 0, p99 = 0;
};
Percentiles percentiles(std::vector<double> samples);

// Steps of one kind.
struct StepSummary {
  double tokens_per_s = 0;
  double step_s = 0;       // the median token's step
  double step_tokens = 0;  // that step's tokens
  int steps = 0;
  int clean_steps = 0;
  TimeTable times;  // by op, of all steps
};

struct BenchResult {
  double seconds = 0;   // of the whole loop
  StepSummary prefill;  // steps that only prefilled, tokens past the depth among them
  StepSummary decode;   // steps that only decoded, with all requests in flight where there are such
  Percentiles time_to_first_token;
  Percentiles inter_token_latency;
};

// progress(done, total) counts tokens; a true return of stopped() ends the loop with a Status.
Result<BenchResult> run_bench(Engine& engine, const BenchLoad& load,
                              const std::function<void(std::int64_t, std::int64_t)>& progress,
                              const std::function<bool()>& stopped);

}  // namespace nibble
