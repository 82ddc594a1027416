// nibble bench: speed on this machine, beside the bounds that its memory and its arithmetic set.
#include <algorithm>
#include <charconv>
#include <chrono>
#include <fstream>
#include <memory>
#include <optional>

#include "app/bench_report.h"
#include "app/bench_url.h"
#include "app/commands.h"
#include "app/interrupt.h"
#include "app/other_process.h"
#include "app/progress.h"
#include "app/read_bandwidth.h"
#include "base/thread_pool.h"

namespace nibble {
namespace {

struct Options {
  EngineOptions engine;
  int depth = 0;
  int input_len = 1024;
  int output_len = 128;
  std::vector<int> concurrency = {1, 8};
  int requests = 0;   // 0: one for each in flight
  int predicted = 0;  // tokens of 100 that a prediction of the answer has right; 0: there is none
  bool profile = false;
  bool json = false;
  // Of a run over --url.
  std::string url;
  std::string api_key;
  bool chat = false;
  float rate = 0;
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

// A line that counts kilobytes of a file in /proc/self, in bytes; 0 where there is none.
std::int64_t memory_line(const char* file, std::string_view name) {
  std::ifstream status(file);
  std::string word;
  while (status >> word) {
    if (std::int64_t kilobytes = 0; word == name && status >> kilobytes) return kilobytes * 1024;
  }
  return 0;
}

Status check_lengths(const Options& options, const ModelInfo& model) {
  if (options.depth + options.input_len + options.output_len <= model.max_model_len) return {};
  return invalid_argument((options.depth > 0 ? "--depth " + std::to_string(options.depth) + ", " : "") +
                          "--input-len " + std::to_string(options.input_len) + " and --output-len " +
                          std::to_string(options.output_len) + " together are above the context of " +
                          std::to_string(model.max_model_len) + " tokens; lower one of them");
}

// A short prompt's first token: what a user waits for at first, and what warms the engine up.
Status first_token(Engine& engine) {
  NIBBLE_RETURN_IF_ERROR(
      engine.submit({.id = 0, .prompt = {0}, .sampling = {.max_tokens = 1, .temperature = 0}}));
  std::vector<Event> events;
  while (!engine.idle()) NIBBLE_RETURN_IF_ERROR(engine.step(events).status());
  return {};
}

bool on_gpu(const ModelInfo& model) { return model.plan.device == DeviceKind::cuda; }

// CPUs that the engine's threads keep busy: while a GPU works, none need be.
int busy_cpus(const ModelInfo& model) {
  return on_gpu(model) ? 0 : std::min(model.threads, static_cast<int>(allowed_cpus().size()));
}

// The bounds to compare with: measured now on a CPU, known of its model on a GPU.
Status find_rates(BenchReport& report) {
  if (on_gpu(report.model)) {
    const GpuFacts& gpu = report.model.plan.machine.gpu;
    report.read_bandwidth = gpu.read_bandwidth;
    report.peak_rate = {.flops = gpu.bf16_flops, .instruction = "tensor cores"};
    return {};
  }
  NIBBLE_ASSIGN(report.read_bandwidth, measure_read_bandwidth(report.model.threads));
  const Plan& plan = report.model.plan;
  NIBBLE_ASSIGN(report.peak_rate,
                measure_peak_rate(report.model.threads, plan.int8_products          ? PeakValues::int8
                                                        : plan.dtype == DType::bf16 ? PeakValues::bfloat16
                                                                                    : PeakValues::float32));
  return {};
}

Status run_all(const Options& options, Engine& engine, BenchReport& report) {
  const InterruptGuard guard;
  for (const int concurrency : options.concurrency) {
    BenchRow row{.load = {.depth = options.depth,
                          .input_len = options.input_len,
                          .output_len = options.output_len,
                          .concurrency = concurrency,
                          .requests = options.requests > 0 ? options.requests : concurrency,
                          .step_tokens = report.model.plan.max_num_batched_tokens,
                          .cpus = busy_cpus(report.model),
                          .seed = options.engine.seed,
                          .profile = options.profile,
                          .predicted = options.predicted},
                 .result = {}};
    ProgressBar bar("concurrency " + std::to_string(concurrency));
    NIBBLE_ASSIGN(row.result, run_bench(
                                  engine, row.load,
                                  [&](std::int64_t done, std::int64_t total) {
                                    bar.update(static_cast<double>(done), static_cast<double>(total));
                                  },
                                  [&] { return guard.interrupted(); }));
    report.rows.push_back(row);
  }
  return {};
}

UrlBenchOptions url_options(const Options& options) {
  return {.url = options.url,
          .model = options.engine.model,
          .api_key = options.api_key,
          .chat = options.chat,
          .input_len = options.input_len,
          .output_len = options.output_len,
          .concurrency = options.concurrency,
          .rate = options.rate,
          .requests = options.requests,
          .seed = options.engine.seed,
          .json = options.json};
}

Status run(Options options, Console& console) {
  if (!options.url.empty()) {
    if (options.depth > 0 || options.profile || options.predicted > 0)
      return invalid_argument(
          "--depth, --predicted and --profile look into an engine of one's own; leave them out with --url");
    return run_url_bench(url_options(options), console);
  }
  if (options.engine.model.empty())
    return invalid_argument(
        "no MODEL given; it is a directory, a name in the Hugging Face cache, or demo; or give --url");
  if (options.rate > 0 || options.chat)
    return invalid_argument("--rate and --chat are for a running server; give its --url too");
  const int most = *std::max_element(options.concurrency.begin(), options.concurrency.end());
  if (!options.engine.given.max_num_seqs)
    options.engine.max_num_seqs = std::max(options.engine.max_num_seqs, most);
  if (most > options.engine.max_num_seqs) {
    return invalid_argument("--concurrency " + std::to_string(most) + " is above --max-num-seqs " +
                            std::to_string(options.engine.max_num_seqs) +
                            "; raise the latter or leave it out");
  }
  NIBBLE_ASSIGN(options.engine, options_of_process(options.engine));
  if (const std::optional<Status> done = run_steps_of_another(options.engine)) return *done;
  exit_on_interrupt();
  ProgressBar loading("loading " + options.engine.model);
  loading.announce();
  BenchReport report{.depth = options.depth,
                     .input_len = options.input_len,
                     .output_len = options.output_len,
                     .profile = options.profile};
  const auto begin = std::chrono::steady_clock::now();
  const auto seconds = [&begin] {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  };
  NIBBLE_ASSIGN(
      const std::unique_ptr<Engine> engine,
      Engine::load(options.engine, [&](double done, double total) { loading.update(done, total); }));
  report.load_s = seconds();
  report.model = engine->model();
  NIBBLE_RETURN_IF_ERROR(check_lengths(options, report.model));
  NIBBLE_RETURN_IF_ERROR(first_token(*engine));
  report.first_token_s = seconds();
  loading.erase();

  NIBBLE_RETURN_IF_ERROR(run_all(options, *engine, report));
  report.peak_memory = memory_line("/proc/self/status", "VmHWM:");
  report.anonymous_memory = memory_line("/proc/self/status", "RssAnon:");
  report.huge_page_memory = memory_line("/proc/self/smaps_rollup", "AnonHugePages:") +
                            memory_line("/proc/self/smaps_rollup", "FilePmdMapped:");
  // Last, for its buffer would count among the peak memory.
  NIBBLE_RETURN_IF_ERROR(find_rates(report));
  for (BenchRow& row : report.rows) set_shares(report, row);
  if (options.json) {
    const std::string text = report_json(report);
    std::fwrite(text.data(), 1, text.size(), console.out);
  } else {
    print_table(report, console.out);
  }
  return {};
}

CommandLine declare() {
  auto options = std::make_shared<Options>();
  CommandLine line;
  line.positionals = {
      {.name = "MODEL",
       .help = "a directory, a name in the Hugging Face cache, or demo; with --url the served name",
       .target = &options->engine.model,
       .required = false}};
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
      {.name = "--depth",
       .value = "N",
       .help = "tokens of a prompt before those that are measured",
       .default_text = "0",
       .set = int_value(options->depth, 0, 1 << 24)},
      {.name = "--predicted",
       .value = "PERCENT",
       .help = "predict each answer, with so many tokens of 100 right",
       .set = int_value(options->predicted, 1, 100)},
      {.name = "--url",
       .value = "URL",
       .help = "load on a running server of OpenAI's API instead",
       .set = string_value(options->url)},
      {.name = "--rate",
       .value = "R",
       .help = "with --url: requests begun a second, instead of --concurrency",
       .set = float_value(options->rate, 0, 1e6f)},
      {.name = "--chat",
       .help = "with --url: chats instead of completions",
       .set = switch_value(options->chat)},
      {.name = "--api-key",
       .value = "KEY",
       .help = "with --url: the server's",
       .set = string_value(options->api_key)},
      {.name = "--profile", .help = "time by op too", .set = switch_value(options->profile)},
      {.name = "--json", .help = "one line of JSON", .set = switch_value(options->json)},
  };
  line.add(engine_option_specs(options->engine));
  line.run = [options](Console& console) { return run(*options, console); };
  return line;
}

}  // namespace

const Command bench_command{.name = "bench",
                            .summary = "speed on this machine, or of a running server",
                            .example = "nibble bench demo --input-len 512 --concurrency 1,4,16",
                            .declare = declare};

}  // namespace nibble
