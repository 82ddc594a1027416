// nibble quantize: a checkpoint in fewer bits from a wider one.
#include "quantize/quantize.h"

#include <algorithm>
#include <cinttypes>
#include <cmath>
#include <csignal>
#include <memory>
#include <optional>

#include "app/commands.h"
#include "app/input_text.h"
#include "app/interrupt.h"
#include "app/loaded_model.h"
#include "app/progress.h"
#include "app/text_score.h"
#include "base/json_writer.h"
#include "base/quote.h"
#include "checkpoint/model_location.h"

namespace nibble {
namespace {

constexpr int score_window = 2048;

struct Options {
  std::string source, destination, format, rest, score_file;
  QuantizeOptions quantize;
  float shard_gigabytes = 5;
  bool json = false;
};

// Perplexities of the same text; the first is absent where nibble cannot run the source.
struct Scores {
  std::optional<double> before;
  double after = 0;
  std::string why_not_before;
};

Result<double> perplexity(const std::string& model, int threads, const std::string& text) {
  EngineOptions engine;
  engine.model = model;
  engine.threads = threads;
  ProgressBar loading("loading " + model);
  loading.announce();
  NIBBLE_ASSIGN(const LoadedModel loaded,
                load_model(engine, [&](double done, double total) { loading.update(done, total); }));
  loading.erase();
  const std::vector<TokenId> ids = loaded.tokenizer.encode(text);
  if (ids.size() < 2)
    return invalid_argument("the text of --score has fewer than two tokens; give a longer one");
  const int window = std::min(score_window, loaded.engine->model().max_model_len);
  NIBBLE_ASSIGN(const TextScore score, score_ids(*loaded.engine, loaded.tokenizer, ids, window));
  return score.perplexity();
}

// Infinite for weights that are kept exactly, which is null in JSON.
double decibels(double relative) { return -20 * std::log10(relative); }

std::string shown_decibels(double relative) {
  char text[32];
  std::snprintf(text, sizeof text, "%.2f", decibels(relative));
  return relative > 0 ? std::string(text) + " dB" : "exact";
}

void print_module(const QuantizedModule& module, int columns, Console& console) {
  std::string shape = "[" + std::to_string(module.rows) + ", " + std::to_string(module.cols) + "]";
  if (module.matrices > 1) shape = std::to_string(module.matrices) + " x " + shape;
  std::fprintf(console.out, "%-*s %-22s %10.3g %9s %12.4g\n", columns, escape(module.name).c_str(),
               shape.c_str(), module.error.relative(), shown_decibels(module.error.relative()).c_str(),
               module.error.largest);
}

void print_report(const QuantizeReport& report, const Options& options, const std::optional<Scores>& scores,
                  Console& console) {
  std::size_t width = 6;
  for (const QuantizedModule& module : report.modules) width = std::max(width, escape(module.name).size());
  const int columns = static_cast<int>(std::min<std::size_t>(width, 64));
  std::fprintf(console.out, "%-*s %-22s %10s %8s %12s\n", columns, "module", "shape", "error", "dB",
               "largest");
  for (const QuantizedModule& module : report.modules) print_module(module, columns, console);
  std::fprintf(console.out, "\nformat         %s%s%s\n", options.format.c_str(),
               options.rest.empty() ? "" : (", the rest " + options.rest).c_str(),
               options.quantize.conversion.encode.search_scales ? ", scales searched" : "");
  std::fprintf(console.out, "modules        %zu, %" PRId64 " weights\n", report.modules.size(),
               report.error.values);
  std::fprintf(console.out, "error          %.4g of the weights' root mean square, %s\n",
               report.error.relative(), shown_decibels(report.error.relative()).c_str());
  std::fprintf(console.out, "bytes          %" PRId64 ", from %" PRId64 "\n", report.written_bytes,
               report.source_bytes);
  if (report.resumed_jobs > 0)
    std::fprintf(console.out, "resumed        %" PRId64 " tensors were done by an earlier run\n",
                 report.resumed_jobs);
  if (scores && scores->before)
    std::fprintf(console.out, "perplexity     %.6f before, %.6f after\n", *scores->before, scores->after);
  if (scores && !scores->before)
    std::fprintf(console.out, "perplexity     %.6f after; not before: %s\n", scores->after,
                 scores->why_not_before.c_str());
  for (const std::string& name : report.left_files)
    std::fprintf(console.out, "not copied     %s\n", escape(name).c_str());
}

void write_error(const EncodeError& error, JsonWriter& json) {
  json.member("values", error.values).member("relative_error", error.relative());
  json.member("decibels", decibels(error.relative())).member("largest_error", error.largest);
}

std::string json_text(const QuantizeReport& report, const Options& options,
                      const std::optional<Scores>& scores) {
  std::string text;
  JsonWriter json(text);
  json.begin_object().member("format", options.format);
  if (!options.rest.empty()) json.member("rest", options.rest);
  json.member("scale_search", options.quantize.conversion.encode.search_scales);
  json.member("source_bytes", report.source_bytes).member("bytes", report.written_bytes);
  json.member("resumed", report.resumed_jobs);
  write_error(report.error, json);
  json.key("modules").begin_array();
  for (const QuantizedModule& module : report.modules) {
    json.begin_object().member("name", module.name).member("matrices", module.matrices);
    json.member("rows", module.rows).member("cols", module.cols);
    write_error(module.error, json);
    json.end_object();
  }
  json.end_array().key("copied").begin_array();
  for (const std::string& name : report.copied_files) json.value(name);
  json.end_array().key("not_copied").begin_array();
  for (const std::string& name : report.left_files) json.value(name);
  json.end_array();
  if (scores) {
    json.key("perplexity").begin_object().key("before");
    if (scores->before) {
      json.value(*scores->before);
    } else {
      json.null();
    }
    json.member("after", scores->after).end_object();
  }
  json.end_object();
  return text + "\n";
}

Status run(Options& options, Console& console) {
  if (options.format.empty())
    return invalid_argument("--format is missing; give mxfp4, nvfp4, fp8_block or mxfp8");
  std::string text;
  if (!options.score_file.empty()) {
    NIBBLE_ASSIGN(text, read_input_text(options.score_file, console));
  }
  // A limit on a file's size shall be an error of the write, not the end of the process.
  std::signal(SIGXFSZ, SIG_IGN);
  NIBBLE_ASSIGN(const ModelLocation location,
                locate_model(options.source, LocationEnvironment::of_this_process()));
  QuantizeOptions& quantize = options.quantize;
  quantize.source = location.folder;
  quantize.destination = options.destination;
  quantize.conversion.shard_bytes =
      static_cast<std::int64_t>(static_cast<double>(options.shard_gigabytes) * 1e9);
  QuantizeReport report;
  {
    const InterruptGuard guard;
    ProgressBar bar("quantizing");
    NIBBLE_ASSIGN(
        report, quantize_checkpoint(quantize,
                                    {.progress = [&](double done, double total) { bar.update(done, total); },
                                     .interrupted = [&] { return guard.interrupted(); }}));
  }
  std::optional<Scores> scores;
  if (!options.score_file.empty()) {
    scores.emplace();
    const Result<double> before = perplexity(options.source, quantize.threads, text);
    if (before.ok()) {
      scores->before = *before;
    } else if (before.status().code() == StatusCode::cancelled) {
      return before.status();
    } else {
      scores->why_not_before = before.status().message();
    }
    Result<double> after = perplexity(options.destination, quantize.threads, text);
    if (!after.ok())
      return after.status().with_context(quote(options.destination) + " is complete, --score failed");
    scores->after = *after;
  }
  if (options.json) {
    const std::string line = json_text(report, options, scores);
    std::fwrite(line.data(), 1, line.size(), console.out);
  } else {
    print_report(report, options, scores, console);
  }
  return {};
}

void add_encoding_options(const std::shared_ptr<Options>& options, CommandLine& line) {
  EncodeOptions& encode = options->quantize.conversion.encode;
  line.options.push_back({.name = "--format",
                          .value = "NAME",
                          .help = "mxfp4, nvfp4, fp8_block or mxfp8",
                          .set = text_value([options](std::string_view text) -> Status {
                            options->format = text;
                            return choice_value(options->quantize.conversion.encode.format,
                                                {{"mxfp4", WeightFormat::mxfp4},
                                                 {"nvfp4", WeightFormat::nvfp4},
                                                 {"fp8_block", WeightFormat::fp8_block},
                                                 {"mxfp8", WeightFormat::mxfp8}})(std::span(&text, 1));
                          })});
  line.options.push_back(
      {.name = "--rest",
       .value = "NAME",
       .help = "fp8_block: the other linear modules too, but routers and lm_head",
       .set = text_value([options](std::string_view text) -> Status {
         options->rest = text;
         WeightFormat& rest = options->quantize.conversion.rest.emplace();
         return choice_value(rest, {{"fp8_block", WeightFormat::fp8_block}})(std::span(&text, 1));
       })});
  line.options.push_back({.name = "--scale-search",
                          .help = "try scales near the usual one; the smallest squared error wins",
                          .set = switch_value(encode.search_scales)});
  line.options.push_back({.name = "--mxfp4-scale",
                          .value = "NAME",
                          .help = "round_up: nothing saturates; ocp_floor: as the OCP specification",
                          .default_text = "round_up",
                          .set = choice_value(encode.mxfp4_scale, {{"round_up", Mxfp4Scale::round_up},
                                                                   {"ocp_floor", Mxfp4Scale::ocp_floor}})});
}

void add_module_options(const std::shared_ptr<Options>& options, CommandLine& line) {
  ModuleChoice& modules = options->quantize.conversion.modules;
  line.options.push_back(
      {.name = "--modules",
       .value = "SET",
       .help = "experts, or linear: also all other linear modules but routers and lm_head",
       .default_text = "experts, if there are any",
       .set = choice_value(modules.set, {{"experts", ModuleSet::experts}, {"linear", ModuleSet::linear}})});
  line.options.push_back({.name = "--include",
                          .value = "PATTERN",
                          .help = "these modules too, such as lm_head or '*.self_attn.*'; repeatable",
                          .set = strings_value(modules.include)});
  line.options.push_back({.name = "--exclude",
                          .value = "PATTERN",
                          .help = "not these modules; repeatable",
                          .set = strings_value(modules.exclude)});
}

CommandLine declare() {
  auto options = std::make_shared<Options>();
  CommandLine line;
  line.positionals = {{.name = "SRC",
                       .help = "a directory or a name in the Hugging Face cache: bf16, f16 or f32",
                       .target = &options->source},
                      {.name = "DST", .help = "a directory to make", .target = &options->destination}};
  add_encoding_options(options, line);
  add_module_options(options, line);
  line.options.push_back({.name = "--score",
                          .value = "FILE",
                          .help = "perplexity of a text before and after",
                          .set = string_value(options->score_file)});
  line.options.push_back({.name = "--shard-size",
                          .value = "GB",
                          .help = "the largest file of weights",
                          .default_text = "5",
                          .set = float_value(options->shard_gigabytes, 1e-6f, 1e6f)});
  line.options.push_back({.name = "--restart",
                          .help = "throw away what an unfinished run left",
                          .set = switch_value(options->quantize.restart)});
  line.options.push_back({.name = "--threads",
                          .aliases = {"-t"},
                          .value = "N",
                          .help = "CPU threads; 0: all CPUs this process may use",
                          .default_text = "0",
                          .set = int_value(options->quantize.threads, 0, 1024)});
  line.options.push_back({.name = "--json", .help = "one line of JSON", .set = switch_value(options->json)});
  line.run = [options](Console& console) { return run(*options, console); };
  return line;
}

}  // namespace

const Command quantize_command{.name = "quantize",
                               .summary = "a 4-bit or FP8 checkpoint from a wider one",
                               .example = "nibble quantize ./model-bf16 ./model-nvfp4 --format nvfp4",
                               .declare = declare};

}  // namespace nibble
