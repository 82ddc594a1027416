#include "engine/engine.h"

#include <algorithm>
#include <chrono>
#include <ctime>
#include <string>

#include "base/check.h"
#include "base/clock.h"
#include "cache/page_cache.h"
#include "checkpoint/expected_tensors.h"
#include "checkpoint/model_location.h"
#include "engine/choices.h"
#include "engine/mask_thread.h"
#include "engine/processes.h"
#include "runtime/cpu_worker.h"
#include "runtime/gpu.h"
#include "sched/scheduler.h"

namespace nibble {
namespace {

double process_cpu_seconds() {
  timespec time{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) * 1e-9;
}

Choice mapping_choice(std::int64_t mapped, std::int64_t all) {
  const auto megabytes = [](std::int64_t bytes) { return std::to_string(bytes >> 20) + " MiB"; };
  return {.field = "mapped_at_load",
          .value = megabytes(mapped),
          .from = "default",
          .why = mapped >= all ? "all of the files, which the page cache held"
                               : "what the page cache held of " + megabytes(all) + ", as far as " +
                                     std::to_string(static_cast<int>(WeightSource::map_seconds * 1000)) +
                                     " ms went; steps map the rest"};
}

Choice device_choice(std::int64_t taken, std::int64_t planned) {
  return {.field = "device_memory",
          .value = grouped(taken) + " bytes",
          .from = "default",
          .why = "measured once all was taken; the plan said " + grouped(planned)};
}

// All that is decided before memory is taken.
struct Prepared {
  ModelLocation location;
  ModelConfig config;
  EngineChoices choices;
  std::unique_ptr<ProcessLinks> links;  // null: there is one process
};

Result<Prepared> prepare(const EngineOptions& options, const std::function<void(EngineChoices&)>& change) {
  Prepared prepared;
  NIBBLE_ASSIGN(prepared.location, locate_model(options.model, LocationEnvironment::of_this_process()));
  NIBBLE_ASSIGN(prepared.config, read_model_config(prepared.location.folder));
  // What cannot be honoured is refused before weights are looked for.
  NIBBLE_ASSIGN(prepared.choices, make_choices(options, prepared.config, prepared.location.name));
  if (change) change(prepared.choices);
  NIBBLE_ASSIGN(prepared.links, join_processes(options, prepared.location.folder, prepared.choices));
  return prepared;
}

Result<WeightSource> open_weights(Prepared& prepared) {
  NIBBLE_ASSIGN(WeightSource weights, WeightSource::open(prepared.location.folder));
  read_stored_formats(prepared.config, weights);
  ThreadPool threads(prepared.choices.worker.threads);  // the worker makes its own
  NIBBLE_RETURN_IF_ERROR(check_tensors(prepared.config, weights, threads));
  NIBBLE_RETURN_IF_ERROR(spread_scales(prepared.config, weights));
  return weights;
}

struct StartedWorker {
  std::unique_ptr<Worker> worker;
  std::int64_t weight_bytes = 0;  // of the files
};

Result<StartedWorker> start_worker(Prepared& prepared, const EngineOptions& options,
                                   const std::function<void(double, double)>& progress) {
  StartedWorker started;
  const EngineChoices& choices = prepared.choices;
  const bool on_gpu = choices.plan.device == DeviceKind::cuda;
  if (options.given.random_weights) {
    if (!on_gpu) return invalid_argument("--random-weights are made on a GPU, and this engine runs on a CPU");
    NIBBLE_ASSIGN(started.worker,
                  start_gpu_worker(prepared.config, {.source = {}, .seed = options.random_weights},
                                   choices.worker, std::move(prepared.links)));
    started.weight_bytes = choices.plan.memory.weights;
    return started;
  }
  NIBBLE_ASSIGN(WeightSource weights, open_weights(prepared));
  started.weight_bytes = weights.bytes();
  if (on_gpu) {
    NIBBLE_ASSIGN(started.worker,
                  start_gpu_worker(prepared.config, {.source = std::move(weights), .progress = progress},
                                   choices.worker, std::move(prepared.links)));
    return started;
  }
  NIBBLE_ASSIGN(started.worker, CpuWorker::start(prepared.config, std::move(weights), choices.worker,
                                                 progress, std::move(prepared.links)));
  return started;
}

class SteppedEngine final : public Engine {
 public:
  SteppedEngine(ModelInfo info, const EngineChoices& choices, std::unique_ptr<Worker> worker)
      : info_(std::move(info)),
        worker_(std::move(worker)),
        caches_(static_cast<std::size_t>(choices.owners)),
        scheduler_(choices.scheduler, fill_caches(choices.cache)),
        plans_ahead_(choices.plan_ahead),
        masks_(choices.scheduler.max_num_seqs),
        results_(static_cast<std::size_t>(choices.scheduler.max_num_seqs)) {}

  const ModelInfo& model() const override { return info_; }
  void cancel(RequestId id) override { scheduler_.cancel(id); }
  bool idle() const override { return scheduler_.idle(); }
  EngineLoad load_now() const override {
    EngineLoad load{.queued = scheduler_.queued(),
                    .running = scheduler_.running(),
                    .snapshots = of_all([](const PageCache& each) { return each.page_count(snapshot_room); }),
                    .snapshots_kept = of_all([](const PageCache& each) { return each.idle(snapshot_room); })};
    for (const PageGroup group : {full_pages, window_pages}) {
      const int pages = of_all([&](const PageCache& each) { return each.page_count(group); });
      const int used = of_all([&](const PageCache& each) { return each.used(group); });
      load.pages += pages;
      load.pages_used += used;
      load.pages_cached += of_all([&](const PageCache& each) { return each.idle(group); });
      if (pages > 0) load.used_share = std::max(load.used_share, static_cast<double>(used) / pages);
    }
    return load;
  }
  EngineTotals totals() const override {
    const SchedulerTotals& totals = scheduler_.totals();
    return {.prefix_query_tokens = totals.prefix_query_tokens,
            .prefix_hit_tokens = totals.prefix_hit_tokens,
            .preemptions = totals.preemptions,
            .recomputed_tokens = totals.recomputed_tokens,
            .evicted_pages = of_all<std::uint64_t>([](const PageCache& each) { return each.evicted(); }),
            .snapshots_taken = totals.snapshots_taken,
            .snapshots_resumed = totals.snapshots_resumed,
            .snapshots_evicted =
                of_all<std::uint64_t>([](const PageCache& each) { return each.evicted_snapshots(); }),
            .drafted_tokens = totals.drafted_tokens,
            .accepted_drafts = totals.accepted_drafts};
  }
  Status failure() const override { return worker_->failure(); }
  RanTable ran() const override { return worker_->ran(); }
  void time_ops(TimeTable* table) override { worker_->time_ops(table); }

  Status submit(Request request) override {
    for (const TokenId id : request.prompt) {
      if (id < 0 || id >= info_.vocabulary) {
        return invalid_argument("token id " + std::to_string(id) +
                                " is outside the vocabulary; ids go from 0 to " +
                                std::to_string(info_.vocabulary - 1));
      }
    }
    for (const TokenBias& bias : request.sampling.logit_bias) {
      if (bias.id >= 0 && bias.id < info_.vocabulary) continue;
      return invalid_argument("logit_bias names the token id " + std::to_string(bias.id) +
                              ", which is outside the vocabulary; ids go from 0 to " +
                              std::to_string(info_.vocabulary - 1));
    }
    if (request.sampling.logprobs > info_.vocabulary) {
      return invalid_argument("logprobs is " + std::to_string(request.sampling.logprobs) +
                              "; the vocabulary has only " + std::to_string(info_.vocabulary) + " tokens");
    }
    return scheduler_.submit(std::move(request));
  }

  Result<StepTimes> step(std::vector<Event>& events) override {
    const auto begin = std::chrono::steady_clock::now();
    const double cpu_begin = process_cpu_seconds();
    StepTimes times;
    NIBBLE_RETURN_IF_ERROR(plans_ahead_ ? overlapped_step(events, times) : plain_step(events, times));
    if (times.prefill_tokens + times.decode_tokens == 0) return times;
    times.cpu_seconds = process_cpu_seconds() - cpu_begin;
    times.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    return times;
  }

 private:
  std::vector<PageCache*> fill_caches(const PageCacheOptions& options) {
    std::vector<PageCache*> all;
    for (std::unique_ptr<PageCache>& each : caches_) {
      each = std::make_unique<PageCache>(options);
      all.push_back(each.get());
    }
    return all;
  }
  template <class Number = int, class Count>
  Number of_all(const Count& count) const {
    Number sum = 0;
    for (const std::unique_ptr<PageCache>& each : caches_) sum += count(*each);
    return sum;
  }

  Status plain_step(std::vector<Event>& events, StepTimes& times) {
    const Batch& batch = scheduler_.plan(clock_.now(), events);
    if (batch.empty()) return {};
    count_tokens(batch, times);
    masks_.begin(batch);
    NIBBLE_RETURN_IF_ERROR(worker_->forward(batch));
    NIBBLE_RETURN_IF_ERROR(choose(batch));
    return commit(batch, events, times);
  }

  // Each step is planned while the one before it runs. Its forward begins by then too where the worker lets
  // it, else once that one's results are in it. Its tokens are chosen likewise; where the choice looks at
  // that one's tokens, masks are found while the forward runs.
  Status overlapped_step(std::vector<Event>& events, StepTimes& times) {
    if (begun_ == nullptr) NIBBLE_RETURN_IF_ERROR(begin(scheduler_.plan(clock_.now(), events)));
    if (begun_ == nullptr) return {};
    const Batch& batch = *std::exchange(begun_, nullptr);
    if (!std::exchange(chosen_, false)) NIBBLE_RETURN_IF_ERROR(choose(batch));
    count_tokens(batch, times);
    const Batch& ahead = scheduler_.plan_ahead(clock_.now(), events);
    if (!ahead.empty() && worker_->may_begin_behind(ahead)) {
      scheduler_.begin_ahead();
      begun_ = &ahead;
      NIBBLE_RETURN_IF_ERROR(worker_->forward(ahead));
      chosen_ = worker_->may_choose_behind(ahead);
      if (chosen_) NIBBLE_RETURN_IF_ERROR(worker_->choose(ahead));
    }
    NIBBLE_RETURN_IF_ERROR(commit(batch, events, times));
    if (begun_ == nullptr) return begin(ahead);
    if (!chosen_) masks_.begin(ahead);
    return {};
  }

  Status begin(const Batch& batch) {
    if (batch.empty()) return {};
    begun_ = &batch;
    masks_.begin(batch);
    NIBBLE_RETURN_IF_ERROR(worker_->forward(batch));
    chosen_ = worker_->may_choose_behind(batch);
    return chosen_ ? worker_->choose(batch) : Status();
  }

  Status choose(const Batch& batch) {
    masks_.finish();
    return worker_->choose(batch);
  }

  Status commit(const Batch& batch, std::vector<Event>& events, StepTimes& times) {
    NIBBLE_RETURN_IF_ERROR(worker_->finish(batch, results_of(batch)));
    const std::uint64_t accepted = scheduler_.totals().accepted_drafts;
    scheduler_.commit(results_of(batch), events);
    times.decode_tokens += static_cast<int>(scheduler_.totals().accepted_drafts - accepted);
    return {};
  }

  std::span<StepResult> results_of(const Batch& batch) {
    return std::span(results_).first(batch.sequences.size());
  }

  // Drafts count once they hold.
  static void count_tokens(const Batch& batch, StepTimes& times) {
    for (const BatchSequence& sequence : batch.sequences) {
      if (sequence.prefill) {
        times.last_prefill_position =
            std::max(times.last_prefill_position, sequence.first_position + sequence.row_count - 1);
      }
      (sequence.prefill ? times.prefill_tokens : times.decode_tokens) +=
          sequence.row_count - sequence.draft_count;
    }
  }

  ModelInfo info_;
  SystemClock clock_;
  std::unique_ptr<Worker> worker_;
  std::vector<std::unique_ptr<PageCache>> caches_;  // of each owner of sequences
  Scheduler scheduler_;                             // its requests hold pages, so it goes first
  bool plans_ahead_;                                // else each step is planned, run and committed in turn
  MaskThread masks_;                                // looks into the requests, so it goes before them
  std::vector<StepResult> results_;                 // [max_num_seqs]
  const Batch* begun_ = nullptr;                    // the step that begun last and is not finished
  bool chosen_ = false;                             // its tokens
};

}  // namespace

Result<std::unique_ptr<Engine>> Engine::load(const EngineOptions& options,
                                             const std::function<void(double, double)>& progress) {
  return load_engine(options, {}, progress);
}

Result<std::unique_ptr<Engine>> load_engine(const EngineOptions& options,
                                            const std::function<void(EngineChoices&)>& change,
                                            const std::function<void(double, double)>& progress) {
  NIBBLE_ASSIGN(Prepared prepared, prepare(options, change));
  EngineChoices& choices = prepared.choices;
  NIBBLE_ASSIGN(StartedWorker started, start_worker(prepared, options, progress));

  const std::int64_t device_bytes = started.worker->device_bytes();
  ModelInfo info{.name = prepared.location.name,
                 .folder = prepared.location.folder,
                 .architecture = prepared.config.architecture,
                 .vocabulary = static_cast<int>(prepared.config.vocab_size),
                 .max_model_len = choices.scheduler.max_model_len,
                 .kv_tokens = choices.owners * choices.cache.page_count[full_pages] * choices.cache.page_size,
                 .eos_ids = prepared.config.eos_token_ids,
                 .weight_bytes = started.weight_bytes,
                 .threads = started.worker->threads(),
                 .plan = choices.plan,
                 .loaded = device_bytes > 0
                               ? device_choice(device_bytes, choices.plan.memory.total)
                               : mapping_choice(started.worker->mapped_bytes(), started.weight_bytes)};
  return std::unique_ptr<Engine>(
      std::make_unique<SteppedEngine>(std::move(info), choices, std::move(started.worker)));
}

Status Engine::follow(const EngineOptions& options, const Following& following) {
  NIBBLE_ASSIGN(Prepared prepared, prepare(options, {}));
  const auto ready = [&] {
    if (following.ready) following.ready();
  };
  if (following.lost) prepared.links->when_lost(following.lost);
  const bool on_gpu = prepared.choices.plan.device == DeviceKind::cuda;
  if (on_gpu && options.given.random_weights)
    return follow_gpu_worker(prepared.config, {.source = {}, .seed = options.random_weights},
                             prepared.choices.worker, std::move(prepared.links), ready);
  NIBBLE_ASSIGN(WeightSource weights, open_weights(prepared));
  if (on_gpu)
    return follow_gpu_worker(prepared.config, {.source = std::move(weights), .progress = {}},
                             prepared.choices.worker, std::move(prepared.links), ready);
  return CpuWorker::follow(prepared.config, std::move(weights), prepared.choices.worker,
                           std::move(prepared.links), ready);
}

}  // namespace nibble
