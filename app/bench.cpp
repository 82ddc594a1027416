// nibble bench: speed on this machine, beside the bound that its memory sets.
#include <algorithm>
#include <charconv>
#include <cmath>
#include <fstream>
#include <memory>

#include "app/bench_load.h"
#include "app/commands.h"
#include "app/interrupt.h"
#include "app/progress.h"
#include "app/read_bandwidth.h"
#include "base/json_writer.h"
#include "base/quote.h"

namespace nibble {
namespace {

struct Options {
  EngineOptions engine;
  int input_len = 1024;
  int output_len = 128;
  std::vector<int> concurrency = {1, 8};
  int requests = 0;  // 0: one for each in flight
  bool json = false;
};

struct Row {
  BenchLoad load;
  BenchResult result;
  double bandwidth_share = 0;  // of the measured bandwidth, on the weights the decode steps had to read
};

struct Report {
  ModelInfo model;
  double read_bandwidth = 0;  // bytes a second
  double load_s = 0;
  std::int64_t peak_memory = 0;  // bytes; 0 where the system does not say
  std::vector<Row> rows;
};

Status read_concurrency(std::string_view text, std::vector<int>& levels) {
  levels.clear();
  while (true) {
    const std::size_t comma = std::min(text.find(','), text.size());
    int level = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + comma, level);
    if (error != std::errc() || end != text.data() + comma || level < 1 || level > 4096) {
      return invalid_argument("not a list of whole numbers from 1 to 4096; give for example 1,8,32");
    }
    levels.push_back(level);
    if (comma == text.size()) return {};
    text.remove_prefix(comma + 1);
  }
}

// The most memory this process ever held at once.
std::int64_t peak_memory() {
  std::ifstream status("/proc/self/status");
  std::string word;
  while (status >> word) {
    if (std::int64_t kilobytes = 0; word == "VmHWM:" && status >> kilobytes) return kilobytes * 1024;
  }
  return 0;
}

void print_row(const Row& row, Console& console) {
  const auto ms = [](double seconds) { return seconds * 1e3; };
  const BenchResult& result = row.result;
  std::fprintf(console.out, "%11d %8d %13.1f %13.2f %6.0f %% %9.0f %8.0f %8.0f %9.1f %8.1f %8.1f\n",
               row.load.concurrency, row.load.requests, result.prefill_tokens_per_s,
               result.decode_tokens_per_s, row.bandwidth_share * 100, ms(result.time_to_first_token.p50),
               ms(result.time_to_first_token.p90), ms(result.time_to_first_token.p99),
               ms(result.inter_token_latency.p50), ms(result.inter_token_latency.p90),
               ms(result.inter_token_latency.p99));
}

void print_report(const Report& report, const Options& options, Console& console) {
  std::fprintf(console.out, "model          %s, %.2f GB of weights, %.1f MB of them a token\n",
               quote(report.model.name).c_str(), static_cast<double>(report.model.weight_bytes) / 1e9,
               expected_step_bytes(report.model, 1) / 1e6);
  std::fprintf(console.out, "machine        %d threads, reading %.1f GB/s (measured now)\n",
               report.model.threads, report.read_bandwidth / 1e9);
  std::fprintf(console.out, "loaded in      %.2f s; peak memory %.2f GB\n", report.load_s,
               static_cast<double>(report.peak_memory) / 1e9);
  for (const EngineChoice& choice : report.model.choices) {
    std::fprintf(console.out, "%-14s %s (%s)\n", choice.field.c_str(), choice.value.c_str(),
                 choice.why.c_str());
  }
  std::fprintf(console.out, "requests       random prompts of %d tokens, answers of %d\n\n",
               options.input_len, options.output_len);
  std::fprintf(console.out, "%11s %8s %13s %13s %8s %27s %26s\n", "", "", "prefill", "decode", "of",
               "first token, ms", "between tokens, ms");
  std::fprintf(console.out, "%11s %8s %13s %13s %8s %9s %8s %8s %9s %8s %8s\n", "concurrency", "requests",
               "tokens/s", "tokens/s", "memory", "p50", "p90", "p99", "p50", "p90", "p99");
  for (const Row& row : report.rows) print_row(row, console);
}

void add_percentiles(JsonWriter& json, std::string_view name, const Percentiles& of) {
  json.key(name)
      .begin_object()
      .member("p50", of.p50)
      .member("p90", of.p90)
      .member("p99", of.p99)
      .end_object();
}

std::string json_text(const Report& report, const Options& options) {
  std::string text;
  JsonWriter json(text);
  json.begin_object().member("model", report.model.name).member("threads", report.model.threads);
  json.member("weight_bytes", report.model.weight_bytes)
      .member("bytes_per_token", expected_step_bytes(report.model, 1));
  json.member("read_bandwidth", report.read_bandwidth)
      .member("load_s", report.load_s)
      .member("peak_memory", report.peak_memory);
  json.key("choices").begin_array();
  for (const EngineChoice& choice : report.model.choices) {
    json.begin_object()
        .member("field", choice.field)
        .member("value", choice.value)
        .member("from", choice.from)
        .member("why", choice.why)
        .end_object();
  }
  json.end_array();
  json.member("input_len", options.input_len)
      .member("output_len", options.output_len)
      .key("runs")
      .begin_array();
  for (const Row& row : report.rows) {
    json.begin_object().member("concurrency", row.load.concurrency).member("requests", row.load.requests);
    json.member("seconds", row.result.seconds)
        .member("prefill_tokens_per_s", row.result.prefill_tokens_per_s);
    json.member("decode_tokens_per_s", row.result.decode_tokens_per_s)
        .member("bandwidth_share", row.bandwidth_share);
    add_percentiles(json, "ttft_s", row.result.time_to_first_token);
    add_percentiles(json, "itl_s", row.result.inter_token_latency);
    json.end_object();
  }
  json.end_array().end_object();
  return text + "\n";
}

Status run(Options options, Console& console) {
  const int most = *std::max_element(options.concurrency.begin(), options.concurrency.end());
  if (!options.engine.given.max_num_seqs)
    options.engine.max_num_seqs = std::max(options.engine.max_num_seqs, most);
  if (most > options.engine.max_num_seqs) {
    return invalid_argument("--concurrency " + std::to_string(most) + " is above --max-num-seqs " +
                            std::to_string(options.engine.max_num_seqs) +
                            "; raise the latter or leave it out");
  }
  exit_on_interrupt();
  ProgressBar loading("loading " + options.engine.model);
  loading.announce();
  Report report;
  const auto begin = std::chrono::steady_clock::now();
  NIBBLE_ASSIGN(const std::unique_ptr<Engine> engine, Engine::load(options.engine));
  report.load_s = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  report.model = engine->model();
  if (options.input_len + options.output_len > report.model.max_model_len) {
    return invalid_argument("--input-len " + std::to_string(options.input_len) + " and --output-len " +
                            std::to_string(options.output_len) + " together are above the context of " +
                            std::to_string(report.model.max_model_len) + " tokens; lower one of them");
  }
  loading.erase();

  const InterruptGuard guard;
  for (const int concurrency : options.concurrency) {
    Row row{.load = {.input_len = options.input_len,
                     .output_len = options.output_len,
                     .concurrency = concurrency,
                     .requests = options.requests > 0 ? options.requests : concurrency,
                     .seed = options.engine.seed},
            .result = {}};
    ProgressBar bar("concurrency " + std::to_string(concurrency));
    NIBBLE_ASSIGN(row.result, run_bench(
                                  *engine, row.load, [&](int done, int total) { bar.update(done, total); },
                                  [&] { return guard.interrupted(); }));
    report.rows.push_back(row);
  }
  report.peak_memory = peak_memory();
  // Last, for its buffer would count among the peak memory.
  NIBBLE_ASSIGN(report.read_bandwidth, measure_read_bandwidth(report.model.threads));
  for (Row& row : report.rows) {
    const int tokens = std::max(1, static_cast<int>(std::lround(row.result.tokens_a_decode_step)));
    row.bandwidth_share =
        row.result.decode_steps_per_s * expected_step_bytes(report.model, tokens) / report.read_bandwidth;
  }
  if (options.json) {
    const std::string text = json_text(report, options);
    std::fwrite(text.data(), 1, text.size(), console.out);
  } else {
    print_report(report, options, console);
  }
  return {};
}

CommandLine declare() {
  auto options = std::make_shared<Options>();
  CommandLine line;
  line.positionals = {{.name = "MODEL",
                       .help = "a directory, a name in the Hugging Face cache, or demo",
                       .target = &options->engine.model}};
  line.options = {
      {.name = "--input-len",
       .value = "N",
       .help = "tokens of a prompt",
       .default_text = "1024",
       .set = int_value(options->input_len, 1, 1 << 24)},
      {.name = "--output-len",
       .value = "N",
       .help = "tokens of an answer",
       .default_text = "128",
       .set = int_value(options->output_len, 1, 1 << 24)},
      {.name = "--concurrency",
       .value = "1,8,32",
       .help = "requests in flight, a run each",
       .default_text = "1,8",
       .set = text_value(
           [options](std::string_view text) { return read_concurrency(text, options->concurrency); })},
      {.name = "--requests",
       .value = "N",
       .help = "requests a run; 0: as many as are in flight",
       .default_text = "0",
       .set = int_value(options->requests, 0, 1 << 20)},
      {.name = "--json", .help = "one line of JSON", .set = switch_value(options->json)},
  };
  line.add(engine_option_specs(options->engine));
  line.run = [options](Console& console) { return run(*options, console); };
  return line;
}

}  // namespace

const Command bench_command{.name = "bench",
                            .summary = "speed on this machine",
                            .example = "nibble bench demo --input-len 512 --concurrency 1,4,16",
                            .declare = declare};

}  // namespace nibble
