#include "app/text_score.h"

#include <utility>

#include "app/generation.h"
#include "app/interrupt.h"
#include "app/progress.h"
#include "app/score_windows.h"

namespace nibble {

Result<TextScore> score_ids(Engine& engine, const Tokenizer& tokenizer, const std::vector<TokenId>& ids,
                            int window) {
  const std::vector<ScoreWindow> windows = score_windows(ids.size(), static_cast<std::size_t>(window));
  std::vector<GenerationInput> inputs;
  for (const ScoreWindow& part : windows) {
    GenerationInput input;
    input.ids.assign(ids.begin() + static_cast<std::ptrdiff_t>(part.begin),
                     ids.begin() + static_cast<std::ptrdiff_t>(part.end));
    input.params.sampling.max_tokens = 0;
    input.params.sampling.prompt_logprobs = true;
    inputs.push_back(std::move(input));
  }
  const InterruptGuard guard;
  ProgressBar bar("scoring");
  GenerationCallbacks callbacks;
  callbacks.prefill = [&](std::int64_t done, std::int64_t total) {
    bar.update(static_cast<double>(done), static_cast<double>(total));
  };
  callbacks.interrupted = [&] { return guard.interrupted(); };
  NIBBLE_ASSIGN(const std::vector<GenerationResult> results,
                run_generation(engine, tokenizer, inputs, {}, callbacks));

  TextScore score;
  score.logprobs.resize(ids.size());
  for (std::size_t w = 0; w < windows.size(); ++w) {
    if (results[w].finish == FinishReason::cancelled)
      return Status(StatusCode::cancelled, "interrupted; nothing was scored");
    if (results[w].finish == FinishReason::error) return internal_error(results[w].error);
    for (std::size_t i = windows[w].scored; i < windows[w].end; ++i) {
      const float logprob = results[w].prompt_logprobs[i - windows[w].begin];
      score.logprobs[i] = logprob;
      score.nll -= logprob;
      score.bytes += tokenizer.bytes(ids[i]).size();
      ++score.tokens;
    }
  }
  return score;
}

}  // namespace nibble
