// nibble score: log-likelihood and perplexity of a text.
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <memory>

#include "app/commands.h"
#include "app/generation.h"
#include "app/input_text.h"
#include "app/interrupt.h"
#include "app/loaded_model.h"
#include "app/progress.h"
#include "app/score_windows.h"
#include "base/json_writer.h"
#include "base/quote.h"

namespace nibble {
namespace {

struct Options {
  EngineOptions engine;
  std::string file;
  int window = 2048;
  bool special = false;
  bool logprobs = false;
  bool json = false;
};

struct Score {
  std::vector<float> logprobs;  // [text tokens]; the first has none
  std::size_t tokens = 0;       // that were scored
  double nll = 0;               // their sum, in nats
  std::size_t bytes = 0;        // of the scored tokens

  double perplexity() const { return std::exp(nll / static_cast<double>(tokens)); }
  double bits_per_byte() const { return nll / std::log(2.0) / static_cast<double>(bytes); }
};

Result<Score> score_ids(Engine& engine, const Tokenizer& tokenizer, const std::vector<TokenId>& ids,
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

  Score score;
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

std::string json_text(const Score& score, const std::vector<TokenId>& ids, bool logprobs) {
  std::string text;
  JsonWriter json(text);
  json.begin_object();
  json.member("tokens", score.tokens).member("nll", score.nll).member("perplexity", score.perplexity());
  json.member("bytes", score.bytes).member("bits_per_byte", score.bits_per_byte());
  if (logprobs) {
    json.key("token_ids").begin_array();
    for (const TokenId id : ids) json.value(id);
    json.end_array().key("logprobs").begin_array().null();
    for (std::size_t i = 1; i < score.logprobs.size(); ++i) json.value(score.logprobs[i]);
    json.end_array();
  }
  json.end_object();
  return text + "\n";
}

void print_score(const Score& score, const std::vector<TokenId>& ids, const Tokenizer& tokenizer,
                 bool logprobs, Console& console) {
  for (std::size_t i = 0; logprobs && i < ids.size(); ++i) {
    const std::string piece = quote(tokenizer.bytes(ids[i]));
    if (i == 0) {
      std::fprintf(console.out, "%9s  %s\n", "", piece.c_str());
    } else {
      std::fprintf(console.out, "%9.4f  %s\n", static_cast<double>(score.logprobs[i]), piece.c_str());
    }
  }
  std::fprintf(console.out, "tokens         %zu\n", score.tokens);
  std::fprintf(console.out, "nll            %.6f\n", score.nll);
  std::fprintf(console.out, "perplexity     %.6f\n", score.perplexity());
  std::fprintf(console.out, "bits per byte  %.6f\n", score.bits_per_byte());
}

Status run(const Options& options, Console& console) {
  NIBBLE_ASSIGN(const std::string text, read_input_text(options.file, console));
  exit_on_interrupt();
  ProgressBar loading("loading " + options.engine.model);
  loading.announce();
  NIBBLE_ASSIGN(const LoadedModel loaded,
                load_model(options.engine, [&](double done, double total) { loading.update(done, total); }));
  const std::unique_ptr<Engine>& engine = loaded.engine;
  const Tokenizer& tokenizer = loaded.tokenizer;
  loading.erase();

  const std::vector<TokenId> ids = options.special ? tokenizer.encode_trusted(text) : tokenizer.encode(text);
  if (ids.size() < 2) {
    return invalid_argument(quote(options.file) + " has " + std::to_string(ids.size()) +
                            " tokens and the first is never scored; give a longer text");
  }
  const int window = std::min(options.window, engine->model().max_model_len);
  NIBBLE_ASSIGN(const Score score, score_ids(*engine, tokenizer, ids, window));
  if (options.json) {
    const std::string line = json_text(score, ids, options.logprobs);
    std::fwrite(line.data(), 1, line.size(), console.out);
  } else {
    print_score(score, ids, tokenizer, options.logprobs, console);
  }
  return {};
}

CommandLine declare() {
  auto options = std::make_shared<Options>();
  CommandLine line;
  line.positionals = {{.name = "MODEL",
                       .help = "a directory, a name in the Hugging Face cache, or demo",
                       .target = &options->engine.model},
                      {.name = "FILE", .help = "a text; - is standard input", .target = &options->file}};
  line.options = {
      {.name = "--window",
       .aliases = {},
       .value = "N",
       .help = "a longer text is scored in windows of N tokens, each beginning in the middle of the one "
               "before; a token "
               "counts once, with the longer past",
       .default_text = "2048",
       .set = int_value(options->window, 2, 1 << 24)},
      {.name = "--special",
       .aliases = {},
       .value = {},
       .help = "control tokens spelled in the text count as such",
       .default_text = {},
       .set = switch_value(options->special)},
      {.name = "--logprobs",
       .aliases = {},
       .value = {},
       .help = "every token's log-probability too",
       .default_text = {},
       .set = switch_value(options->logprobs)},
      {.name = "--json",
       .aliases = {},
       .value = {},
       .help = "one line of JSON",
       .default_text = {},
       .set = switch_value(options->json)},
  };
  line.add(engine_option_specs(options->engine));
  line.run = [options](Console& console) { return run(*options, console); };
  return line;
}

}  // namespace

const Command score_command{.name = "score",
                            .summary = "log-likelihood and perplexity of a text",
                            .example = "nibble score demo story.txt --json",
                            .declare = declare};

}  // namespace nibble
