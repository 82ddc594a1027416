// nibble plan: what would run, and why; for this machine or for another one.
#include "plan/plan.h"

#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <memory>

#include "app/commands.h"
#include "app/peak_rate.h"
#include "app/read_bandwidth.h"
#include "app/terminal.h"
#include "app/text_choices.h"
#include "checkpoint/model_location.h"
#include "checkpoint/text_file.h"
#include "models/model_traits.h"
#include "plan/matrix.h"
#include "runtime/gpu.h"

namespace nibble {
namespace {

struct Options {
  EngineOptions engine;
  std::string machine = "this";
  bool matrix = false;
  bool machine_json = false;
  bool json = false;
};

void print(Console& console, const std::string& text) {
  std::fwrite(text.data(), 1, text.size(), console.out);
}

// A file as --machine-json prints it, or "machine" of a whole plan.
Result<Machine> machine_of_file(const std::string& path) {
  constexpr std::size_t most_bytes = std::size_t{1} << 20;
  NIBBLE_ASSIGN(std::string text, read_text_file(path, most_bytes));
  Result<JsonDocument> document =
      JsonDocument::parse(std::move(text), {.max_bytes = most_bytes, .max_depth = 16, .max_values = 1 << 16});
  if (!document.ok()) return invalid_argument(document.status().message()).with_context("--as " + path);
  const JsonValue root = document->root();
  Result<Machine> machine = read_machine(root.find("machine").value_or(root));
  if (!machine.ok()) return machine.status().with_context("--as " + path);
  return machine;
}

// This machine with what its memory and its arithmetic were measured to give just now.
Result<Machine> measured_machine() {
  Machine machine = probe_machine_with_gpus();
  const int threads = std::max(machine.cpu.threads, 1);
  NIBBLE_ASSIGN(machine.cpu.read_bandwidth, measure_read_bandwidth(threads));
  NIBBLE_ASSIGN(const PeakRate bf16, measure_peak_rate(threads, PeakValues::bfloat16));
  NIBBLE_ASSIGN(const PeakRate f32, measure_peak_rate(threads, PeakValues::float32));
  machine.cpu.bf16_flops = bf16.flops;
  machine.cpu.f32_flops = f32.flops;
  return machine;
}

Result<Machine> find_machine(const Options& options) {
  const std::string& name = options.machine;
  if (name == "this") return options.matrix ? Result<Machine>(probe_machine_with_gpus()) : measured_machine();
  std::error_code ignored;
  if (name.ends_with(".json") || std::filesystem::exists(name, ignored)) return machine_of_file(name);
  Result<Machine> machine = declared_machine(name);
  if (!machine.ok()) return machine.status().with_context("--as");
  return machine;
}

// How its answers are read and sampled; nothing of a folder without a tokenizer.
std::vector<Choice> text_rows(const std::filesystem::path& folder) {
  const Result<Tokenizer> tokenizer = Tokenizer::load(folder);
  if (!tokenizer.ok()) return {};
  const Result<ChatPrompter> chat = ChatPrompter::load(folder, *tokenizer);
  std::vector<Choice> rows = text_choices(*tokenizer, chat.ok() ? &*chat : nullptr);
  if (const auto sampling = api::read_sampling_defaults(folder); sampling.ok())
    rows.push_back(sampling_choice(*sampling, true));
  return rows;
}

int text_columns() {
  constexpr int widest = 110;
  return std::clamp(is_terminal(STDOUT_FILENO) ? terminal_columns(STDOUT_FILENO) : 100, 60, widest);
}

Status run(const Options& options, Console& console) {
  if (options.machine_json) {
    NIBBLE_ASSIGN(const Machine machine, find_machine(options));
    std::string text;
    JsonWriter json(text);
    write_machine(machine, json);
    print(console, text + "\n");
    return {};
  }
  if (options.engine.model.empty())
    return invalid_argument("no MODEL given; it is a directory, a name in the Hugging Face cache, or demo");
  NIBBLE_ASSIGN(const ModelLocation location,
                locate_model(options.engine.model, LocationEnvironment::of_this_process()));
  NIBBLE_ASSIGN(const ModelTraits model, read_model_traits(location.folder, location.name));
  NIBBLE_ASSIGN(Machine machine, find_machine(options));
  if (!options.engine.tuning_table.empty())
    NIBBLE_RETURN_IF_ERROR(take_tuning(options.engine.tuning_table, machine));
  if (options.matrix) {
    NIBBLE_ASSIGN(const Matrix matrix, judge_matrix(options.engine, machine, model));
    print(console, options.json ? matrix_json(matrix) + "\n" : matrix_text(matrix, text_columns()));
    return {};
  }
  NIBBLE_ASSIGN(Plan plan, resolve(options.engine, machine, model));
  for (Choice& row : text_rows(location.folder)) plan.choices.push_back(std::move(row));
  print(console, options.json ? plan_json(plan) + "\n" : plan_text(plan, text_columns()));
  return {};
}

CommandLine declare() {
  auto options = std::make_shared<Options>();
  CommandLine line;
  line.positionals = {{.name = "MODEL",
                       .help = "a folder with a config.json, a Hugging Face name, or demo",
                       .target = &options->engine.model,
                       .required = false}};
  line.options = {
      {.name = "--as",
       .value = "MACHINE",
       .help = "this, cpu, h100xN, h200xN, b200xN or a file",
       .default_text = options->machine,
       .set = string_value(options->machine)},
      {.name = "--matrix",
       .help = "every pair of expert compute and token exchange",
       .set = switch_value(options->matrix)},
      {.name = "--machine-json",
       .help = "the machine alone, as --as reads it",
       .set = switch_value(options->machine_json)},
      {.name = "--json", .help = "one line of JSON", .set = switch_value(options->json)},
  };
  line.add(engine_option_specs(options->engine));
  line.run = [options](Console& console) { return run(*options, console); };
  return line;
}

}  // namespace

const Command plan_command{.name = "plan",
                           .summary = "what would run, and why",
                           .example = "nibble plan demo --as h200x1",
                           .declare = declare};

}  // namespace nibble
