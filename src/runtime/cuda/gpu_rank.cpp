#include "runtime/cuda/gpu_rank.h"

#include <algorithm>
#include <string>
#include <utility>

#include "base/check.h"
#include "ops/cuda/stuck.h"
#include "ops/peer_gather/cuda/merge_parts_cuda.h"
#include "ops/peer_gather/cuda/peer_gather_cuda.h"
#include "runtime/owner_steps.h"
#include "tensor/cuda_check.h"

namespace nibble {
namespace {

// Whether each sequence has a row of its own and those of its drafts, in their order, and asks for all their
// logits.
bool only_decodes(const Batch& batch) {
  if (batch.logit_rows.size() != batch.tokens.size()) return false;
  int rows = 0;
  for (const BatchSequence& sequence : batch.sequences) {
    if (sequence.row_count != 1 + sequence.draft_count || sequence.row_begin != rows) return false;
    rows += sequence.row_count;
  }
  if (rows != static_cast<int>(batch.tokens.size())) return false;
  for (int row = 0; row < rows; ++row) {
    if (batch.logit_rows[static_cast<std::size_t>(row)].row != row) return false;
  }
  return true;
}

}  // namespace

CudaForwardLimits forward_limits(const WorkerLimits& limits) {
  return {.rows = limits.max_rows,
          .logit_rows = limits.max_logit_rows,
          .sequences = limits.max_decode_rows(),
          .many_tokens_from = limits.many_tokens_from,
          .exchange = limits.exchange,
          .rounds_prompts = limits.activations == InputValues::fp8};
}

GpuRank::GpuRank(int device, const CudaPlace& place, Told told, std::unique_ptr<CudaStream> stream,
                 std::unique_ptr<CudaModel> model, Caches caches)
    : device_(device),
      room_(place.room),
      merge_(place.merge),
      is_first_(place.part.rank == 0),
      stuck_(std::move(told.stuck)),
      launches_(std::move(told.launches)),
      stream_(std::move(stream)),
      model_(std::move(model)),
      caches_(std::move(caches)) {
  model_->use_cache(caches_.kv.layers(), caches_.kv.groups(), caches_.kv.page_size());
  if (model_->keeps_states()) model_->use_states(caches_.states.layers());
  model_->use_latents(caches_.kv.latents(), caches_.kv.groups(), caches_.kv.page_size());
}

Result<std::unique_ptr<GpuRank>> GpuRank::load(const ModelConfig& config, const CudaPlace& place, int device,
                                               WeightFeed& feed, const WorkerLimits& limits) {
  cuda_check(cudaSetDevice(device));
  Told told;
  NIBBLE_ASSIGN(told.stuck, PinnedBuffer::allocate(sizeof(std::uint32_t)));
  *told.stuck.at<std::uint32_t>(0) = static_cast<std::uint32_t>(Stuck::nobody);
  told.launches = std::make_unique<LaunchCounts>();
  auto stream = std::make_unique<CudaStream>();
  const WorkerLimits of_steps = limits_of_owner(limits);
  CudaForwardLimits forward = forward_limits(of_steps);
  forward.stuck = told.stuck.at<std::uint32_t>(0);
  forward.launches = told.launches.get();
  NIBBLE_ASSIGN(std::unique_ptr<CudaModel> model,
                load_cuda_model(config, forward, place, feed, stream->get()));
  const ModelConfig own = config_of_caches(config, place.part);
  Caches caches;
  NIBBLE_ASSIGN(caches.kv, CudaKvStore::allocate(own, limits.kv_dtype, limits.page_size, limits.page_counts));
  NIBBLE_ASSIGN(caches.states, CudaStateStore::allocate(own, {.slots = of_steps.max_sequences,
                                                              .snapshots = limits.max_snapshots,
                                                              .drafts = limits.max_drafts}));
  return std::unique_ptr<GpuRank>(
      new GpuRank(device, place, std::move(told), std::move(stream), std::move(model), std::move(caches)));
}

void GpuRank::use_device() const { cuda_check(cudaSetDevice(device_)); }

Status GpuRank::prepare(const SampledToken* chosen, float* logits, const WorkerLimits& limits) {
  logits_ = logits;
  rounds_prompts_ = forward_limits(limits).rounds_prompts;
  const WorkerLimits of_steps = limits_of_owner(limits);
  NIBBLE_ASSIGN(inputs_, StepInputs::allocate(of_steps, *model_, chosen));
  if (!limits.graphs) return {};
  return graphs_.capture({*model_, inputs_, logits_, *launches_, stream_->get()},
                         {.all = of_steps.max_decode_rows(),
                          .with_drafts = of_steps.max_drafts > 0 ? of_steps.max_drafts + 1 : 0});
}

void GpuRank::forget_ran() {
  *launches_ = {};
  graph_steps_ = eager_steps_ = 0;
}

Status GpuRank::forward(const Batch& batch, int most_rows, TimeTable* times) {
  const int rows = static_cast<int>(batch.tokens.size()),
            sequences = static_cast<int>(batch.sequences.size());
  const bool of_prompts = rounds_prompts_ && batch.of_prompts, decodes = !of_prompts && only_decodes(batch);
  // All ranks have as many places, whether they run a graph of that size or launches.
  const int size = graphs_.size_for(most_rows);
  // A rank without sequences runs a row that is nobody's.
  newest_shape_ = decodes ? decode_shape(size > 0 ? size : std::max(rows, 1), rows > sequences)
                          : StepShape{.rows = rows,
                                      .sequences = sequences,
                                      .logit_rows = static_cast<int>(batch.logit_rows.size()),
                                      .of_prompts = of_prompts};
  newest_shape_.most_rows = std::max(size, most_rows);
  {
    const TimedScope scope(times, "inputs");
    inputs_.fill(batch, newest_shape_);
    inputs_.copy(stream_->get());
    for (const BatchSequence& sequence : batch.sequences) {
      if (sequence.resumes >= 0) caches_.states.resume(sequence.state, sequence.resumes, stream_->get());
    }
  }
  // Graphs meet those of other ranks: where one has too many rows for any, none runs one.
  const DecodeGraphs::Captured* const graph =
      size > 0 && newest_shape_.one_row_each && inputs_.is_one_run()
          ? graphs_.find({newest_shape_.rows, inputs_.later_clusters(), newest_shape_.checks_drafts})
          : nullptr;
  const TimedScope scope(times, graph != nullptr ? "launch of a decode graph" : "launches without graph");
  if (graph == nullptr) {
    ++eager_steps_;
    return model_->forward(inputs_.forward_input(newest_shape_), logits_, stream_->get());
  }
  graph->launch(stream_->get());
  ++graph_steps_;
  launches_->add(graph->launches);
  return {};
}

Status GpuRank::share_tokens(const SampledToken* from, SampledToken* to, int rows) {
  const std::size_t bytes = static_cast<std::size_t>(rows) * sizeof(SampledToken),
                    own = is_first_ ? bytes : 0;
  if (!is_first_) from = nullptr;
  if (merge_ != nullptr)
    return merge_columns_cuda(*merge_, {.from = from, .to = to, .rows = 1, .row_bytes = bytes, .bytes = own},
                              stream_->get());
  if (room_ == nullptr) return {};
  return gather_columns_cuda(*room_, {.from = from, .to = to, .bytes = own, .rows = 1}, stream_->get());
}

Status GpuRank::run_eager(const Batch& batch, float* logits) {
  const StepShape shape = decode_shape(static_cast<int>(batch.sequences.size()));
  inputs_.fill(batch, shape);
  inputs_.copy(stream_->get());
  return model_->forward(inputs_.forward_input(shape), logits, stream_->get());
}

void GpuRank::require(cudaError_t error) const {
  if (error == cudaSuccess) return;
  const std::string_view stuck = stuck_name(*reinterpret_cast<const Stuck*>(stuck_.data()));
  check_failed("the GPU's step ended",
               std::string(cudaGetErrorName(error)) + ": " + cudaGetErrorString(error) +
                   (stuck.empty() ? "" : "; a kernel gave up waiting for " + std::string(stuck)),
               SourceLocation::current());
}

}  // namespace nibble
