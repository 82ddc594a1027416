// nibble generate: prompts in, text or JSON lines out.
#include <unistd.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <utility>

#include "app/answer_format.h"
#include "app/commands.h"
#include "app/date_option.h"
#include "app/display_text.h"
#include "app/generation.h"
#include "app/generation_json.h"
#include "app/input_text.h"
#include "app/interrupt.h"
#include "app/loaded_model.h"
#include "app/other_process.h"
#include "app/progress.h"
#include "app/prompt_file.h"
#include "app/pull_model.h"
#include "app/terminal.h"
#include "app/word_wrap.h"
#include "grammar/grammar.h"
#include "server/api/answer_constraint.h"
#include "text/chat_prompt.h"

namespace nibble {
namespace {

struct Options {
  EngineOptions engine;
  GenerationParams params = default_generation_params();
  std::optional<Day> date;
  std::vector<std::string> prompts;
  std::vector<std::string> prompt_ids;
  std::string prompts_file;
  bool chat = false;
  bool special = false;
  bool json = false;
  FormatOptions format;
};

// What came in and what the engine gets, entry by entry.
struct Prompts {
  std::vector<PromptSpec> specs;
  std::vector<std::string> shown;  // the text given, rendered or decoded
  std::vector<GenerationInput> inputs;
  std::vector<std::string> names;
  // Whose answer is a message, not the text that continues the prompt.
  std::vector<bool> answers;
};

Result<std::vector<PromptSpec>> collect(const Options& options, Console& console) {
  GenerationParams defaults = options.params;
  defaults.sampling.seed = options.engine.seed;
  std::vector<PromptSpec> specs;
  const auto add = [&](const char* option, std::size_t i, std::size_t count) -> PromptSpec& {
    PromptSpec& spec = specs.emplace_back();
    spec.params = defaults;
    spec.where = std::string(option) + (count > 1 ? " " + std::to_string(i + 1) : "");
    return spec;
  };
  for (std::size_t i = 0; i < options.prompts.size(); ++i) {
    PromptSpec& spec = add("--prompt", i, options.prompts.size());
    spec.text = options.prompts[i];
  }
  for (std::size_t i = 0; i < options.prompt_ids.size(); ++i) {
    PromptSpec& spec = add("--prompt-ids", i, options.prompt_ids.size());
    spec.kind = PromptSpec::Kind::ids;
    Result<std::vector<TokenId>> ids = parse_token_ids(options.prompt_ids[i]);
    if (!ids.ok()) return ids.status().with_context(spec.where);
    spec.ids = std::move(*ids);
  }
  if (!options.prompts_file.empty()) {
    Result<std::string> content = read_input_text(options.prompts_file, console);
    if (!content.ok()) return content.status().with_context("--prompts");
    const std::string name = options.prompts_file == "-" ? "standard input" : options.prompts_file;
    NIBBLE_ASSIGN(std::vector<PromptSpec> lines, parse_prompts(*content, name, defaults));
    for (PromptSpec& line : lines) specs.push_back(std::move(line));
  }
  if (specs.empty()) {
    return invalid_argument("no prompt given; give --prompt TEXT, --prompt-ids 1,2,3 or --prompts FILE");
  }
  return specs;
}

// A plain text under --chat is what a user says.
void make_messages(PromptSpec& spec) {
  if (spec.kind != PromptSpec::Kind::text) return;
  spec.kind = PromptSpec::Kind::messages;
  spec.messages.resize(1);
  spec.messages[0].role = Role::user;
  spec.messages[0].content = std::exchange(spec.text, {});
}

Result<Prompts> encode(const Options& options, std::vector<PromptSpec> specs, const ModelInfo& model,
                       const Tokenizer& tokenizer) {
  Prompts prompts;
  std::optional<ChatPrompter> prompter;  // read when the first conversation comes
  for (PromptSpec& spec : specs) {
    if (options.chat) make_messages(spec);
    GenerationInput input{.ids = {}, .params = spec.params};
    std::string shown;
    switch (spec.kind) {
      case PromptSpec::Kind::text:
        input.ids = options.special ? tokenizer.encode_trusted(spec.text) : tokenizer.encode(spec.text);
        shown = spec.text;
        break;
      case PromptSpec::Kind::ids:
        input.ids = spec.ids;
        shown = tokenizer.decode(spec.ids);
        break;
      case PromptSpec::Kind::messages: {
        if (!prompter) {
          NIBBLE_ASSIGN(prompter, ChatPrompter::load(model.folder, tokenizer, options.date));
        }
        Result<ChatPrompt> prompt = prompter->render(std::move(spec.messages));
        if (!prompt.ok()) return prompt.status().with_context(spec.where);
        input.ids = std::move(prompt->ids);
        input.answer = std::move(prompt->answer);
        shown = std::move(prompt->text);
        break;
      }
    }
    if (options.json && input.params.sampling.logprobs < 0) input.params.sampling.logprobs = 0;
    prompts.answers.push_back(spec.kind == PromptSpec::Kind::messages);
    prompts.names.push_back(spec.where);
    prompts.shown.push_back(std::move(shown));
    prompts.inputs.push_back(std::move(input));
    prompts.specs.push_back(std::move(spec));
  }
  return prompts;
}

// Each answer is held to the format.
Status constrain(Prompts& prompts, const std::shared_ptr<const Grammar>& format, const ModelInfo& model,
                 const Tokenizer& tokenizer) {
  const auto vocabulary = GrammarVocabulary::make(tokenizer, model.eos_ids, model.vocabulary);
  for (std::size_t i = 0; i < prompts.inputs.size(); ++i) {
    GenerationInput& input = prompts.inputs[i];
    if (input.params.ignore_eos) {
      return invalid_argument(prompts.names[i] +
                              ": ignore_eos cannot be had beside a format, which says where the answer ends");
    }
    api::AnswerRules rules{.format = start(format, vocabulary), .calls = nullptr};
    auto constraint = api::constrain_answer(tokenizer, input.answer, model.eos_ids, std::move(rules));
    if (!constraint.ok()) return constraint.status().with_context(prompts.names[i]);
    input.constraint = *std::move(constraint);
  }
  return {};
}

// Writes results in input order, each as soon as it and all before it are there; a lone prompt's text as it
// is made.
class ResultPrinter {
 public:
  ResultPrinter(const Options& options, const Prompts& prompts, Console& console)
      : options_(options),
        prompts_(prompts),
        console_(console),
        results_(prompts.inputs.size()),
        streams_(!options.json && prompts.inputs.size() == 1),
        terminal_(is_terminal(::fileno(console.out))),
        color_(wants_color(::fileno(console.out))) {}

  void begin() {
    // Reading a continuation without its beginning is odd; a file wants the new text alone.
    if (streams_ && terminal_ && !prompts_.answers[0]) {
      put(dim(placed(prompts_.shown[0])));
      put(dim(wrapper_.flush()));
    }
  }

  void piece(const AnswerPiece& piece) {
    if (streams_) put_piece(piece);
  }

  void finished(std::size_t i, const GenerationResult& result) {
    if (streams_) {
      put(wrapper_.flush());
      if (terminal_ || !ends_line(result.text)) put("\n");
      if (terminal_ && result.finish != FinishReason::cancelled) put_speed(result.timings);
      return;
    }
    results_[i] = std::make_unique<GenerationResult>(result);
    for (; next_ < results_.size() && results_[next_]; ++next_) {
      put_result(next_, *results_[next_]);
      results_[next_].reset();
    }
  }

 private:
  static bool ends_line(std::string_view text) { return text.ends_with('\n'); }
  std::string dim(const std::string& text) const {
    return color_ && !text.empty() ? "\x1b[2m" + text + "\x1b[22m" : text;
  }

  void put(std::string_view text) {
    std::fwrite(text.data(), 1, text.size(), console_.out);
    std::fflush(console_.out);
  }

  // As it goes out: for a person safe and broken between words, for a program as it is.
  std::string placed(std::string_view text) {
    if (!terminal_) return std::string(text);
    return wrapper_.push(visible_text(text), terminal_columns(::fileno(console_.out)));
  }

  // For a person: how fast it was.
  void put_speed(const GenerationTimings& timings) {
    char text[120];
    std::snprintf(text, sizeof text, "(%d prompt tokens in %.2f s, then %.1f tokens a second)",
                  timings.prefill_tokens, timings.prefill_s,
                  timings.decode_s > 0 ? timings.decode_tokens / timings.decode_s : 0.0);
    put(dim(text) + "\n");
  }

  // A model's reasoning is shown to a person, dimmed, and left out where a program reads.
  void put_piece(const AnswerPiece& piece) {
    if (piece.part == AnswerPart::answer) {
      if (reasoning_) put(dim(placed("\n\n")));
      reasoning_ = false;
      put(placed(piece.text));
    } else if (color_) {
      reasoning_ = true;
      put(dim(placed(piece.text)));
    }
  }

  void put_result(std::size_t i, const GenerationResult& result) {
    if (result.finish == FinishReason::cancelled) return;
    if (options_.json) {
      put(generation_json_line(prompts_.specs[i].case_name, prompts_.shown[i], prompts_.inputs[i], result));
      return;
    }
    const PromptSpec& spec = prompts_.specs[i];
    put((i == 0 ? "==> " : "\n==> ") + (spec.case_name.empty() ? spec.where : spec.case_name) + " <==\n");
    put(terminal_ ? visible_text(result.text) : result.text);
    if (!ends_line(result.text)) put("\n");
  }

  const Options& options_;
  const Prompts& prompts_;
  Console& console_;
  std::vector<std::unique_ptr<GenerationResult>> results_;  // finished and waiting for those before them
  std::size_t next_ = 0;
  bool streams_;
  bool terminal_;
  bool color_;
  bool reasoning_ = false;
  WordWrapper wrapper_;
};

Status check_results(const std::vector<GenerationResult>& results, const Prompts& prompts) {
  const auto unfinished = std::count_if(results.begin(), results.end(), [](const GenerationResult& result) {
    return result.finish == FinishReason::cancelled;
  });
  if (unfinished > 0) {
    return {StatusCode::cancelled, "interrupted; " + std::to_string(unfinished) + " of " +
                                       std::to_string(results.size()) + " prompts were not finished"};
  }
  for (std::size_t i = 0; i < results.size(); ++i) {
    if (results[i].finish == FinishReason::error)
      return internal_error(prompts.names[i] + ": " + results[i].error);
  }
  return {};
}

Status run(Options& options, Console& console) {
  NIBBLE_ASSIGN(options.engine, options_of_process(options.engine));
  if (const std::optional<Status> done = run_steps_of_another(options.engine)) return *done;
  if (options.format.given() > 1) return invalid_argument("give one of --json-schema, --grammar and --regex");
  NIBBLE_ASSIGN(std::vector<PromptSpec> specs, collect(options, console));
  std::shared_ptr<const Grammar> format;  // before the model is loaded: what is wrong with it is told at once
  if (options.format.given() > 0) {
    NIBBLE_ASSIGN(format, compile_format(options.format, {}, console));
  }
  NIBBLE_RETURN_IF_ERROR(offer_pull(options.engine.model, console));
  exit_on_interrupt();
  ProgressBar loading("loading " + options.engine.model);
  loading.announce();
  NIBBLE_ASSIGN(const LoadedModel loaded,
                load_model(options.engine, [&](double done, double total) { loading.update(done, total); }));
  const std::unique_ptr<Engine>& engine = loaded.engine;
  const Tokenizer& tokenizer = loaded.tokenizer;
  loading.erase();
  NIBBLE_ASSIGN(Prompts prompts, encode(options, std::move(specs), engine->model(), tokenizer));
  if (format) NIBBLE_RETURN_IF_ERROR(constrain(prompts, format, engine->model(), tokenizer));

  const InterruptGuard guard;
  ResultPrinter printer(options, prompts, console);
  ProgressBar reading("reading the prompt");
  GenerationCallbacks callbacks;
  callbacks.piece = [&](std::size_t, const AnswerPiece& piece) {
    reading.erase();
    printer.piece(piece);
  };
  callbacks.finished = [&](std::size_t i, const GenerationResult& result) {
    reading.erase();
    printer.finished(i, result);
  };
  callbacks.prefill = [&](std::int64_t done, std::int64_t total) {
    if (done < total) reading.update(static_cast<double>(done), static_cast<double>(total));
  };
  callbacks.interrupted = [&] { return guard.interrupted(); };
  printer.begin();
  NIBBLE_ASSIGN(const std::vector<GenerationResult> results,
                run_generation(*engine, tokenizer, prompts.inputs, prompts.names, callbacks));
  return check_results(results, prompts);
}

CommandLine declare() {
  auto options = std::make_shared<Options>();
  SamplingParams& sampling = options->params.sampling;
  CommandLine line;
  line.positionals = {{.name = "MODEL",
                       .help = "a directory, a name in the Hugging Face cache, or demo",
                       .target = &options->engine.model}};
  line.options = {
      {.name = "--prompt",
       .aliases = {"-p"},
       .value = "TEXT",
       .help = "text to continue; repeatable",
       .set = strings_value(options->prompts)},
      {.name = "--prompt-ids",
       .value = "1,2,3",
       .help = "the same as token ids; repeatable",
       .set = strings_value(options->prompt_ids)},
      {.name = "--prompts",
       .value = "FILE",
       .help = "JSON lines, each with its own sampling; - is standard input",
       .set = string_value(options->prompts_file)},
      {.name = "--chat", .help = "each prompt is a user's message", .set = switch_value(options->chat)},
      {.name = "--special",
       .help = "control tokens spelled in --prompt count as such",
       .set = switch_value(options->special)},
      {.name = "--max-tokens",
       .aliases = {"-n"},
       .value = "N",
       .help = "longest answer; 0: read the prompt only",
       .default_text = "128",
       .set = int_value(sampling.max_tokens, 0, 1 << 30)},
      {.name = "--logprobs",
       .value = "K",
       .help = "the K likeliest tokens of each step",
       .set = int_value(sampling.logprobs, 0, 1 << 20)},
      {.name = "--prompt-logprobs",
       .help = "log-probabilities of the prompt's tokens too",
       .set = switch_value(sampling.prompt_logprobs)},
      {.name = "--ignore-eos",
       .help = "go on after the end token",
       .set = switch_value(options->params.ignore_eos)},
      {.name = "--json",
       .help = "a line of JSON a prompt, in input order",
       .set = switch_value(options->json)},
  };
  line.options.push_back(date_option_spec(options->date));
  line.add(format_option_specs(options->format));
  line.add(sampling_option_specs(options->params));
  line.add(engine_option_specs(options->engine));
  line.run = [options](Console& console) { return run(*options, console); };
  return line;
}

}  // namespace

const Command generate_command{
    .name = "generate",
    .summary = "prompts in, text or JSON lines out",
    .example = "nibble generate demo --prompt \"Once upon a time\" --max-tokens 200",
    .declare = declare};

}  // namespace nibble
