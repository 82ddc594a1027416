// nibble score: log-likelihood and perplexity of a text.
#include <algorithm>
#include <memory>
#include <optional>

#include "app/commands.h"
#include "app/input_text.h"
#include "app/interrupt.h"
#include "app/loaded_model.h"
#include "app/other_process.h"
#include "app/progress.h"
#include "app/text_score.h"
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

std::string json_text(const TextScore& score, const std::vector<TokenId>& ids, bool logprobs) {
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

void print_score(const TextScore& score, const std::vector<TokenId>& ids, const Tokenizer& tokenizer,
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

Status run(Options& options, Console& console) {
  NIBBLE_ASSIGN(options.engine, options_of_process(options.engine));
  if (const std::optional<Status> done = run_steps_of_another(options.engine)) return *done;
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
  NIBBLE_ASSIGN(const TextScore score, score_ids(*engine, tokenizer, ids, window));
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
       .value = "N",
       .help = "a longer text is scored in windows of N tokens, each beginning in the middle of the one "
               "before; a token "
               "counts once, with the longer past",
       .default_text = "2048",
       .set = int_value(options->window, 2, 1 << 24)},
      {.name = "--special",
       .help = "control tokens spelled in the text count as such",
       .set = switch_value(options->special)},
      {.name = "--logprobs",
       .help = "every token's log-probability too",
       .set = switch_value(options->logprobs)},
      {.name = "--json", .help = "one line of JSON", .set = switch_value(options->json)},
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
