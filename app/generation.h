// Prompts through the engine: all of them as one batch, text as it comes, stop strings, Ctrl-C.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "app/sampling_options.h"
#include "engine/engine.h"
#include "text/answer_reader.h"
#include "text/conversation.h"
#include "text/tokenizer.h"

namespace nibble {

struct GenerationInput {
  std::vector<TokenId> ids;
  GenerationParams params;
  AnswerStart answer;
  std::shared_ptr<TokenConstraint> constraint;  // null: any text
};

struct GenerationTimings {
  double prefill_s = 0;    // from submission to the first token
  double decode_s = 0;     // from there to the last
  int prefill_tokens = 0;  // of the prompt
  int decode_tokens = 0;   // of the answer, without the first, which the prompt's last step gives
};

struct GenerationResult {
  std::vector<TokenId> token_ids;
  std::vector<float> logprobs;                 // [token_ids], when asked for
  std::vector<std::vector<TokenLogprob>> top;  // [token_ids][logprobs], when asked for
  std::vector<float> prompt_logprobs;          // [prompt], when asked for; entry 0 means nothing
  std::string text;
  std::string reasoning;
  std::vector<ToolCall> calls;  // of tools that the prompt offered
  FinishReason finish = FinishReason::none;
  std::string error;  // why, when finish is error
  GenerationTimings timings;
};

// What a caller may want to see on the way; any of them may be empty.
struct GenerationCallbacks {
  std::function<void(std::size_t input, const AnswerPiece& piece)> piece;
  std::function<void(std::size_t input, const GenerationResult& result)> finished;
  // After every step: prompt tokens read so far and in all.
  std::function<void(std::int64_t done, std::int64_t total)> prefill;
  // Asked before every step; true ends all that runs as `cancelled`.
  std::function<bool()> interrupted;
};

// A refused input's message begins with `input_names[i]` where that is given. The inputs' own seeds, stop
// strings and limits count; stop ids are the model's unless ignore_eos.
Result<std::vector<GenerationResult>> run_generation(Engine& engine, const Tokenizer& tokenizer,
                                                     std::span<const GenerationInput> inputs,
                                                     std::span<const std::string> input_names,
                                                     const GenerationCallbacks& callbacks);

}  // namespace nibble
