// The engine as its callers see it: requests in, events out. No tensor crosses this header.
#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/options.h"
#include "base/status.h"
#include "base/time_table.h"
#include "core/ran_table.h"
#include "core/request.h"
#include "plan/plan.h"

namespace nibble {

// What a caller may need to know of the loaded model.
struct ModelInfo {
  std::string name;
  std::filesystem::path folder;  // where its tokenizer and chat template lie too
  std::string architecture;
  int vocabulary = 0;
  int max_model_len = 0;         // tokens of prompt and answer together
  int kv_tokens = 0;             // of all sequences together that the KV cache holds
  std::vector<TokenId> eos_ids;  // of config.json and generation_config.json together
  std::int64_t weight_bytes = 0;
  int threads = 0;
  Plan plan;
  Choice loaded;  // what loading found of the files in memory, or took of a GPU's
};

struct StepTimes {
  double seconds = 0;
  double cpu_seconds = 0;  // of all of the process's threads together
  int prefill_tokens = 0;
  int decode_tokens = 0;
  int last_prefill_position = 0;  // the largest of the prompt tokens' positions
};

// What the engine holds at this moment.
struct EngineLoad {
  int queued = 0;        // requests that hold no pages: they have not begun, or had to make room
  int running = 0;       // requests that do
  int pages_used = 0;    // of the KV cache, held by running requests
  int pages_cached = 0;  // held by none, and kept for requests that begin alike
  int pages = 0;
  int snapshots = 0;       // slots for snapshots of states
  int snapshots_kept = 0;  // of them in the prefix cache
  // Of the KV cache's fuller pool, from 0 to 1: where a model has full layers and layers with windows,
  // requests wait for pages as soon as one of both pools has none left.
  double used_share = 0;
};

// What happened since the start.
struct EngineTotals {
  std::uint64_t prefix_query_tokens = 0;  // of prompts that were looked up in the prefix cache
  std::uint64_t prefix_hit_tokens = 0;    // of those found there
  std::uint64_t preemptions = 0;
  std::uint64_t recomputed_tokens = 0;  // whose keys and values a preemption had cost
  std::uint64_t evicted_pages = 0;      // cached ones that made room
  // Snapshots of states, of models whose layers keep one.
  std::uint64_t snapshots_taken = 0;
  std::uint64_t snapshots_resumed = 0;  // that a request went on from
  std::uint64_t snapshots_evicted = 0;
  std::uint64_t drafted_tokens = 0;   // guesses of next tokens that steps checked
  std::uint64_t accepted_drafts = 0;  // of them those that were what was chosen
};

// What a process that runs another one's steps has to say of that.
struct Following {
  std::function<void()> ready;  // steps can come
  // Another process has gone, and no step will end well. A step that runs may still wait, for a thread or a
  // GPU of this process that does not come back. Of another thread, which must not wait.
  std::function<void()> lost;
};

class Engine {
 public:
  // progress(done, total), if any, tells of what takes seconds: the conversion of weights.
  static Result<std::unique_ptr<Engine>> load(
      const EngineOptions& options, const std::function<void(double done, double total)>& progress = {});
  // Where this process is not the first of several that share the ranks: runs the steps of that one until it
  // ends.
  static Status follow(const EngineOptions& options, const Following& following);
  virtual ~Engine() = default;

  virtual const ModelInfo& model() const = 0;
  // Refused with a Status when the prompt is empty, has an id outside the vocabulary or leaves no room.
  // max_tokens 0 scores the prompt alone (with prompt_logprobs); it ends with `length` and no token.
  virtual Status submit(Request request) = 0;
  virtual void cancel(RequestId id) = 0;
  virtual bool idle() const = 0;
  virtual EngineLoad load_now() const = 0;
  virtual EngineTotals totals() const { return {}; }
  // What its ranks have found of each other, also while a step does not come back; any thread may ask.
  virtual Status failure() const { return {}; }
  // What its steps have run so far, by names that live as long as the engine.
  virtual RanTable ran() const { return {}; }
  // Plans and runs one step over all running requests; appends what came of it. Events refer into the engine
  // until the next step, which allocates nothing that `events` has room for. A failed step (the model's file
  // shrank under us) is a Status, and no request can continue.
  virtual Result<StepTimes> step(std::vector<Event>& events) = 0;
  // From now on each step adds its ops' times to the table, which outlives that; null: to none.
  virtual void time_ops(TimeTable* table) = 0;
};

}  // namespace nibble
