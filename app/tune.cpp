// nibble tune: measures, for a model on this machine, the choices that move time alone, and writes a table
// from which plans take them.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>

#include "app/bench_load.h"
#include "app/commands.h"
#include "app/interrupt.h"
#include "app/progress.h"
#include "app/pull_model.h"
#include "app/version.h"
#include "base/quote.h"
#include "engine/choices.h"

namespace nibble {
namespace {

struct Options {
  EngineOptions engine;
  std::string output;
  int rounds = 3;
};

// By how much another value must be faster than what the rules choose to take its place.
constexpr double worth_a_change = 1.02;
constexpr int depth = 128, answer = 64;  // tokens

// A choice that is open for this model here, and the loads by which its values are told apart.
struct OpenChoice {
  std::string field;
  std::vector<std::string> values;  // the rules' own first
  std::vector<int> sequences;       // decoding together, a load each
};

std::vector<OpenChoice> open_choices(const Plan& plan) {
  std::vector<OpenChoice> open;
  for (const TunedField& field : tuned_fields()) {
    const auto choice = std::ranges::find(plan.choices, std::string(field.name), &Choice::field);
    if (choice == plan.choices.end()) continue;
    OpenChoice one{.field = choice->field, .values = {choice->value}, .sequences = {}};
    for (const std::string_view value : field.values)
      if (value != choice->value) one.values.emplace_back(value);
    if (field.name == "many_tokens_from") {
      // As many tokens as give each expert one, two, and so on, and half of that between them.
      const ModelTraits& model = plan.model;
      for (const int halves : {2, 3, 4, 6, 8, 12, 16}) {
        const std::int64_t tokens = halves * model.experts / (2 * model.experts_per_token);
        if (tokens >= 1 && tokens <= plan.max_num_seqs) one.sequences.push_back(static_cast<int>(tokens));
      }
    } else {
      for (const int sequences : {1, 8})
        if (sequences <= plan.max_num_seqs) one.sequences.push_back(sequences);
    }
    if (!one.sequences.empty()) open.push_back(std::move(one));
  }
  return open;
}

void set(EngineChoices& choices, const std::string& field, const std::string& value) {
  if (field == "weight_lines")
    choices.worker.weight_lines = find_weight_lines(value).value_or(choices.worker.weight_lines);
  else
    choices.worker.many_tokens_from = std::stoi(value);
}

double median(std::vector<double> values) {
  std::ranges::sort(values);
  const std::size_t middle = values.size() / 2;
  return values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

// Tokens a second: [value][load][round].
using Rates = std::vector<std::vector<std::vector<double>>>;

// Values take turns, so that all of them meet what else the machine does.
Result<Rates> measure(const Options& options, const OpenChoice& open) {
  const InterruptGuard guard;
  ProgressBar bar("measuring " + open.field);
  Rates rates(open.values.size(), std::vector<std::vector<double>>(open.sequences.size()));
  const auto turns = static_cast<double>(options.rounds) * static_cast<double>(open.values.size());
  double turn = 0;
  for (int round = 0; round < options.rounds; ++round) {
    for (std::size_t value = 0; value < open.values.size(); ++value, ++turn) {
      bar.update(turn, turns);
      NIBBLE_ASSIGN(
          const std::unique_ptr<Engine> engine,
          load_engine(options.engine,
                      [&](EngineChoices& choices) { set(choices, open.field, open.values[value]); }, {}));
      const Plan& plan = engine->model().plan;
      for (std::size_t load = 0; load < open.sequences.size(); ++load) {
        const int sequences = open.sequences[load];
        NIBBLE_ASSIGN(const BenchResult result,
                      run_bench(
                          *engine,
                          {.depth = depth,
                           .input_len = 1,
                           .output_len = answer,
                           .concurrency = sequences,
                           .requests = sequences,
                           .step_tokens = plan.max_num_batched_tokens,
                           .cpus = plan.device == DeviceKind::cuda ? 1 : plan.threads,
                           .seed = options.engine.seed},
                          [](std::int64_t, std::int64_t) {}, [&] { return guard.interrupted(); }));
        rates[value][load].push_back(result.decode.tokens_per_s);
      }
    }
  }
  return rates;
}

TuningEntry judge(const OpenChoice& open, const Rates& rates, const std::string& model, Console& console) {
  TuningEntry entry{.model = model, .field = open.field, .value = open.values[0], .measured = {}};
  std::fprintf(console.out, "%-24s", (open.field + ", tokens/s").c_str());
  for (const int sequences : open.sequences) std::fprintf(console.out, "%12d", sequences);
  std::fprintf(console.out, "%12s\n", "mean");
  double best = 0, own = 0;
  for (std::size_t value = 0; value < open.values.size(); ++value) {
    double logarithms = 0;
    std::fprintf(console.out, "  %-22s", open.values[value].c_str());
    for (const std::vector<double>& rounds : rates[value]) {
      const double rate = median(rounds);
      logarithms += std::log(rate);
      std::fprintf(console.out, "%12.5g", rate);
    }
    const double mean = std::exp(logarithms / static_cast<double>(rates[value].size()));
    std::fprintf(console.out, "%12.5g\n", mean);
    entry.measured.emplace_back(open.values[value], mean);
    if (value == 0) own = best = mean;
    if (mean > best && mean >= own * worth_a_change) {
      best = mean;
      entry.value = open.values[value];
    }
  }
  if (entry.value == open.values[0]) {
    std::fprintf(console.out, "  %s stays: no other is 2 %% faster\n", entry.value.c_str());
  } else {
    std::fprintf(console.out, "  %s is %.1f %% faster than %s\n", entry.value.c_str(), 100 * (best / own - 1),
                 open.values[0].c_str());
  }
  return entry;
}

std::string today() {
  const std::time_t now = std::time(nullptr);
  std::tm time{};
  gmtime_r(&now, &time);
  char text[16];
  std::strftime(text, sizeof text, "%Y-%m-%d", &time);
  return text;
}

// The file is replaced as a whole, or stays.
Status write(const std::string& file, const std::string& text) {
  const std::string next = file + ".new";
  if (std::ofstream stream(next, std::ios::binary); !(stream << text).flush())
    return io_error("cannot write " + quote(next));
  std::error_code error;
  std::filesystem::rename(next, file, error);
  return error ? io_error("cannot write " + quote(file) + ": " + error.message()) : Status();
}

Status run(const Options& options, Console& console) {
  if (options.output.empty()) return invalid_argument("no --output FILE given; it is the table to write");
  if (!options.engine.tuning_table.empty())
    return invalid_argument("what a table says is not measured; leave --tuning-table out");
  if (options.engine.processes > 1)
    return invalid_argument("nibble tune measures in one process; leave --nnodes out");
  std::error_code ignored;
  TuningTable table;
  const bool exists = std::filesystem::exists(options.output, ignored);
  if (exists) {  // what is wrong with it is told before anything is measured
    NIBBLE_ASSIGN(table, TuningTable::read(options.output));
  }
  NIBBLE_RETURN_IF_ERROR(offer_pull(options.engine.model, console));
  exit_on_interrupt();
  Plan plan;
  {
    ProgressBar loading("loading " + options.engine.model);
    loading.announce();
    NIBBLE_ASSIGN(const std::unique_ptr<Engine> engine, load_engine(options.engine, {}, {}));
    plan = engine->model().plan;
  }
  const std::string& machine =
      plan.device == DeviceKind::cuda ? plan.machine.gpu.model : plan.machine.cpu.model;
  if (exists && table.machine != machine)
    return invalid_argument(quote(options.output) + " is of " + quote(table.machine) + ", and this is " +
                            quote(machine) + "; give another --output");
  table.machine = machine;
  table.made = today() + " by nibble " NIBBLE_VERSION " (" NIBBLE_COMMIT ")";
  const std::vector<OpenChoice> open = open_choices(plan);
  if (open.empty())
    return invalid_argument("nothing is open for this model here: its kernels have one form each");
  std::fprintf(console.out, "%s\n%s\n", machine.c_str(), plan.tuning_model.c_str());
  for (const OpenChoice& each : open) {
    NIBBLE_ASSIGN(const Rates rates, measure(options, each));
    table.put(judge(each, rates, plan.tuning_model, console));
  }
  NIBBLE_RETURN_IF_ERROR(write(options.output, table.json()));
  std::fprintf(console.out, "%s has %zu %s, digest %s; take it with --tuning-table %s\n",
               options.output.c_str(), table.entries.size(), table.entries.size() == 1 ? "entry" : "entries",
               table.digest().c_str(), options.output.c_str());
  return {};
}

CommandLine declare() {
  auto options = std::make_shared<Options>();
  CommandLine line;
  line.positionals = {{.name = "MODEL",
                       .help = "a directory, a name in the Hugging Face cache, or demo",
                       .target = &options->engine.model}};
  line.options = {
      {.name = "--output",
       .aliases = {"-o"},
       .value = "FILE",
       .help = "the table; entries of other models in it are kept",
       .set = string_value(options->output)},
      {.name = "--rounds",
       .value = "N",
       .help = "how often each value is measured, in turns",
       .default_text = "3",
       .set = int_value(options->rounds, 1, 100)},
  };
  line.add(engine_option_specs(options->engine));
  line.run = [options](Console& console) { return run(*options, console); };
  return line;
}

}  // namespace

const Command tune_command{.name = "tune",
                           .summary = "measure choices that move time alone, for plans to take",
                           .example = "nibble tune openai/gpt-oss-20b --output here.json",
                           .declare = declare};

}  // namespace nibble
