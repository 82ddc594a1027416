#include "runtime/cpu_worker.h"

#include <algorithm>

#include "base/check.h"

namespace nibble {

CpuWorker::CpuWorker(std::unique_ptr<ThreadPool> threads, std::unique_ptr<Model> model,
                     const WorkerLimits& limits, KvStore kv, Buffer logits)
    : threads_(std::move(threads)),
      model_(std::move(model)),
      dots_(*limits.dots),
      weight_lines_(limits.weight_lines),
      attention_(*limits.attention),
      activations_(limits.activations),
      kv_(std::move(kv)),
      logits_(std::move(logits)) {
  positions_.reserve(static_cast<std::size_t>(limits.max_rows));
  logit_rows_.reserve(static_cast<std::size_t>(limits.max_logit_rows));
  for (std::vector<SequenceRows>& rows : sequences_)
    rows.reserve(static_cast<std::size_t>(limits.max_sequences));
  for (const KvLayer& layer : kv_.layers()) layers_.push_back({.cache = layer});
  for (int i = 0; i < threads_->size(); ++i) samplers_.emplace_back(model_->config().vocab_size);
}

Result<std::unique_ptr<Worker>> CpuWorker::start(std::unique_ptr<Model> model, const WorkerLimits& limits,
                                                 const ConversionProgress& progress) {
  const ModelConfig& config = model->config();
  auto threads = std::make_unique<ThreadPool>(
      limits.threads, limits.pin_threads ? ThreadPool::Pinning::one_cpu_each : ThreadPool::Pinning::none);
  NIBBLE_RETURN_IF_ERROR(model->reserve({.rows = limits.max_rows,
                                         .logit_rows = limits.max_logit_rows,
                                         .positions = limits.max_positions,
                                         .threads = limits.threads},
                                        *threads));
  if (limits.dense != DenseFormat::bf16)
    NIBBLE_RETURN_IF_ERROR(model->convert_dense(limits.dense, *threads, progress));
  NIBBLE_ASSIGN(KvStore kv, KvStore::allocate(config, limits.kv_dtype, limits.page_size, limits.page_counts));
  const std::size_t logit_bytes =
      static_cast<std::size_t>(limits.max_logit_rows * config.vocab_size) * sizeof(float);
  NIBBLE_ASSIGN(Buffer logits, Buffer::allocate(logit_bytes));
  return std::unique_ptr<Worker>(
      new CpuWorker(std::move(threads), std::move(model), limits, std::move(kv), std::move(logits)));
}

const float* CpuWorker::logits_of(int logit_row) const {
  return reinterpret_cast<const float*>(logits_.data()) + logit_row * model_->config().vocab_size;
}

Status CpuWorker::run(const Batch& batch, std::span<StepResult> results) {
  NIBBLE_CHECK(results.size() == batch.sequences.size(), "one result a sequence");
  positions_.clear();
  logit_rows_.clear();
  for (std::vector<SequenceRows>& rows : sequences_) rows.clear();
  for (const BatchSequence& sequence : batch.sequences) {
    for (std::size_t group = 0; group < sequences_.size(); ++group) {
      sequences_[group].push_back(
          {sequence.row_begin, sequence.row_count, sequence.first_position, sequence.pages[group]});
    }
    for (int i = 0; i < sequence.row_count; ++i) positions_.push_back(sequence.first_position + i);
  }
  for (std::size_t layer = 0; layer < layers_.size(); ++layer)
    layers_[layer].sequences = sequences_[static_cast<std::size_t>(kv_.group_of(layer))];
  for (const LogitRow& wanted : batch.logit_rows) logit_rows_.push_back(wanted.row);

  OpContext context{.threads = *threads_,
                    .dots = dots_,
                    .attention = attention_,
                    .activations = activations_,
                    .weight_lines = weight_lines_,
                    .times = times_};
  model_->forward(context,
                  {.tokens = batch.tokens, .positions = positions_, .kv = layers_, .logit_rows = logit_rows_},
                  reinterpret_cast<float*>(logits_.data()));
  NIBBLE_RETURN_IF_ERROR(model_->intact());

  const TimedScope scope(times_, "sampling");
  // Sequences are few and rooms are large, so each thread has a room and takes an equal run of sequences.
  const int shares = threads_->size(), sequences = static_cast<int>(results.size());
  threads_->parallel_for(shares, [&](int share_begin, int share_end) {
    for (int share = share_begin; share < share_end; ++share) {
      for (int i = sequences * share / shares; i < sequences * (share + 1) / shares; ++i) {
        const BatchSequence& sequence = batch.sequences[static_cast<std::size_t>(i)];
        results[static_cast<std::size_t>(i)] = samplers_[static_cast<std::size_t>(share)].sample(
            batch, sequence, logits_of(sequence.logit_begin));
      }
    }
  });
  return {};
}

}  // namespace nibble
