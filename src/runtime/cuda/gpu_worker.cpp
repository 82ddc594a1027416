#include "runtime/cuda/gpu_worker.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "base/check.h"
#include "ops/cuda/stuck.h"
#include "ops/sample/cuda/unlike_logits_cuda.h"
#include "tensor/cuda_check.h"

namespace nibble {
namespace {

// Whether each sequence has row i of its own and asks for its logits.
bool has_one_row_each(const Batch& batch) {
  if (batch.tokens.size() != batch.sequences.size() || batch.logit_rows.size() != batch.sequences.size())
    return false;
  for (std::size_t i = 0; i < batch.sequences.size(); ++i) {
    const BatchSequence& sequence = batch.sequences[i];
    if (sequence.row_count != 1 || sequence.row_begin != static_cast<int>(i) ||
        batch.logit_rows[i].row != static_cast<int>(i))
      return false;
  }
  return true;
}

GpuSampler::Place other(GpuSampler::Place place) {
  return place == GpuSampler::first ? GpuSampler::second : GpuSampler::first;
}

std::int64_t free_device_bytes() {
  std::size_t available = 0, all = 0;
  cuda_check(cudaMemGetInfo(&available, &all));
  return static_cast<std::int64_t>(available);
}

}  // namespace

GpuWorker::GpuWorker(Place place, std::unique_ptr<CudaModel> model, CudaKvStore kv, StepInputs inputs,
                     GpuSampler sampler)
    : device_(place.device),
      stuck_(std::move(place.stuck)),
      stream_(std::move(place.stream)),
      model_(std::move(model)),
      kv_(std::move(kv)),
      inputs_(std::move(inputs)),
      sampler_(std::move(sampler)) {
  model_->use_cache(kv_.layers(), kv_.groups(), kv_.page_size());
  for (CudaEvent& done : done_) done = new_event();
}

Result<std::unique_ptr<Worker>> GpuWorker::start(const ModelConfig& config, WeightFeed& feed,
                                                 const WorkerLimits& limits) {
  cuda_check(cudaSetDevice(limits.device));
  NIBBLE_ASSIGN(PinnedBuffer stuck, PinnedBuffer::allocate(sizeof(std::uint32_t)));
  *stuck.at<std::uint32_t>(0) = static_cast<std::uint32_t>(Stuck::nobody);
  auto stream = std::make_unique<CudaStream>();
  const std::int64_t free_before = free_device_bytes();
  const CudaForwardLimits forward{.rows = limits.max_rows,
                                  .logit_rows = limits.max_logit_rows,
                                  .sequences = limits.max_sequences,
                                  .many_tokens_from = limits.many_tokens_from,
                                  .stuck = stuck.at<std::uint32_t>(0)};
  NIBBLE_ASSIGN(std::unique_ptr<CudaModel> model, load_cuda_model(config, forward, feed, stream->get()));
  NIBBLE_ASSIGN(CudaKvStore kv,
                CudaKvStore::allocate(config, limits.kv_dtype, limits.page_size, limits.page_counts));
  NIBBLE_ASSIGN(GpuSampler sampler, GpuSampler::allocate(limits, static_cast<int>(config.vocab_size)));
  NIBBLE_ASSIGN(StepInputs inputs, StepInputs::allocate(limits, model->heads(), sampler.chosen()));
  Place place{.device = limits.device, .stuck = std::move(stuck), .stream = std::move(stream)};
  std::unique_ptr<GpuWorker> worker(new GpuWorker(std::move(place), std::move(model), std::move(kv),
                                                  std::move(inputs), std::move(sampler)));
  if (limits.graphs) {
    NIBBLE_RETURN_IF_ERROR(worker->graphs_.capture(*worker->model_, worker->inputs_,
                                                   worker->sampler_.logits(), limits.max_sequences,
                                                   worker->stream_->get()));
    NIBBLE_RETURN_IF_ERROR(worker->hold_graphs_to_eager_bits(limits));
  }
  worker->stream_->wait();
  worker->device_bytes_ = free_before - free_device_bytes();
  return std::unique_ptr<Worker>(std::move(worker));
}

Status GpuWorker::forward(const Batch& batch) {
  NIBBLE_CHECK(begun_ < 2 && chosen_,
               "a step begins once the one before it is chosen and the one before that finished");
  // Every thread begins with device 0, and steps may run on another one than the worker was started on.
  cuda_check(cudaSetDevice(device_));
  const int sequences = static_cast<int>(batch.sequences.size());
  const bool one_row_each = has_one_row_each(batch);
  const int graph = one_row_each ? graphs_.size_for(sequences) : 0;
  const StepShape shape = graph > 0      ? decode_shape(graph)
                          : one_row_each ? decode_shape(sequences)
                                         : StepShape{.rows = static_cast<int>(batch.tokens.size()),
                                                     .sequences = sequences,
                                                     .logit_rows = static_cast<int>(batch.logit_rows.size())};
  {
    const TimedScope scope(times_, "inputs");
    inputs_.fill(batch, shape);
    inputs_.copy(stream_->get());
  }
  const TimedScope scope(times_, graph > 0 ? "launch of a decode graph" : "launches without graph");
  newest_ = other(newest_);
  newest_shape_ = shape;
  chosen_ = false;
  ++begun_;
  return queue_forward(shape, graph > 0 && inputs_.is_one_run());
}

Status GpuWorker::choose(const Batch& batch) {
  NIBBLE_CHECK(!chosen_, "a step's tokens are chosen once");
  cuda_check(cudaSetDevice(device_));
  const TimedScope scope(times_, "launches of sampling");
  NIBBLE_RETURN_IF_ERROR(sampler_.queue(batch, inputs_.params(newest_shape_), inputs_.targets(newest_shape_),
                                        newest_, stream_->get()));
  cuda_check(cudaEventRecord(done_[newest_].get(), stream_->get()));
  chosen_ = true;
  return {};
}

Status GpuWorker::finish(const Batch& batch, std::span<StepResult> results) {
  NIBBLE_CHECK(begun_ > (chosen_ ? 0 : 1) && results.size() == batch.sequences.size(),
               "one result a sequence");
  const GpuSampler::Place oldest = begun_ == 2 ? other(newest_) : newest_;
  {
    const TimedScope scope(times_, "waiting for the GPU");
    require(cudaEventSynchronize(done_[oldest].get()));
  }
  sampler_.collect(batch, oldest, results);
  --begun_;
  return {};
}

void GpuWorker::require(cudaError_t error) const {
  if (error == cudaSuccess) return;
  const std::string_view stuck = stuck_name(*reinterpret_cast<const Stuck*>(stuck_.data()));
  check_failed("the GPU's step ended",
               std::string(cudaGetErrorName(error)) + ": " + cudaGetErrorString(error) +
                   (stuck.empty() ? "" : "; a kernel gave up waiting for " + std::string(stuck)),
               SourceLocation::current());
}

// A token that the host samples is nowhere on the device.
bool GpuWorker::may_begin_behind(const Batch&) const { return sampler_.is_gpus_alone(newest_); }

// Penalties and masks look at the tokens themselves.
bool GpuWorker::may_choose_behind(const Batch& next) const {
  return std::none_of(next.sequences.begin(), next.sequences.end(), [](const BatchSequence& sequence) {
    return sequence.samples && (sequence.constrained != nullptr || !logit_changes_of(sequence).none());
  });
}

Status GpuWorker::queue_forward(const StepShape& shape, bool in_graph) {
  if (!in_graph) return model_->forward(inputs_.forward_input(shape), sampler_.logits(), stream_->get());
  graphs_.graph_of(shape.sequences, inputs_.has_short_contexts()).launch(stream_->get());
  return {};
}

Status GpuWorker::hold_graphs_to_eager_bits(const WorkerLimits& limits) {
  const bool windowed = limits.page_counts[window_pages] > 0;
  const int pages = windowed ? *std::min_element(limits.page_counts.begin(), limits.page_counts.end())
                             : limits.page_counts[full_pages];
  const std::size_t vocabulary = static_cast<std::size_t>(model_->config().vocab_size);
  const std::span<const DecodeGraphs::Captured> graphs = graphs_.all();
  std::vector<std::uint32_t> unlike(graphs.size());
  NIBBLE_ASSIGN(DeviceBuffer counts, DeviceBuffer::allocate(unlike.size() * sizeof(unlike[0])));
  counts.fill(0);
  for (std::size_t at = 0; at < graphs.size(); ++at) {
    const int size = graphs[at].size;
    // Tokens of different ids at the first positions of pages that hold nothing yet.
    Batch batch;
    std::vector<PageId> tables(static_cast<std::size_t>(size));
    const SamplingParams greedy{.temperature = 0};
    for (int i = 0; i < size; ++i) {
      tables[static_cast<std::size_t>(i)] = i % pages;
      const std::span<const PageId> table(&tables[static_cast<std::size_t>(i)], 1);
      batch.tokens.push_back(static_cast<TokenId>(i * 7919 % model_->config().vocab_size));
      batch.sequences.push_back({.row_begin = i,
                                 .row_count = 1,
                                 .first_position = i / pages % limits.page_size,
                                 .pages = {table, windowed ? table : std::span<const PageId>()},
                                 .sampling = &greedy,
                                 .logit_begin = i,
                                 .logit_count = 1,
                                 .samples = true});
      batch.logit_rows.push_back({.row = i});
    }
    inputs_.fill(batch, decode_shape(size));
    inputs_.copy(stream_->get());
    NIBBLE_RETURN_IF_ERROR(
        model_->forward(inputs_.forward_input(decode_shape(size)), sampler_.spare_logits(), stream_->get()));
    // What the graph before this one has left might be right.
    cuda_check(cudaMemsetAsync(sampler_.logits(), 0xff,
                               static_cast<std::size_t>(size) * vocabulary * sizeof(float), stream_->get()));
    graphs[at].launch(stream_->get());
    count_unlike_logits_cuda(sampler_.spare_logits(), sampler_.logits(),
                             static_cast<std::size_t>(size) * vocabulary, counts.as<std::uint32_t>() + at,
                             stream_->get());
    stream_->wait();  // the next size's inputs take the place of these
  }
  counts.copy_to(std::span(unlike));
  for (std::size_t at = 0; at < graphs.size(); ++at) {
    if (unlike[at] == 0) continue;
    return internal_error("the CUDA graph of " + std::to_string(graphs[at].size) + " sequences" +
                          (graphs[at].short_contexts ? " with short contexts" : "") +
                          " gives other bits than its launches one by one in " + std::to_string(unlike[at]) +
                          " logits; --enforce-eager runs without graphs");
  }
  return {};
}

}  // namespace nibble
