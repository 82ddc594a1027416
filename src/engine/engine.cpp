#include "engine/engine.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <fstream>
#include <string>

#include "base/check.h"
#include "cache/page_pool.h"
#include "checkpoint/expected_tensors.h"
#include "checkpoint/model_location.h"
#include "models/model.h"
#include "runtime/worker.h"
#include "sched/scheduler.h"

namespace nibble {
namespace {

constexpr int page_size = 16;  // tokens; a divisor of attention's split

// Rows of logits beyond one a sequence are for scoring prompts: bounded, since a row is the vocabulary wide.
constexpr int scoring_rows = 64;

DType dtype_of(FloatType asked, DType otherwise) {
  return asked == FloatType::automatic ? otherwise : asked == FloatType::bfloat16 ? DType::bf16 : DType::f32;
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

struct Sizes {
  SchedulerLimits scheduler;
  WorkerLimits worker;
};

// All sizes before any memory is taken. What the user set is honoured or refused; what was left open is cut
// to half of the memory that is free once the weights are in it.
Result<Sizes> choose_sizes(const EngineOptions& options, const ModelConfig& config,
                           std::int64_t weight_bytes) {
  const std::int64_t most = config.max_position_embeddings;
  if (options.max_model_len > most) {
    return invalid_argument("--max-model-len " + std::to_string(options.max_model_len) +
                            ": the model holds " + std::to_string(most) + " tokens; give at most that");
  }
  const DType dtype = dtype_of(options.dtype, config.dtype);
  const DType kv_dtype = dtype_of(options.kv_cache_dtype, dtype);
  const std::int64_t page_bytes = kv_page_bytes(config, kv_dtype, page_size);
  const std::int64_t free = std::max<std::int64_t>(available_memory() - weight_bytes, 256 << 20);
  const std::int64_t affordable_pages = std::max<std::int64_t>(free / 2 / page_bytes, 1);
  const std::int64_t affordable_tokens = affordable_pages * page_size;

  std::int64_t context =
      options.max_model_len > 0 ? options.max_model_len : std::min(most, affordable_tokens);
  if (context > affordable_tokens) {
    return invalid_argument("--max-model-len " + std::to_string(context) + ": its keys and values need " +
                            std::to_string((context + page_size - 1) / page_size * page_bytes >> 20) +
                            " MiB and half of the free memory is " + std::to_string(free / 2 >> 20) +
                            " MiB; at most " + std::to_string(affordable_tokens) + " fit here" +
                            (kv_dtype == DType::f32 ? ", twice as many with --kv-cache-dtype bfloat16" : ""));
  }
  const std::int64_t pages_a_sequence = (context + page_size - 1) / page_size;
  const std::int64_t pages = std::min(affordable_pages, pages_a_sequence * options.max_num_seqs);

  Sizes sizes;
  sizes.scheduler = {.max_num_seqs = options.max_num_seqs,
                     .max_num_batched_tokens = options.max_num_batched_tokens,
                     .max_logit_rows = std::max(options.max_num_seqs,
                                                std::min(scoring_rows, options.max_num_batched_tokens)),
                     .max_model_len = static_cast<int>(context)};
  sizes.worker = {.threads = options.threads,
                  .max_rows = options.max_num_batched_tokens,
                  .max_logit_rows = sizes.scheduler.max_logit_rows,
                  .max_sequences = options.max_num_seqs,
                  .activations = dtype == DType::bf16 ? InputValues::bf16 : InputValues::any_float,
                  .kv_dtype = kv_dtype,
                  .page_size = page_size,
                  .page_count = static_cast<int>(pages)};
  return sizes;
}

class SteppedEngine final : public Engine {
 public:
  SteppedEngine(ModelInfo info, const Sizes& sizes, std::unique_ptr<Worker> worker)
      : info_(std::move(info)),
        worker_(std::move(worker)),
        pages_(sizes.worker.page_count, page_size),
        scheduler_(sizes.scheduler, pages_),
        results_(static_cast<std::size_t>(sizes.scheduler.max_num_seqs)) {}

  const ModelInfo& model() const override { return info_; }
  void cancel(RequestId id) override { scheduler_.cancel(id); }
  bool idle() const override { return scheduler_.idle(); }

  Status submit(Request request) override {
    for (const TokenId id : request.prompt) {
      if (id < 0 || id >= info_.vocabulary) {
        return invalid_argument("token id " + std::to_string(id) +
                                " is outside the vocabulary; ids go from 0 to " +
                                std::to_string(info_.vocabulary - 1));
      }
    }
    if (request.sampling.logprobs > info_.vocabulary) {
      return invalid_argument("logprobs is " + std::to_string(request.sampling.logprobs) +
                              "; the vocabulary has only " + std::to_string(info_.vocabulary) + " tokens");
    }
    return scheduler_.submit(std::move(request));
  }

  Result<StepTimes> step(std::vector<Event>& events) override {
    const auto begin = std::chrono::steady_clock::now();
    const Batch& batch = scheduler_.plan(events);
    StepTimes times;
    if (batch.empty()) return times;
    for (const BatchSequence& sequence : batch.sequences) {
      (sequence.prefill ? times.prefill_tokens : times.decode_tokens) += sequence.row_count;
    }
    const std::span<StepResult> results = std::span(results_).first(batch.sequences.size());
    NIBBLE_RETURN_IF_ERROR(worker_->run(batch, results));
    scheduler_.commit(results, events);
    times.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    return times;
  }

 private:
  ModelInfo info_;
  std::unique_ptr<Worker> worker_;
  PagePool pages_;
  Scheduler scheduler_;              // its requests hold pages, so it goes first
  std::vector<StepResult> results_;  // [max_num_seqs]
};

}  // namespace

double expected_step_bytes(const ModelInfo& model, int tokens) {
  const double unused = 1.0 - static_cast<double>(model.experts_per_token) / model.experts;
  return static_cast<double>(model.shared_bytes) +
         static_cast<double>(model.expert_bytes) * (1.0 - std::pow(unused, tokens));
}

Result<std::unique_ptr<Engine>> Engine::load(const EngineOptions& options) {
  NIBBLE_ASSIGN(const ModelLocation location,
                locate_model(options.model, LocationEnvironment::of_this_process()));
  NIBBLE_ASSIGN(const ModelConfig config, read_model_config(location.folder));
  NIBBLE_ASSIGN(WeightSource weights, WeightSource::open(location.folder));
  NIBBLE_RETURN_IF_ERROR(check_tensors(config, weights));
  const std::int64_t weight_bytes = weights.bytes();
  NIBBLE_ASSIGN(const Sizes sizes, choose_sizes(options, config, weight_bytes));
  NIBBLE_ASSIGN(std::unique_ptr<Model> model, bind_model(config, std::move(weights)));
  NIBBLE_ASSIGN(std::unique_ptr<Worker> worker, Worker::start(std::move(model), sizes.worker));

  ModelInfo info{.name = location.name,
                 .folder = location.folder,
                 .architecture = config.architecture,
                 .vocabulary = static_cast<int>(config.vocab_size),
                 .max_model_len = sizes.scheduler.max_model_len,
                 .eos_ids = config.eos_token_ids,
                 .weight_bytes = weight_bytes,
                 .experts = static_cast<int>(config.num_local_experts),
                 .experts_per_token = static_cast<int>(config.num_experts_per_tok),
                 .threads = worker->threads()};
  for (const ExpectedTensor& tensor : expected_tensors(config)) {
    if (tensor.use == TensorUse::whole) info.shared_bytes += tensor.bytes();
    if (tensor.use == TensorUse::experts) info.expert_bytes += tensor.bytes();
  }
  return std::unique_ptr<Engine>(std::make_unique<SteppedEngine>(std::move(info), sizes, std::move(worker)));
}

}  // namespace nibble
