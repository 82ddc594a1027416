// A closed loop of equal requests through the engine, and what it measured.
#pragma once

#include <functional>
#include <vector>

#include "engine/engine.h"

namespace nibble {

struct BenchLoad {
  int input_len = 0;
  int output_len = 0;
  int concurrency = 0;  // requests in flight; one that ends is followed by the next
  int requests = 0;
  std::uint64_t seed = 0;  // of the random prompts
};

// Nearest-rank percentiles, in seconds.
struct Percentiles {
  double p50 = 0, p90 = 0, p99 = 0;
};
Percentiles percentiles(std::vector<double> samples);

struct BenchResult {
  double seconds = 0;               // of the whole loop
  double prefill_tokens_per_s = 0;  // in steps that only prefilled
  double decode_tokens_per_s = 0;   // in steps that only decoded
  double decode_steps_per_s = 0;
  double tokens_a_decode_step = 0;
  Percentiles time_to_first_token;
  Percentiles inter_token_latency;
};

// progress(done, total) counts requests; a true return of stopped() ends the loop with a Status.
Result<BenchResult> run_bench(Engine& engine, const BenchLoad& load,
                              const std::function<void(int, int)>& progress,
                              const std::function<bool()>& stopped);

}  // namespace nibble
