// The engine as its callers see it: requests in, events out. No tensor crosses this header.
#pragma once

#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/options.h"
#include "base/status.h"
#include "core/request.h"

namespace nibble {

// What was chosen for the user or by them.
struct EngineChoice {
  std::string field;
  std::string value;
  std::string from;  // user or default
  std::string why;
};

// What a caller may need to know of the loaded model.
struct ModelInfo {
  std::string name;
  std::filesystem::path folder;  // where its tokenizer and chat template lie too
  std::string architecture;
  int vocabulary = 0;
  int max_model_len = 0;         // tokens of prompt and answer together
  std::vector<TokenId> eos_ids;  // of config.json and generation_config.json together
  std::int64_t weight_bytes = 0;
  std::int64_t shared_bytes = 0;  // of weights that every step reads, whatever its tokens
  std::int64_t expert_bytes = 0;  // of all experts together, of which a step reads those it needs
  int experts = 0;
  int experts_per_token = 0;
  int threads = 0;
  std::vector<EngineChoice> choices;
};

// Bytes of weights that a step of this many tokens reads, if the router spreads them evenly.
double expected_step_bytes(const ModelInfo& model, int tokens);

struct StepTimes {
  double seconds = 0;
  int prefill_tokens = 0;
  int decode_tokens = 0;
};

class Engine {
 public:
  static Result<std::unique_ptr<Engine>> load(const EngineOptions& options);
  virtual ~Engine() = default;

  virtual const ModelInfo& model() const = 0;
  // Refused with a Status when the prompt is empty, has an id outside the vocabulary or leaves no room.
  // max_tokens 0 scores the prompt alone (with prompt_logprobs); it ends with `length` and no token.
  virtual Status submit(Request request) = 0;
  virtual void cancel(RequestId id) = 0;
  virtual bool idle() const = 0;
  // Plans and runs one step over all running requests; appends what came of it. Events refer into the engine
  // until the next step, which allocates nothing that `events` has room for. A failed step (the model's file
  // shrank under us) is a Status, and no request can continue.
  virtual Result<StepTimes> step(std::vector<Event>& events) = 0;
};

}  // namespace nibble
