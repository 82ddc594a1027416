// nibble doctor: whether this machine, its libraries and every kernel of this program are as they should be.
#include <algorithm>
#include <fstream>
#include <memory>

#include "app/commands.h"
#include "base/json_writer.h"
#include "base/thread_pool.h"
#include "checkpoint/model_location.h"
#include "engine/engine.h"
#include "models/model_traits.h"
#include "plan/gates.h"
#include "plan/kernel_check.h"
#include "plan/library_probe.h"
#include "runtime/gpu.h"

namespace nibble {
namespace {

struct Options {
  EngineOptions engine;
  bool json = false;
};

enum class Verdict : std::uint8_t { ok, warn, fail, skip };

struct Check {
  std::string name;
  Verdict verdict = Verdict::ok;
  std::string found;
  std::string advice;  // what to do
};

std::string_view verdict_name(Verdict verdict) {
  constexpr std::string_view names[] = {"ok", "warn", "FAIL", "skip"};
  return names[static_cast<std::size_t>(verdict)];
}

// Prints a line a check as it comes, or gathers them for --json.
class Report {
 public:
  Report(bool json, Console& console) : json_(json), console_(console) {}

  void add(Check check) {
    if (!json_) {
      std::fprintf(console_.out, "%-5s %-34s %s%s%s\n", std::string(verdict_name(check.verdict)).c_str(),
                   check.name.c_str(), check.found.c_str(), check.advice.empty() ? "" : "; ",
                   check.advice.c_str());
      std::fflush(console_.out);
    }
    checks_.push_back(std::move(check));
  }

  Status end() const {
    const auto failed = std::count_if(checks_.begin(), checks_.end(),
                                      [](const Check& check) { return check.verdict == Verdict::fail; });
    if (json_) print_json(failed);
    if (failed == 0) return {};
    return internal_error(std::to_string(failed) + (failed == 1 ? " check failed" : " checks failed"));
  }

 private:
  void print_json(std::int64_t failed) const {
    std::string text;
    JsonWriter json(text);
    json.begin_object().key("checks").begin_array();
    for (const Check& check : checks_) {
      json.begin_object()
          .member("name", check.name)
          .member("status", verdict_name(check.verdict))
          .member("found", check.found)
          .member("do", check.advice)
          .end_object();
    }
    json.end_array().member("failed", failed).end_object();
    text += "\n";
    std::fwrite(text.data(), 1, text.size(), console_.out);
  }

  bool json_;
  Console& console_;
  std::vector<Check> checks_;
};

void check_machine(const Machine& machine, Report& report) {
  const CpuFacts& cpu = machine.cpu;
  std::string features;
  for (const std::string& feature : cpu.features) features += (features.empty() ? "" : " ") + feature;
  report.add({.name = "cpu",
              .verdict = cpu.has("avx2") ? Verdict::ok : Verdict::warn,
              .found = cpu.model + ", " + std::to_string(cpu.threads) + " threads" +
                       (cpu.cpus > cpu.threads ? " of " + std::to_string(cpu.cpus) + " CPUs" : "") +
                       (cpu.cpu_quota_from.empty() ? "" : " (" + cpu.cpu_quota_from + ")") + ", " +
                       (features.empty() ? "no instructions that a kernel uses" : features),
              .advice = cpu.has("avx2") ? "" : "every product will run in plain C++, slowly"});
  constexpr std::int64_t little = std::int64_t{2} << 30;
  report.add(
      {.name = "memory",
       .verdict = cpu.available_bytes >= little ? Verdict::ok : Verdict::warn,
       .found = grouped(cpu.available_bytes >> 20) + " of " + grouped(cpu.memory_bytes >> 20) + " MiB free" +
                (cpu.memory_limit_from.empty() ? "" : " (" + cpu.memory_limit_from + ")") + ", " +
                std::to_string(cpu.memory_nodes) + (cpu.memory_nodes == 1 ? " node" : " nodes"),
       .advice = cpu.available_bytes >= little ? "" : "end what else holds memory before loading a model"});
  std::string pages;
  std::ifstream file("/sys/kernel/mm/transparent_hugepage/enabled");
  std::getline(file, pages);
  const bool never = pages.find("[never]") != std::string::npos;
  report.add({.name = "huge pages",
              .verdict = pages.empty() ? Verdict::skip
                         : never       ? Verdict::warn
                                       : Verdict::ok,
              .found = pages.empty() ? "this system does not say" : pages,
              .advice = never ? "write madvise to /sys/kernel/mm/transparent_hugepage/enabled" : ""});
}

void check_gpus(const Machine& machine, Report& report) {
  if (!has_device_code() || machine.gpu.count == 0) {
    report.add({.name = "gpu",
                .verdict = Verdict::skip,
                .found = has_device_code() ? machine.gpu.problem : "this nibble was built without CUDA",
                .advice = {}});
    return;
  }
  for (const GpuCheck& check : check_gpu()) {
    constexpr Verdict verdicts[] = {Verdict::ok, Verdict::warn, Verdict::fail, Verdict::skip};
    report.add({.name = check.name,
                .verdict = verdicts[static_cast<std::size_t>(check.verdict)],
                .found = check.found,
                .advice = check.advice});
  }
}

// A library that nothing on this machine needs is no failure, whatever is wrong with it.
void check_libraries(Machine& machine, Report& report) {
  machine.libraries = probe_libraries();
  for (const FoundLibrary& library : machine.libraries) {
    const GateResult gate = check_gate(*find_gate(library.name), library);
    if (gate.status == GateStatus::ok) {
      report.add({.name = gate.name, .verdict = Verdict::ok, .found = gate.found, .advice = {}});
    } else {
      report.add({.name = gate.name,
                  .verdict = gate.status == GateStatus::missing ? Verdict::skip : Verdict::warn,
                  .found = gate.why.substr(0, gate.why.rfind("; ")),
                  .advice = gate.status == GateStatus::missing ? "nothing here needs it"
                                                               : gate.why.substr(gate.why.rfind("; ") + 2)});
    }
  }
}

void add_kernels(const std::vector<KernelCheck>& checks, const std::string& where, Report& report) {
  for (const KernelCheck& check : checks) {
    report.add(
        {.name = check.kernel,
         .verdict = !check.supported ? Verdict::skip
                    : check.equal    ? Verdict::ok
                                     : Verdict::fail,
         .found = check.family + where +
                  (!check.supported ? ": this CPU lacks its instructions"
                   : check.equal    ? ": the scalar kernel's bits"
                                    : ": " + check.what),
         .advice = check.supported && !check.equal
                       ? "choose another by --moe-runner-backend or --attention-backend, and report this"
                       : ""});
  }
}

// What an engine answers to prompts of a few lengths: tokens and log-probabilities.
struct Answer {
  std::vector<TokenId> tokens;
  std::vector<float> logprobs;
  bool operator==(const Answer&) const = default;
};

Result<std::vector<Answer>> answers_of(EngineOptions options) {
  NIBBLE_ASSIGN(const std::unique_ptr<Engine> engine, Engine::load(options));
  const int vocabulary = engine->model().vocabulary;
  std::vector<Answer> answers;
  std::uint32_t random = 1;
  for (const int length : {3, 45, 130}) {
    if (length + 8 > engine->model().max_model_len) break;
    std::vector<TokenId> prompt;
    for (int i = 0; i < length; ++i) {
      random = random * 1664525u + 1013904223u;
      prompt.push_back(static_cast<TokenId>(random % static_cast<std::uint32_t>(vocabulary)));
    }
    NIBBLE_RETURN_IF_ERROR(engine->submit({.id = answers.size(),
                                           .prompt = std::move(prompt),
                                           .sampling = {.max_tokens = 8, .temperature = 0, .logprobs = 0}}));
    answers.emplace_back();
  }
  std::vector<Event> events;
  while (!engine->idle()) {
    events.clear();
    NIBBLE_RETURN_IF_ERROR(engine->step(events).status());
    for (const Event& event : events) {
      if (event.token < 0) continue;
      answers[static_cast<std::size_t>(event.request)].tokens.push_back(event.token);
      answers[static_cast<std::size_t>(event.request)].logprobs.push_back(event.logprob);
    }
  }
  return answers;
}

// The same requests alone, together, and with their prompts cut: one set of bits.
Status check_bits(const EngineOptions& options, bool graphs, Report& report) {
  EngineOptions alone = options, together = options, cut = options, eager = options;
  alone.max_num_seqs = 1;
  together.max_num_seqs = cut.max_num_seqs = 4;
  cut.max_num_batched_tokens = 7;
  alone.given.max_num_seqs = together.given.max_num_seqs = cut.given.max_num_seqs = true;
  cut.given.max_num_batched_tokens = true;
  eager.enforce_eager = eager.given.enforce_eager = true;
  NIBBLE_ASSIGN(const std::vector<Answer> expected, answers_of(alone));
  const struct {
    const char* name;
    const EngineOptions& options;
    bool applies;
  } ways[] = {{"alone against batch", together, true},
              {"whole against chunked prefill", cut, true},
              {"graph against eager", eager, graphs}};
  for (const auto& way : ways) {
    if (!way.applies) {
      report.add({.name = way.name,
                  .verdict = Verdict::skip,
                  .found = "steps run without graphs here",
                  .advice = {}});
      continue;
    }
    NIBBLE_ASSIGN(const std::vector<Answer> found, answers_of(way.options));
    const bool equal = found == expected;
    report.add(
        {.name = way.name,
         .verdict = equal ? Verdict::ok : Verdict::fail,
         .found = equal ? "the same bits of " + std::to_string(expected.size()) + " answers" : "other bits",
         .advice = equal ? "" : "report this with the output of nibble plan"});
  }
  report.add(
      {.name = "each rank's bits", .verdict = Verdict::skip, .found = "there is one rank", .advice = {}});
  return {};
}

Status check_model(const Options& options, const Machine& machine, ThreadPool& threads, Report& report) {
  NIBBLE_ASSIGN(const ModelLocation location,
                locate_model(options.engine.model, LocationEnvironment::of_this_process()));
  NIBBLE_ASSIGN(const ModelTraits model, read_model_traits(location.folder, location.name));
  const Result<Plan> plan = resolve(options.engine, machine, model);
  if (!plan.ok()) return plan.status();
  const bool gpu = plan->device == DeviceKind::cuda;
  const bool fits = gpu || plan->memory.total <= machine.cpu.available_bytes;
  report.add({.name = "plan of " + model.name,
              .verdict = fits ? Verdict::ok : Verdict::warn,
              .found = std::string(plan->experts.kernel) + ", " + grouped(plan->memory.total >> 20) + " MiB",
              .advice = fits ? "" : "that is more than is free: lower --max-model-len or --max-num-seqs"});
  if (gpu) return check_bits(options.engine, plan->cuda_graphs, report);
  const CheckShapes shapes{.hidden = static_cast<int>(model.hidden),
                           .width = static_cast<int>(std::max(model.expert_width, model.dense_width)),
                           .experts = 2,
                           .top_k = 2,
                           .heads = static_cast<int>(model.heads),
                           .kv_heads = static_cast<int>(model.kv_heads),
                           .head_dim = static_cast<int>(model.query_dim),
                           .positions = 300};
  std::vector<KernelCheck> checks = check_kernels(threads, shapes);
  std::erase_if(checks, [&](const KernelCheck& check) {
    return check.kernel != plan->experts.kernel && check.kernel != plan->attention;
  });
  add_kernels(checks, " at the model's shapes", report);
  return check_bits(options.engine, plan->cuda_graphs, report);
}

Status run(const Options& options, Console& console) {
  Report report(options.json, console);
  Machine machine = probe_machine_with_gpus();
  check_machine(machine, report);
  check_gpus(machine, report);
  check_libraries(machine, report);
  ThreadPool threads(options.engine.threads);
  add_kernels(check_kernels(threads), "", report);
  if (!options.engine.model.empty()) {
    const Status status = check_model(options, machine, threads, report);
    if (!status.ok())
      report.add(
          {.name = options.engine.model, .verdict = Verdict::fail, .found = status.message(), .advice = {}});
  }
  return report.end();
}

CommandLine declare() {
  auto options = std::make_shared<Options>();
  CommandLine line;
  line.positionals = {{.name = "MODEL",
                       .help = "checked too: a directory, a cached Hugging Face name, or demo",
                       .target = &options->engine.model,
                       .required = false}};
  line.options = {{.name = "--json", .help = "one line of JSON", .set = switch_value(options->json)}};
  line.add(engine_option_specs(options->engine));
  line.run = [options](Console& console) { return run(*options, console); };
  return line;
}

}  // namespace

const Command doctor_command{.name = "doctor",
                             .summary = "check this machine, its libraries and every kernel",
                             .example = "nibble doctor demo",
                             .declare = declare};

}  // namespace nibble
