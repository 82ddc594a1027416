// What each field may be, in order of preference, and what the user gave for it.
#include <algorithm>

#include "ops/moe/many_tokens.h"
#include "plan/budget.h"
#include "plan/kernel_formats.h"
#include "plan/rules.h"

namespace nibble {
namespace {

using Candidates = std::vector<Candidate>;

std::string text_of(std::int64_t number) { return number == 0 ? std::string() : std::to_string(number); }

std::string float_name(FloatType type) {
  constexpr const char* names[] = {"", "float32", "bfloat16", "fp8", "int8"};
  return names[static_cast<std::size_t>(type)];
}

std::string given_name(const std::string& name) { return name == "auto" ? std::string() : name; }

// What the user gave, if anything, before what is preferred otherwise.
Candidates numbers(std::int64_t asked, Candidates otherwise) {
  const auto is_asked = [&](const Candidate& each) { return each.number == asked; };
  if (asked > 0 && std::none_of(otherwise.begin(), otherwise.end(), is_asked))
    otherwise.insert(otherwise.begin(), Candidate{.value = std::to_string(asked), .number = asked});
  return otherwise;
}

Candidate number(std::int64_t value, std::string why) {
  return {.value = std::to_string(value), .number = value, .why = std::move(why)};
}

Candidates devices(const Situation&) {
  return {{.value = "cuda", .why = "a GPU is faster"}, {.value = "cpu", .why = "it is always there"}};
}

Candidates threads(const Situation& s) {
  const CpuFacts& cpu = s.machine.cpu;
  std::string why = "one for each CPU that this process may use";
  if (cpu.cpus > cpu.threads) {
    why = "of " + std::to_string(cpu.cpus) +
          " CPUs, what the container's limit of CPU time leaves, rounded down";
    if (!cpu.cpu_quota_from.empty()) why += " (" + cpu.cpu_quota_from + ")";
  }
  return numbers(s.options.threads, {number(std::max(cpu.threads, 1), std::move(why))});
}

Candidates tensor_ranks(const Situation& s) {
  Candidates list;
  for (const int ranks : {1, 2, 4, 8}) list.push_back(number(ranks, "the fewest ranks that hold the model"));
  return numbers(s.options.tensor_parallel, std::move(list));
}

std::string asked_processes(const Situation& s) {
  return s.options.processes > 1 ? text_of(s.options.processes) : std::string();
}

// Nothing is said of them where there is one.
Candidates processes(const Situation& s) {
  if (asked_processes(s).empty()) return {};
  return numbers(s.options.processes, {number(1, "all ranks are threads of one process")});
}

// A process takes its own of those that all see, or all that it was left to see.
Candidates gpus(const Situation& s) {
  if (asked_processes(s).empty() || !s.on_gpu()) return {};
  const int ranks = static_cast<int>(s.number(Field::tensor_parallel)), each = ranks / s.options.processes;
  const bool sees_all = s.machine.gpu.count >= ranks;
  const int first = sees_all ? s.options.process * each : 0;
  const std::string process = "process " + std::to_string(s.options.process);
  return {{.value = std::to_string(first) + (each > 1 ? "-" + std::to_string(first + each - 1) : ""),
           .number = first,
           .why = sees_all ? "those of " + process + ", which sees the GPUs of all"
                           : "the first that " + process + " sees, as it does not see those of all"}};
}

Candidates expert_ranks(const Situation& s) {
  Candidates list;
  for (const int ranks : {1, 2, 4, 8}) {
    list.push_back(number(
        ranks, ranks == 1 ? "each rank has its part of every expert" : "each rank has experts of its own"));
  }
  return numbers(s.options.expert_parallel, std::move(list));
}

std::string asked_dp(const Situation& s) {
  if (s.options.data_parallel > 0 || !s.options.dp_attention) return text_of(s.options.data_parallel);
  return s.at(Field::tensor_parallel).value;
}

Candidates owner_ranks(const Situation& s) {
  if (s.number(Field::tensor_parallel) == 1 && asked_dp(s).empty()) return {};
  Candidates list;
  for (const int ranks : {1, 2, 4, 8}) {
    list.push_back(number(ranks, ranks == 1 ? "all ranks have all sequences, each its part of their heads"
                                            : "ranks, or groups of them, have sequences of their own"));
  }
  return list;
}

Candidates dtypes(const Situation& s) {
  const std::string why = "what the model's config asks for";
  const Candidate int8{.value = "int8", .why = "rounds inputs of 4- and 8-bit weights; faster without AMX"};
  const Candidate fp8{.value = "fp8", .why = "rounds inputs of FP8 weights while prompts are read"};
  if (s.model.dtype == DType::bf16)
    return {{.value = "bfloat16", .why = why}, {.value = "float32", .why = "rounds nothing"}, int8, fp8};
  return {{.value = "float32", .why = why}, {.value = "bfloat16", .why = "half the bytes"}, int8, fp8};
}

Candidates quantizations(const Situation&) {
  return {{.value = "none", .why = "dense weights as they are stored"},
          {.value = "q8", .why = "half the bytes"},
          {.value = "mxfp4", .why = "a quarter of the bytes"}};
}

Candidates kv_dtypes(const Situation& s) {
  const std::string& dtype = s.at(Field::dtype).value;
  Candidates list = {{.value = dtype, .why = "the same as dtype"}};
  if (dtype == "int8" || dtype == "fp8")
    list[0] = {.value = "bfloat16", .why = "what " + dtype + " is rounded from"};
  for (const char* name : {"bfloat16", "float32", "fp8"}) {
    if (list[0].value != name) list.push_back({.value = name, .why = "for a longer context"});
  }
  return list;
}

// Kernels made for the device stand before those that are not.
bool at_home(const Situation& s, const KernelFacts& kernel) {
  if ((kernel.device == DeviceKind::cuda) != s.on_gpu()) return false;
  return !s.on_gpu() || kernel.compute_capability == s.machine.gpu.compute_capability;
}

Candidates pairs(const Situation& s) {
  Candidates list;
  for (const ExpertKernel& kernel : expert_kernels()) {
    for (const Exchange& exchange : exchanges()) {
      list.push_back({.value = std::string(kernel.facts.name) + " + " + std::string(exchange.name),
                      .why = "the first in order of preference",
                      .path = {.kernel = kernel.facts.name,
                               .exchange = exchange.name,
                               .dispatch = exchange.dispatch,
                               .layout = kernel.layout,
                               .combine = exchange.combine}});
    }
  }
  std::stable_sort(list.begin(), list.end(), [&](const Candidate& a, const Candidate& b) {
    const ExpertKernel *left = find_expert_kernel(a.path.kernel), *right = find_expert_kernel(b.path.kernel);
    const bool of_format[] = {takes_format(*left, s.model.expert_format),
                              takes_format(*right, s.model.expert_format)};
    return std::pair(at_home(s, left->facts), of_format[0]) >
           std::pair(at_home(s, right->facts), of_format[1]);
  });
  return list;
}

Candidates many_tokens_from(const Situation& s) {
  if (!s.on_gpu()) return {};
  const double reading = s.machine.gpu.read_bandwidth;
  Candidates list = {
      number(moe_many_tokens_from(reading),
             reading < moe_fast_memory
                 ? "tokens an expert: memory this slow keeps the kernel for few waiting from there on"
                 : "tokens an expert: memory this fast keeps the kernel for few ahead until then")};
  const TuningEntry* const entry = tuned(s, "many_tokens_from");
  if (entry != nullptr && entry->value != list[0].value)
    list.push_back(number(std::stoll(entry->value), "tokens an expert"));
  return list;
}

Candidates attentions(const Situation& s) {
  Candidates list;
  for (const AttentionKernel& kernel : attention_table())
    list.push_back({.value = std::string(kernel.facts.name), .why = "the first in order of preference"});
  std::stable_sort(list.begin(), list.end(), [&](const Candidate& a, const Candidate& b) {
    const AttentionKernel *left = find_attention(a.value), *right = find_attention(b.value);
    const bool of_kind[] = {left->takes(s.model.attention), right->takes(s.model.attention)};
    return std::pair(at_home(s, left->facts), of_kind[0]) > std::pair(at_home(s, right->facts), of_kind[1]);
  });
  return list;
}

Candidates linear_attentions(const Situation& s) {
  if (s.model.linear_layers == 0) return {};
  // number: the GPU's architecture, 0 a CPU.
  const std::string why = "the state of the layers without keys and values, in float32";
  return {{.value = "sm90_gated_delta", .number = 90, .why = why},
          {.value = "sm100_gated_delta", .number = 100, .why = why},
          {.value = "cpu_gated_delta", .why = why}};
}

Candidates all_reduces(const Situation& s) {
  return {
      {.value = "none",
       .why = owners_of(s) > 1 ? "each rank has its sequences' sums whole" : "there is one rank"},
      {.value = "fused"},
      {.value = "one_shot"},
      {.value = "two_shot"},
      {.value = "gather", .why = "ranks have whole sums of different rows, so nothing is left to add"},
      {.value = "nccl", .why = "ranks cannot write each other's memory, as on several hosts; the same bits"},
      {.value = "ring"}};
}

Candidates batch_invariance(const Situation&) {
  return {{.value = "on", .why = "each kernel adds in an order that the model's shape fixes"},
          {.value = "off"}};
}

Candidates cuda_graphs(const Situation&) {
  return {{.value = "on",
           .why = "decode steps of fixed sizes, each held at the start to the bits of launches one by one"},
          {.value = "off", .why = "steps run as they are"}};
}

Candidates step_tokens(const Situation& s) {
  return numbers(asked_step_tokens(s.options),
                 {s.on_gpu() ? number(usual_gpu_rows, "chunks that keep the matrix units busy")
                             : number(512, "chunks that let others' tokens through soon")});
}

Candidates sequences(const Situation& s) {
  return numbers(
      asked_step_sequences(s.options),
      {s.on_gpu() ? number(usual_gpu_sequences, "nearly all experts are read by then, so more gain little")
                  : number(16, "each takes its keys and values")});
}

Candidates speculations(const Situation& s) {
  Candidates all = {
      {.value = "forced", .why = "a step checks several tokens of a text that a grammar leaves no choice in"},
      {.value = "ngram", .why = "a step also checks what followed the last tokens where they stood before"},
      {.value = "none", .why = "a step takes one token of a sequence"}};
  if (s.on_gpu()) {
    all.back().why += ", and the next one begins behind it before that is known";
    std::rotate(all.begin(), all.end() - 1, all.end());
  }
  return all;
}

Candidates draft_tokens(const Situation& s) {
  const int asked = s.options.draft_tokens;
  if (s.at(Field::speculation).value == "none")
    return s.options.given.draft_tokens ? Candidates{number(asked, "")} : Candidates{};
  return numbers(
      asked,
      {number(8, "in a step where one sequence decodes, and one fewer for each that decodes beside it")});
}

Candidates attention_splits(const Situation& s) {
  const AttentionKernel* kernel = find_attention(s.at(Field::attention).value);
  if (kernel == nullptr) return {number(0, "positions, counted from a context's start: never by the batch")};
  // Of heads of 128 a step is half as long (ops/attention/cuda/attention_cuda.h).
  const bool wide = kernel->facts.name == "sm90_attention" && s.model.query_dim == 128;
  const std::string_view words = wide ? "256 behind the first 1,024" : kernel->longer_splits;
  const std::string longer = words.empty() ? "" : std::string(words) + ", ";
  return {number(wide ? kernel->split / 2 : kernel->split,
                 "positions, " + longer + "counted from a context's start: never by the batch")};
}

Candidates prefix_caches(const Situation&) {
  return {{.value = "on", .why = "pages of equal prompts are shared, and kept until their room is needed"},
          {.value = "off", .why = "every prompt is computed"}};
}

// A prefix of a model whose layers keep a state is gone on from where a snapshot of the state stands.
bool has_snapshots(const Situation& s) {
  return s.model.linear_layers > 0 && s.at(Field::prefix_cache).value == "on";
}

Candidates snapshot_intervals(const Situation& s) {
  const EngineOptions& options = s.options;
  if (!has_snapshots(s))
    return options.given.snapshot_interval ? Candidates{number(options.snapshot_interval, "")} : Candidates{};
  const std::string why =
      "positions from one snapshot to the next, beside those where a prompt ends or leaves another";
  const std::int64_t asked = options.snapshot_interval,
                     border = (asked + delta_chunk - 1) / delta_chunk * delta_chunk;
  return numbers(asked, {number(border, why)});
}

Candidates state_snapshots(const Situation& s) {
  const EngineOptions& options = s.options;
  if (!has_snapshots(s))
    return options.given.state_snapshots ? Candidates{number(options.state_snapshots, "")} : Candidates{};
  const std::int64_t fit = affordable_snapshots(s), interval = std::max(options.snapshot_interval, 1);
  const std::int64_t wanted = 2 * sequences_of_rank(s) + s.model.max_positions / interval;
  const std::string each = " of " + grouped(s.model.snapshot_bytes) + " bytes";
  Candidates list = {number(
      wanted, "states" + each + ": two for each of --max-num-seqs, and those of one longest sequence")};
  if (fit < wanted)
    list.push_back(number(fit, "states" + each + ": as many as their part of the memory holds"));
  if (options.given.state_snapshots && options.state_snapshots == 0) list.push_back(number(0, ""));
  return numbers(options.state_snapshots, std::move(list));
}

std::string memory_left(const Situation& s) {
  return s.on_gpu() || s.options.memory_utilization > 0 ? "the memory left beside the weights"
                                                        : "half of the memory left beside the weights";
}

Candidates contexts(const Situation& s) {
  const std::int64_t most = s.model.max_positions, fit = usable_tokens(s);
  Candidates list = {number(most, "what the model holds")};
  if (fit < most && fit > 0) {
    list.push_back(number(fit, fit < affordable_tokens(s) ? "what --kv-cache-tokens holds"
                                                          : "as much as " + memory_left(s) + " holds"));
  }
  return numbers(s.options.max_model_len, std::move(list));
}

std::int64_t asked_pages(const Situation& s) {
  const std::int64_t of_all = page_size_of(s) * owners_of(s);
  return (s.options.kv_cache_tokens + of_all - 1) / of_all;
}

Candidates kv_pages(const Situation& s) {
  const std::int64_t context = s.number(Field::max_model_len);
  const int page_size = page_size_of(s);
  const std::int64_t wanted = (context + page_size - 1) / page_size * sequences_of_rank(s);
  const std::int64_t fit = affordable_tokens(s) / page_size;
  const std::string pages = "as many pages of " + std::to_string(page_size) + " positions as ";
  return numbers(asked_pages(s), {number(std::max(wanted, std::int64_t{1}),
                                         pages + "--max-num-seqs of the longest sequences take"),
                                  number(std::max(fit, std::int64_t{1}), pages + memory_left(s) + " holds")});
}

Candidates kv_window_pages(const Situation& s) {
  if (!has_window_pages(s.model)) return {};
  return {number(window_pages_beside(s.model, page_size_of(s), sequences_of_rank(s), rows_of_rank(s),
                                     s.number(Field::kv_pages)),
                 "layers with a window of " + std::to_string(s.model.window) +
                     " need no more; among them are what is kept for prompts that begin alike")};
}

Candidates tunings(const Situation& s) {
  Candidates list = {{.value = "none",
                      .why = "each kernel has one configuration for a shape; nothing is measured at start"}};
  if (s.machine.tuning) list.push_back({.value = s.machine.tuning->digest(), .why = ""});
  return list;
}

Candidates pinnings(const Situation& s) {
  if (s.on_gpu()) return {};
  return {{.value = "one CPU a thread", .why = "caches stay warm; the calling thread stays where it is"},
          {.value = "none", .why = "threads share CPUs"}};
}

// Tiles ask for lines in a way of their own, plain floats and the scalar kernels for none.
bool kernels_ask_as_told(const Situation& s) {
  const std::string_view kernel = s.at(Field::experts).path.kernel, dtype = s.at(Field::dtype).value;
  if (kernel == "cpu_scalar") return false;
  if (kernel == "cpu_avx2" || dtype == "int8") return true;
  return dtype != "float32" && (kernel == "cpu_avx512_bf16" || kernel == "cpu_avx512_vnni");
}

Candidates weight_lines(const Situation& s) {
  if (s.on_gpu() || !kernels_ask_as_told(s)) return {};
  const auto candidate = [](WeightLines lines, std::string why) {
    return Candidate{.value = std::string(name_of(lines)), .why = std::move(why)};
  };
  return {candidate(WeightLines::each, "each line that few inputs will want is asked for ahead"),
          candidate(WeightLines::each_near, "each line is asked for into the first-level cache"),
          candidate(WeightLines::each_late, "the same, shortly before its use"),
          candidate(WeightLines::led, "only lines that lead the processor are asked for")};
}

constexpr std::string_view one_copy = "one", copy_each = "one a GPU";

Candidates expert_copies(const Situation& s) {
  if (!has_gpu_ranks(s)) return {};
  return {
      {.value = std::string(copy_each),
       .why = "choices of few sequences are shared out evenly among GPUs that all have all experts"},
      {.value = std::string(one_copy), .why = "each GPU has its experts alone, and more room for contexts"}};
}

std::string asked_device(const Situation& s) {
  return s.options.device == Device::automatic ? "" : s.options.device == Device::cpu ? "cpu" : "cuda";
}
std::string asked_threads(const Situation& s) { return text_of(s.options.threads); }
std::string asked_tp(const Situation& s) { return text_of(s.options.tensor_parallel); }
std::string asked_ep(const Situation& s) { return text_of(s.options.expert_parallel); }
std::string asked_dtype(const Situation& s) { return float_name(s.options.dtype); }
std::string asked_quantization(const Situation& s) {
  if (!s.options.given.quantization && s.options.quantization == Quantization::none) return {};
  constexpr const char* names[] = {"none", "q8", "mxfp4"};
  return names[static_cast<std::size_t>(s.options.quantization)];
}
std::string asked_kv_dtype(const Situation& s) { return float_name(s.options.kv_cache_dtype); }
std::string asked_attention(const Situation& s) { return given_name(s.options.attention_backend); }
std::string asked_all_reduce(const Situation& s) { return given_name(s.options.all_reduce); }
std::string asked_graphs(const Situation& s) {
  return s.options.enforce_eager ? "off" : s.options.given.enforce_eager ? "on" : "";
}
std::string asked_rows(const Situation& s) { return text_of(asked_step_tokens(s.options)); }
std::string asked_sequences(const Situation& s) { return text_of(asked_step_sequences(s.options)); }
std::string asked_speculation(const Situation& s) { return given_name(s.options.speculative_algorithm); }
std::string asked_drafts(const Situation& s) { return text_of(s.options.draft_tokens); }
std::string asked_prefix_cache(const Situation& s) {
  return s.options.no_prefix_cache ? "off" : s.options.given.no_prefix_cache ? "on" : "";
}
std::string asked_interval(const Situation& s) {
  return s.options.given.snapshot_interval ? std::to_string(s.options.snapshot_interval) : "";
}
std::string asked_snapshots(const Situation& s) {
  if (!s.options.given.state_snapshots) return text_of(s.options.state_snapshots);
  return std::to_string(s.options.state_snapshots);
}
std::string asked_kv_pages(const Situation& s) { return text_of(asked_pages(s)); }
std::string asked_context(const Situation& s) { return text_of(s.options.max_model_len); }

constexpr FieldSpec specs[] = {
    {Field::device, "device", "--device", devices, asked_device},
    {Field::threads, "threads", "--threads", threads, asked_threads},
    {Field::tensor_parallel, "tp", "--tp", tensor_ranks, asked_tp},
    {Field::processes, "processes", "--nnodes", processes, asked_processes},
    {Field::gpus, "gpus", "", gpus, nullptr},
    {Field::expert_parallel, "ep", "--ep", expert_ranks, asked_ep},
    {Field::data_parallel, "dp", "--dp", owner_ranks, asked_dp},
    {Field::dtype, "dtype", "--dtype", dtypes, asked_dtype},
    {Field::quantization, "quantization", "--quantization", quantizations, asked_quantization},
    {Field::kv_cache_dtype, "kv_cache_dtype", "--kv-cache-dtype", kv_dtypes, asked_kv_dtype},
    {Field::experts, "moe_runner", "--moe-runner-backend", pairs, nullptr},
    {Field::many_tokens_from, "many_tokens_from", "", many_tokens_from, nullptr},
    {Field::weight_lines, "weight_lines", "", weight_lines, nullptr},
    {Field::attention, "attention", "--attention-backend", attentions, asked_attention},
    {Field::linear_attention, "linear_attention", "", linear_attentions, nullptr},
    {Field::all_reduce, "all_reduce", "--all-reduce", all_reduces, asked_all_reduce},
    {Field::batch_invariance, "batch_invariance", "", batch_invariance, nullptr},
    {Field::cuda_graphs, "cuda_graphs", "--enforce-eager", cuda_graphs, asked_graphs},
    {Field::max_num_batched_tokens, "max_num_batched_tokens", "--max-num-batched-tokens", step_tokens,
     asked_rows},
    {Field::max_num_seqs, "max_num_seqs", "--max-num-seqs", sequences, asked_sequences},
    {Field::speculation, "speculation", "--speculative-algorithm", speculations, asked_speculation},
    {Field::draft_tokens, "draft_tokens", "--speculative-num-draft-tokens", draft_tokens, asked_drafts},
    {Field::expert_copies, "expert_copies", "", expert_copies, nullptr},
    {Field::attention_split, "attention_split", "", attention_splits, nullptr},
    {Field::prefix_cache, "prefix_cache", "--no-prefix-cache", prefix_caches, asked_prefix_cache},
    {Field::snapshot_interval, "snapshot_interval", "--snapshot-interval", snapshot_intervals,
     asked_interval},
    {Field::state_snapshots, "state_snapshots", "--state-snapshots", state_snapshots, asked_snapshots},
    {Field::max_model_len, "max_model_len", "--max-model-len", contexts, asked_context},
    {Field::kv_pages, "kv_pages", "--kv-cache-tokens", kv_pages, asked_kv_pages},
    {Field::kv_window_pages, "kv_window_pages", "", kv_window_pages, nullptr},
    {Field::tuning, "tuning_table", "", tunings, nullptr},
    {Field::pinning, "pinning", "", pinnings, nullptr},
};

}  // namespace

int asked_step_tokens(const EngineOptions& options) {
  const bool asked = options.given.max_num_batched_tokens ||
                     options.max_num_batched_tokens != EngineOptions().max_num_batched_tokens;
  return asked ? options.max_num_batched_tokens : 0;
}
int asked_step_sequences(const EngineOptions& options) {
  const bool asked = options.given.max_num_seqs || options.max_num_seqs != EngineOptions().max_num_seqs;
  return asked ? options.max_num_seqs : 0;
}

std::span<const FieldSpec> field_specs() { return specs; }

bool has_gpu_ranks(const Situation& s) { return s.on_gpu() && s.number(Field::tensor_parallel) > 1; }

bool is_expert_copies(const Candidate& candidate) { return candidate.value == copy_each; }
bool has_expert_copies(const Situation& s) { return is_expert_copies(s.at(Field::expert_copies)); }

}  // namespace nibble
