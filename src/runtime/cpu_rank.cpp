#include "runtime/cpu_rank.h"

#include "models/delta_mixer.h"
#include "ops/attention/attention_kernels.h"
#include "ops/gated_delta/delta_kernels.h"
#include "ops/latent_attention/latent_kernels.h"

namespace nibble {
namespace {

// Those of the same instructions as attention's, which are chosen by name.
const LatentKernels& latent_kernels_like(const AttentionKernels& attention) {
  for (const LatentKernels& each : latent_kernels()) {
    if (each.name == attention.name && each.supported()) return each;
  }
  return best_latent_kernels();
}

std::string name_in_plan(std::string_view name) { return "cpu_" + std::string(name); }

std::string_view name_of(ExchangeKind exchange) {
  constexpr std::string_view names[] = {"none", "normal", "low_latency"};
  return names[static_cast<std::size_t>(exchange)];
}

// Only prompts meet FP8 weights with its precision.
InputValues activations_in(const Batch& batch, InputValues activations) {
  const bool as_prompts = activations != InputValues::fp8 || batch.of_prompts;
  return as_prompts ? activations : InputValues::bf16;
}

}  // namespace

CpuRank::CpuRank(std::unique_ptr<ThreadPool> threads, std::unique_ptr<Model> model,
                 const WorkerLimits& limits, KvStore kv, StateStore states, RankGroups groups)
    : threads_(std::move(threads)),
      model_(std::move(model)),
      dots_(*limits.dots),
      weight_lines_(limits.weight_lines),
      attention_(*limits.attention),
      latents_(latent_kernels_like(attention_)),
      deltas_(best_delta_kernels()),
      dots_name_(name_in_plan(dots_.name)),
      attention_name_(name_in_plan(attention_.name)),
      latents_name_(name_in_plan(latents_.name)),
      exchange_name_(name_of(limits.exchange)),
      activations_(limits.activations),
      kv_(std::move(kv)),
      states_(std::move(states)),
      groups_(std::move(groups)) {
  positions_.reserve(static_cast<std::size_t>(limits.max_rows));
  logit_rows_.reserve(static_cast<std::size_t>(limits.max_logit_rows));
  for (std::vector<SequenceRows>& rows : sequences_)
    rows.reserve(static_cast<std::size_t>(limits.max_sequences));
  state_rows_.reserve(static_cast<std::size_t>(limits.max_sequences));
  borders_.reserve(static_cast<std::size_t>(limits.max_rows));
  for (std::size_t layer = 0; layer < kv_.layers().size(); ++layer)
    layers_.push_back({.cache = kv_.layers()[layer], .latent = kv_.latents()[layer]});
}

Result<std::unique_ptr<CpuRank>> CpuRank::start(std::unique_ptr<Model> model, const RankPart& part,
                                                const WorkerLimits& limits, RankGroups groups,
                                                const ConversionProgress& progress) {
  auto threads = std::make_unique<ThreadPool>(
      limits.threads, limits.pin_threads ? ThreadPool::Pinning::one_cpu_each : ThreadPool::Pinning::none);
  NIBBLE_RETURN_IF_ERROR(model->reserve({.rows = limits.max_rows,
                                         .logit_rows = limits.max_logit_rows,
                                         .positions = limits.max_positions,
                                         .threads = limits.threads,
                                         .exchange = limits.exchange},
                                        *threads));
  if (limits.dense != DenseFormat::bf16)
    NIBBLE_RETURN_IF_ERROR(model->convert_dense(limits.dense, *threads, progress));
  ModelConfig own = model->config();
  own.num_key_value_heads = part.kv_heads.count;
  const DeltaShape state = with_key_heads(delta_shape(own), part.state_heads.count(part.place));
  own.delta.key_heads = state.key_heads;
  own.delta.value_heads = state.value_heads;
  NIBBLE_ASSIGN(KvStore kv, KvStore::allocate(own, limits.kv_dtype, limits.page_size, limits.page_counts));
  NIBBLE_ASSIGN(StateStore states, StateStore::allocate(own, {.slots = limits.max_sequences,
                                                              .snapshots = limits.max_snapshots,
                                                              .drafts = limits.max_drafts}));
  return std::unique_ptr<CpuRank>(new CpuRank(std::move(threads), std::move(model), limits, std::move(kv),
                                              std::move(states), std::move(groups)));
}

// A step's rows are fewer than its memory was taken for, and each ends at most one chunk.
std::span<const BorderState> CpuRank::borders_of(const BatchSequence& sequence) {
  const std::size_t first = borders_.size();
  for (const StateSnapshot& each : sequence.snapshots)
    borders_.push_back({.position = each.position, .slot = each.slot});
  return std::span(borders_).subspan(first);
}

Status CpuRank::forward(const Batch& batch, float* logits, int most_rows) {
  positions_.clear();
  logit_rows_.clear();
  for (std::vector<SequenceRows>& rows : sequences_) rows.clear();
  state_rows_.clear();
  borders_.clear();
  for (const BatchSequence& sequence : batch.sequences) {
    for (std::size_t group = 0; group < sequences_.size(); ++group) {
      sequences_[group].push_back(
          {sequence.row_begin, sequence.row_count, sequence.first_position, sequence.pages[group]});
    }
    state_rows_.push_back({.row_begin = sequence.row_begin,
                           .row_count = sequence.row_count,
                           .first_position = sequence.first_position,
                           .slot = sequence.state,
                           .kept = borders_of(sequence)});
    if (sequence.resumes >= 0) states_.resume(sequence.state, sequence.resumes, *threads_);
    for (int i = 0; i < sequence.row_count; ++i) positions_.push_back(sequence.first_position + i);
  }
  for (std::size_t layer = 0; layer < layers_.size(); ++layer)
    layers_[layer].sequences = sequences_[static_cast<std::size_t>(kv_.group_of(layer))];
  for (const LogitRow& wanted : batch.logit_rows) logit_rows_.push_back(wanted.row);

  Communicator* const world = groups_.world ? &*groups_.world : nullptr;
  OpContext context{.threads = *threads_,
                    .dots = dots_,
                    .attention = attention_,
                    .deltas = deltas_,
                    .latents = latents_,
                    .activations = activations_in(batch, activations_),
                    .weight_lines = weight_lines_,
                    .times = times_};
  return model_->forward(context,
                         {.tokens = batch.tokens,
                          .positions = positions_,
                          .kv = layers_,
                          .states = states_.layers(),
                          .state_rows = state_rows_,
                          .logit_rows = logit_rows_,
                          .most_rows = most_rows,
                          .ranks = world,
                          .sharers = groups_.sharers ? &*groups_.sharers : world},
                         logits);
}

void CpuRank::add_ran(RanTable& table) const {
  const OpRuns runs = model_->runs();
  table.add({.field = "moe_runner", .value = dots_name_, .form = "", .times = runs.experts});
  table.add({.field = "attention", .value = attention_name_, .form = "", .times = runs.attention});
  table.add({.field = "attention", .value = latents_name_, .form = "latent", .times = runs.latent_attention});
  table.add({.field = "linear_attention",
             .value = "cpu_gated_delta",
             .form = deltas_.name,
             .times = runs.gated_delta});
  for (const std::optional<Communicator>* group : {&groups_.world, &groups_.sharers}) {
    if (!*group) continue;
    for (int i = 0; i < Call::kinds; ++i) {
      const auto kind = static_cast<Call::Kind>(i);
      const bool is_exchange = kind == Call::Kind::dispatch || kind == Call::Kind::combine;
      table.add({.field = is_exchange ? "token_exchange" : "all_reduce",
                 .value = is_exchange ? exchange_name_ : "gather",
                 .form = call_name(kind),
                 .times = (*group)->counts()[static_cast<std::size_t>(i)]});
    }
  }
}

}  // namespace nibble
