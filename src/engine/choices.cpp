#include "engine/choices.h"

#include <algorithm>
#include <fstream>

namespace nibble {
namespace {

constexpr int page_size = 16;  // tokens; a divisor of attention's split

// Rows of logits beyond one a sequence are for scoring prompts: bounded, since a row is the vocabulary wide.
constexpr int scoring_rows = 64;

std::string from(bool given) { return given ? "user" : "default"; }

DType dtype_of(FloatType asked, DType otherwise) {
  switch (asked) {
    case FloatType::automatic: return otherwise;
    case FloatType::float32: return DType::f32;
    case FloatType::bfloat16: return DType::bf16;
    case FloatType::fp8_e4m3: return DType::f8_e4m3;
  }
  return otherwise;
}

// Memory that can be had without pushing others out, as the kernel estimates it; 0 when it does not say.
std::int64_t available_memory() {
  std::ifstream meminfo("/proc/meminfo");
  std::string word;
  while (meminfo >> word) {
    if (std::int64_t kilobytes = 0; word == "MemAvailable:" && meminfo >> kilobytes) return kilobytes * 1024;
  }
  return 0;
}

// What was left open is cut to half of the memory that is free once the weights are in it.
Status choose_sizes(const EngineOptions& options, const ModelConfig& config, std::int64_t weight_bytes,
                    EngineChoices& choices) {
  const std::int64_t most = config.max_position_embeddings;
  if (options.max_model_len > most) {
    return invalid_argument("--max-model-len " + std::to_string(options.max_model_len) +
                            ": the model holds " + std::to_string(most) + " tokens; give at most that");
  }
  const DType kv_dtype = choices.worker.kv_dtype;
  const std::int64_t page_bytes = kv_page_bytes(config, kv_dtype, page_size);
  const std::int64_t converted =
      choices.worker.dense == DenseFormat::bf16 ? 0 : dense_bytes(dense_values(config), choices.worker.dense);
  const std::int64_t free = std::max<std::int64_t>(available_memory() - weight_bytes - converted, 256 << 20);
  const WindowDemand windows{.page_size = page_size,
                             .sequences = options.max_num_seqs,
                             .step_tokens = options.max_num_batched_tokens};
  std::int64_t affordable_pages =
      std::max<std::int64_t>(affordable_page_count(config, kv_dtype, windows, free / 2), 1);
  if (const std::int64_t asked = (options.kv_cache_tokens + page_size - 1) / page_size; asked > 0) {
    if (asked > affordable_pages) {
      return invalid_argument("--kv-cache-tokens " + std::to_string(options.kv_cache_tokens) +
                              ": half of the free memory holds " +
                              std::to_string(affordable_pages * page_size) + "; give at most that");
    }
    affordable_pages = asked;
  }
  const std::int64_t affordable_tokens = affordable_pages * page_size;

  std::int64_t context =
      options.max_model_len > 0 ? options.max_model_len : std::min(most, affordable_tokens);
  if (context > affordable_tokens && options.kv_cache_tokens > 0) {
    return invalid_argument("--max-model-len " + std::to_string(context) + ": --kv-cache-tokens holds " +
                            std::to_string(affordable_tokens) + "; give at most that");
  }
  if (context > affordable_tokens) {
    return invalid_argument("--max-model-len " + std::to_string(context) + ": its keys and values need " +
                            std::to_string((context + page_size - 1) / page_size * page_bytes >> 20) +
                            " MiB and half of the free memory is " + std::to_string(free / 2 >> 20) +
                            " MiB; at most " + std::to_string(affordable_tokens) + " fit here" +
                            (kv_dtype == DType::f32    ? ", twice as many with --kv-cache-dtype bfloat16"
                             : kv_dtype == DType::bf16 ? ", twice as many with --kv-cache-dtype fp8"
                                                       : ""));
  }
  const std::int64_t pages_a_sequence = (context + page_size - 1) / page_size;
  const std::int64_t pages = std::min(affordable_pages, pages_a_sequence * options.max_num_seqs);
  const char* pages_why = options.kv_cache_tokens > 0 ? "asked for"
                          : pages < affordable_pages
                              ? "as many as --max-num-seqs of the longest sequences take"
                              : "half of the memory left beside the weights";

  choices.scheduler = {.max_num_seqs = options.max_num_seqs,
                       .max_num_batched_tokens = options.max_num_batched_tokens,
                       .max_logit_rows = std::max(options.max_num_seqs,
                                                  std::min(scoring_rows, options.max_num_batched_tokens)),
                       .max_model_len = static_cast<int>(context)};
  choices.worker.max_rows = options.max_num_batched_tokens;
  choices.worker.max_logit_rows = choices.scheduler.max_logit_rows;
  choices.worker.max_sequences = options.max_num_seqs;
  choices.worker.max_positions = static_cast<int>(context);
  choices.worker.page_size = page_size;
  const std::int64_t of_windows = window_page_count(config, windows, pages);
  choices.worker.page_counts = {static_cast<int>(pages), static_cast<int>(of_windows)};
  choices.cache = {.page_size = page_size,
                   .page_count = choices.worker.page_counts,
                   .window = page_window(config),
                   .keep_prefixes = !options.no_prefix_cache};
  const std::int64_t kv_bytes = pages * kv_page_bytes(config, kv_dtype, page_size, full_pages) +
                                of_windows * kv_page_bytes(config, kv_dtype, page_size, window_pages);
  choices.list.push_back({.field = "max_model_len",
                          .value = std::to_string(context),
                          .from = from(options.given.max_model_len),
                          .why = options.max_model_len > 0 ? "asked for"
                                 : context == most         ? "what the model holds"
                                 : options.kv_cache_tokens > 0
                                     ? "what --kv-cache-tokens holds"
                                     : "as much as half of the memory left beside the weights holds"});
  choices.list.push_back({.field = "kv_pages",
                          .value = std::to_string(pages),
                          .from = from(options.given.kv_cache_tokens),
                          .why = std::to_string(kv_bytes >> 20) + " MiB in pages of " +
                                 std::to_string(page_size) + " tokens; " + pages_why});
  if (of_windows > 0) {
    choices.list.push_back(
        {.field = "kv_window_pages",
         .value = std::to_string(of_windows),
         .from = "default",
         .why = "layers with a window of " + std::to_string(choices.cache.window) +
                " need no more; among them are what is kept for prompts that begin alike"});
  }
  choices.list.push_back({.field = "prefix_cache",
                          .value = options.no_prefix_cache ? "off" : "on",
                          .from = from(options.given.no_prefix_cache),
                          .why = options.no_prefix_cache ? "asked for"
                                                         : "pages of equal prompts are shared and kept until "
                                                           "their room is needed"});
  return {};
}

// As a user gives it.
std::string float_name(DType dtype) {
  return dtype == DType::bf16 ? "bfloat16" : dtype == DType::f8_e4m3 ? "fp8" : "float32";
}

void choose_dtypes(const EngineOptions& options, const ModelConfig& config, EngineChoices& choices) {
  const DType dtype = dtype_of(options.dtype, config.dtype);
  choices.worker.activations = dtype == DType::bf16 ? InputValues::bf16 : InputValues::any_float;
  choices.worker.kv_dtype = dtype_of(options.kv_cache_dtype, dtype);
  choices.list.push_back(
      {.field = "dtype",
       .value = float_name(dtype),
       .from = from(options.given.dtype),
       .why = options.dtype == FloatType::automatic ? "what the model's config asks for" : "asked for"});
  choices.list.push_back(
      {.field = "kv_cache_dtype",
       .value = float_name(choices.worker.kv_dtype),
       .from = from(options.given.kv_cache_dtype),
       .why = options.kv_cache_dtype == FloatType::automatic ? "the same as dtype" : "asked for"});
}

void choose_dense(const EngineOptions& options, const ModelConfig& config, EngineChoices& choices) {
  constexpr DenseFormat formats[] = {DenseFormat::bf16, DenseFormat::q8, DenseFormat::mxfp4};
  constexpr const char* names[] = {"none", "q8", "mxfp4"};
  const std::size_t asked = static_cast<std::size_t>(options.quantization);
  choices.worker.dense = formats[asked];
  const auto megabytes = [&](DenseFormat format) {
    return std::to_string(dense_bytes(dense_values(config), format) >> 20) + " MiB";
  };
  choices.list.push_back(
      {.field = "quantization",
       .value = names[asked],
       .from = from(options.given.quantization),
       .why = asked == 0 ? "attention and lm_head as they are stored: " + megabytes(DenseFormat::bf16)
                         : "asked for: attention and lm_head take " + megabytes(formats[asked]) +
                               " instead of " + megabytes(DenseFormat::bf16)});
}

Status choose_kernels(const EngineOptions& options, EngineChoices& choices) {
  const auto in_option = [](std::string_view option, const Status& status) {
    return status.with_context(option);
  };
  Result<KernelChoice<DotKernels>> dots = choose_dot_kernels(options.moe_runner_backend);
  if (!dots.ok()) return in_option("--moe-runner-backend", dots.status());
  choices.worker.dots = dots->kernels;
  choices.list.push_back({.field = "moe_runner",
                          .value = dots->name,
                          .from = from(options.given.moe_runner_backend),
                          .why = dots->why});
  Result<KernelChoice<AttentionKernels>> attention = choose_attention_kernels(options.attention_backend);
  if (!attention.ok()) return in_option("--attention-backend", attention.status());
  choices.worker.attention = attention->kernels;
  choices.list.push_back({.field = "attention",
                          .value = attention->name,
                          .from = from(options.given.attention_backend),
                          .why = attention->why});
  return {};
}

void choose_threads(const EngineOptions& options, EngineChoices& choices) {
  const std::size_t cpus = allowed_cpus().size();
  const std::size_t threads = options.threads > 0 ? static_cast<std::size_t>(options.threads) : cpus;
  choices.worker.threads = static_cast<int>(threads);
  choices.list.push_back(
      {.field = "threads",
       .value = std::to_string(threads),
       .from = from(options.given.threads),
       .why = options.threads > 0 ? "asked for" : "one for each CPU that this process may use"});
  choices.list.push_back({.field = "pinning",
                          .value = threads > cpus ? "none" : "one CPU a thread",
                          .from = "default",
                          .why = threads > cpus ? "there are more threads than the " + std::to_string(cpus) +
                                                      " CPUs that this process may use"
                                                : "caches stay warm; the calling thread stays where it is"});
}

void choose_memory(EngineChoices& choices) {
  choices.list.push_back(
      {.field = "huge_pages",
       .value = "weights",
       .from = "default",
       .why = "the files' mapping and converted weights ask for them; keys and values do not, for clearing "
              "one a layer would delay the first token"});
  std::ifstream online("/sys/devices/system/node/online");
  std::string nodes;
  const bool several = (online >> nodes) && nodes != "0";
  choices.list.push_back({.field = "numa",
                          .value = "none",
                          .from = "default",
                          .why = several ? "weights lie where the page cache put them, the rest where the "
                                           "threads that first write it run"
                                         : "there is one memory node"});
}

}  // namespace

Result<EngineChoices> make_choices(const EngineOptions& options, const ModelConfig& config,
                                   std::int64_t weight_bytes) {
  EngineChoices choices;
  NIBBLE_RETURN_IF_ERROR(choose_kernels(options, choices));
  choose_dtypes(options, config, choices);
  choose_dense(options, config, choices);
  choose_threads(options, choices);
  choose_memory(choices);
  NIBBLE_RETURN_IF_ERROR(choose_sizes(options, config, weight_bytes, choices));
  return choices;
}

}  // namespace nibble
