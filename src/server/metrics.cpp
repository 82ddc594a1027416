#include "server/metrics.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>

#include "server/what_ran.h"
#include "tensor/dtype.h"

namespace nibble {
namespace {

// The bounds that vLLM uses: a panel computes percentiles from them, so they must be equal.
const std::vector<double> first_token_bounds = {0.001, 0.005, 0.01, 0.02,  0.04,  0.06,  0.08, 0.1,
                                                0.25,  0.5,   0.75, 1.0,   2.5,   5.0,   7.5,  10.0,
                                                20.0,  40.0,  80.0, 160.0, 640.0, 2560.0};
const std::vector<double> token_bounds = {0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2,  0.3,  0.4, 0.5,
                                          0.75, 1.0,   2.5,  5.0,   7.5, 10.0, 20.0, 40.0, 80.0};
const std::vector<double> request_bounds = {0.3,  0.5,   0.8,   1.0,   1.5,   2.0,    2.5,
                                            5.0,  10.0,  15.0,  20.0,  30.0,  40.0,   50.0,
                                            60.0, 120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0};
const std::vector<double> step_bounds = {1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384};
const std::vector<double> n_bounds = {1, 2, 5, 10, 20};

double seconds(std::chrono::nanoseconds time) { return std::chrono::duration<double>(time).count(); }
double number(std::uint64_t count) { return static_cast<double>(count); }

std::optional<Metrics::Outcome> outcome_of(FinishReason finish) {
  switch (finish) {
    case FinishReason::none: return {};
    case FinishReason::stop: return Metrics::Outcome::stop;
    case FinishReason::length:
    case FinishReason::cut: return Metrics::Outcome::length;
    case FinishReason::cancelled: return Metrics::Outcome::abort;
    default: return Metrics::Outcome::error;
  }
}

// This process as Prometheus's own clients describe one.
void write_process(MetricsText& text) {
  long pages = 0, resident = 0;
  if (std::FILE* const file = std::fopen("/proc/self/statm", "r")) {
    if (std::fscanf(file, "%ld %ld", &pages, &resident) == 2) {
      text.gauge("process_resident_memory_bytes", "Resident memory size in bytes.",
                 static_cast<double>(resident) * static_cast<double>(sysconf(_SC_PAGESIZE)));
    }
    std::fclose(file);
  }
  std::error_code error;
  int open = -1;  // the folder itself
  for (auto at = std::filesystem::directory_iterator("/proc/self/fd", error);
       !error && at != std::filesystem::directory_iterator(); at.increment(error))
    ++open;
  if (!error) text.gauge("process_open_fds", "Number of open file descriptors.", open);
}

}  // namespace

Metrics::Metrics(std::string served_name, const ModelInfo& model, const Clock& clock)
    : served_name_(std::move(served_name)),
      model_(model),
      clock_(clock),
      time_to_first_token_(first_token_bounds),
      inter_token_(token_bounds),
      request_per_token_(token_bounds),
      whole_time_(request_bounds),
      queue_time_(request_bounds),
      prefill_time_(request_bounds),
      decode_time_(request_bounds),
      inference_time_(request_bounds),
      request_prompt_tokens_(bounds_1_2_5(model.max_model_len)),
      request_generation_tokens_(bounds_1_2_5(model.max_model_len)),
      request_max_tokens_(bounds_1_2_5(model.max_model_len)),
      request_n_(n_bounds) {}

void Metrics::accept(const Accepted& accepted) {
  request_n_.observe(accepted.n);
  RequestId id = accepted.first;
  for (const int tokens : accepted.prompt_tokens) {
    const RequestId first_choice = id;
    for (int i = 0; i < accepted.n; ++i, ++id) {
      sequences_[id] = {.prompt_tokens = tokens,
                        .first_choice = first_choice,
                        .max_tokens = accepted.max_tokens,
                        .accepted = clock_.now()};
    }
  }
}

void Metrics::take(const DeliveredEvent& event) {
  const auto found = sequences_.find(event.request);
  if (found == sequences_.end()) return;
  Sequence& sequence = found->second;
  // The engine may have begun before accept() was called.
  if (event.begun) sequence.begun = std::max(*event.begun, sequence.accepted);
  if (event.token >= 0) {
    const Time now = clock_.now();
    if (sequence.generated++ == 0) {
      sequence.first_token = now;
      time_to_first_token_.observe(seconds(now - sequence.accepted));
    } else {
      inter_token_.observe(seconds(now - sequence.last_token));
    }
    sequence.last_token = now;
    ++generation_tokens_;
  }
  const std::optional<Outcome> outcome = outcome_of(event.finish);
  // The prompt was read: a token came of it, or it was only to be scored.
  if (event.token >= 0 || outcome == Outcome::length) {
    const auto first = sequences_.find(sequence.first_choice);
    if (first != sequences_.end() && !std::exchange(first->second.prompt_counted, true))
      prompt_tokens_ += static_cast<std::uint64_t>(sequence.prompt_tokens);
  }
  if (outcome) end(event.request, *outcome);
}

void Metrics::end(RequestId id, Outcome outcome) {
  const auto found = sequences_.find(id);
  if (found == sequences_.end()) return;
  const Sequence& sequence = found->second;
  ++outcomes_[static_cast<std::size_t>(outcome)];
  whole_time_.observe(seconds(clock_.now() - sequence.accepted));
  request_prompt_tokens_.observe(sequence.prompt_tokens);
  request_generation_tokens_.observe(sequence.generated);
  request_max_tokens_.observe(sequence.max_tokens);
  if (sequence.begun) queue_time_.observe(seconds(*sequence.begun - sequence.accepted));
  if (sequence.begun && sequence.generated > 0) {
    prefill_time_.observe(seconds(sequence.first_token - *sequence.begun));
    decode_time_.observe(seconds(sequence.last_token - sequence.first_token));
    inference_time_.observe(seconds(sequence.last_token - *sequence.begun));
  }
  if (sequence.generated > 1) {
    request_per_token_.observe(seconds(sequence.last_token - sequence.first_token) /
                               (sequence.generated - 1));
  }
  sequences_.erase(found);
}

void Metrics::write_requests(MetricsText& text) const {
  text.counter("vllm:prompt_tokens_total", "Number of prefill tokens processed.", number(prompt_tokens_));
  text.counter("vllm:generation_tokens_total", "Number of generation tokens processed.",
               number(generation_tokens_));
  text.family("vllm:request_success_total", "counter", "Count of successfully processed requests.");
  constexpr std::string_view names[] = {"stop", "length", "abort", "error"};
  for (std::size_t i = 0; i < outcomes_.size(); ++i) {
    text.sample("vllm:request_success_total", {{"finished_reason", names[i]}}, number(outcomes_[i]));
  }
  text.histogram("vllm:time_to_first_token_seconds", "Histogram of time to first token in seconds.",
                 time_to_first_token_);
  text.histogram("vllm:inter_token_latency_seconds", "Histogram of inter-token latency in seconds.",
                 inter_token_);
  text.histogram("vllm:time_per_output_token_seconds", "Histogram of time per output token in seconds.",
                 inter_token_);
  text.histogram("vllm:request_time_per_output_token_seconds",
                 "Histogram of a request's mean time per output token in seconds.", request_per_token_);
  text.histogram("vllm:e2e_request_latency_seconds", "Histogram of e2e request latency in seconds.",
                 whole_time_);
  text.histogram("vllm:request_queue_time_seconds", "Histogram of time spent in WAITING phase for request.",
                 queue_time_);
  text.histogram("vllm:request_prefill_time_seconds", "Histogram of time spent in PREFILL phase for request.",
                 prefill_time_);
  text.histogram("vllm:request_decode_time_seconds", "Histogram of time spent in DECODE phase for request.",
                 decode_time_);
  text.histogram("vllm:request_inference_time_seconds",
                 "Histogram of time spent in RUNNING phase for request.", inference_time_);
  text.histogram("vllm:request_prompt_tokens", "Number of prefill tokens processed.", request_prompt_tokens_);
  text.histogram("vllm:request_generation_tokens", "Number of generation tokens processed.",
                 request_generation_tokens_);
  text.histogram("vllm:request_params_max_tokens", "Histogram of the max_tokens request parameter.",
                 request_max_tokens_);
  text.histogram("vllm:request_params_n", "Histogram of the n request parameter.", request_n_);
}

void Metrics::write_engine(MetricsText& text, const EngineCounts& counts) const {
  const EngineLoad& load = counts.load;
  text.gauge("vllm:num_requests_running", "Number of requests in model execution batches.", load.running);
  text.gauge("vllm:num_requests_waiting", "Number of requests waiting to be processed.", load.queued);
  text.gauge("vllm:kv_cache_usage_perc", "KV-cache usage. 1 means 100 percent usage.", load.used_share);
  const EngineTotals& totals = counts.totals;
  text.counter("vllm:num_preemptions_total", "Cumulative number of preemption from the engine.",
               number(totals.preemptions));
  text.counter("vllm:prefix_cache_queries_total",
               "Prefix cache queries, in terms of number of queried tokens.",
               number(totals.prefix_query_tokens));
  text.counter("vllm:prefix_cache_hits_total", "Prefix cache hits, in terms of number of cached tokens.",
               number(totals.prefix_hit_tokens));
  // steps_by_tokens[i] had at most 2^i tokens.
  Histogram step_tokens(step_bounds);
  for (std::size_t i = 0; i < counts.steps_by_tokens.size(); ++i)
    step_tokens.add(static_cast<double>(1 << i), counts.steps_by_tokens[i]);
  step_tokens.add_sum(number(counts.prompt_tokens + counts.generated_tokens));
  text.histogram("vllm:iteration_tokens_total", "Histogram of number of tokens per engine_step.",
                 step_tokens);
  text.counter("nibble:steps_total", "Steps of the engine.", number(counts.steps));
  text.counter("nibble:self_tests_total", "Tests of the idle engine that found the bits of the first one.",
               number(counts.self_tests));
  text.counter("nibble:step_seconds_total", "Time spent in steps.", counts.step_seconds);
  text.counter("vllm:spec_decode_num_draft_tokens_total", "Number of draft tokens.",
               number(totals.drafted_tokens));
  text.counter("vllm:spec_decode_num_accepted_tokens_total", "Number of accepted tokens.",
               number(totals.accepted_drafts));
  text.counter("nibble:recomputed_tokens_total", "Tokens whose keys and values a preemption had cost.",
               number(totals.recomputed_tokens));
  text.counter("nibble:evicted_pages_total", "Cached pages of the KV cache that made room.",
               number(totals.evicted_pages));
  text.gauge("nibble:kv_pages_used", "Pages of the KV cache that running sequences hold.", load.pages_used);
  text.gauge("nibble:kv_pages_cached", "Pages that no sequence holds, kept for prompts that begin alike.",
             load.pages_cached);
  text.gauge("nibble:kv_pages", "Pages of the KV cache.", load.pages);
  text.counter("nibble:state_snapshots_taken_total", "Snapshots of states taken for the prefix cache.",
               number(totals.snapshots_taken));
  text.counter("nibble:state_snapshots_resumed_total", "Times that a request went on from a snapshot.",
               number(totals.snapshots_resumed));
  text.counter("nibble:state_snapshots_evicted_total", "Snapshots that made room.",
               number(totals.snapshots_evicted));
  text.gauge("nibble:state_snapshots_kept", "Snapshots of states that the prefix cache has.",
             load.snapshots_kept);
  text.gauge("nibble:state_snapshots", "Slots for snapshots of states.", load.snapshots);
  write_ran(text, counts.ran);
  write_plan_info(text);
}

// What never changes while a model is served, as labels.
void Metrics::write_plan_info(MetricsText& text) const {
  const Plan& plan = model_.plan;
  text.family("vllm:cache_config_info", "gauge", "Information of the LLMEngine CacheConfig.");
  text.sample("vllm:cache_config_info",
              {{"block_size", std::to_string(plan.page_size)},
               {"cache_dtype", dtype_name(plan.kv_dtype)},
               {"enable_prefix_caching", plan.prefix_cache ? "True" : "False"},
               {"num_gpu_blocks", std::to_string(plan.kv_pages)}},
              1);
  text.family("nibble_plan_info", "gauge", "What was chosen to run, and by whom.");
  for (const Choice& choice : model_.plan.choices) {
    text.sample("nibble_plan_info", {{"field", choice.field}, {"value", choice.value}, {"from", choice.from}},
                1);
  }
}

std::string Metrics::text(const EngineCounts& counts, const Clients& clients,
                          const ConstraintCounts& constraints) const {
  MetricsText text({{"model_name", served_name_}, {"engine", "0"}});
  write_engine(text, counts);
  write_requests(text);
  constraints.write(text);
  text.gauge("nibble:connections", "Open connections of clients.", clients.connections);
  text.counter("nibble:connections_displaced_total", "Connections closed because others needed their places.",
               static_cast<double>(clients.displaced));
  MetricsText process({});
  write_process(process);
  return text.take() + process.take();
}

}  // namespace nibble
