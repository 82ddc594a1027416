#include "runtime/worker.h"

#include "base/check.h"

namespace nibble {

Worker::Worker(std::unique_ptr<Model> model, const WorkerLimits& limits, KvStore kv, Buffer logits)
    : model_(std::move(model)),
      activations_(limits.activations),
      threads_(limits.threads),
      kv_(std::move(kv)),
      logits_(std::move(logits)) {
  positions_.reserve(static_cast<std::size_t>(limits.max_rows));
  logit_rows_.reserve(static_cast<std::size_t>(limits.max_logit_rows));
  sequences_.reserve(static_cast<std::size_t>(limits.max_sequences));
  sample_rooms_.resize(static_cast<std::size_t>(limits.max_sequences));
}

Result<std::unique_ptr<Worker>> Worker::start(std::unique_ptr<Model> model, const WorkerLimits& limits) {
  const ModelConfig& config = model->config();
  NIBBLE_RETURN_IF_ERROR(model->reserve({.rows = limits.max_rows, .logit_rows = limits.max_logit_rows}));
  NIBBLE_ASSIGN(KvStore kv, KvStore::allocate(config, limits.kv_dtype, limits.page_size, limits.page_count));
  const std::size_t logit_bytes =
      static_cast<std::size_t>(limits.max_logit_rows * config.vocab_size) * sizeof(float);
  NIBBLE_ASSIGN(Buffer logits, Buffer::allocate(logit_bytes));
  return std::unique_ptr<Worker>(new Worker(std::move(model), limits, std::move(kv), std::move(logits)));
}

std::span<float> Worker::logits_of(int logit_row) {
  const std::int64_t vocabulary = model_->config().vocab_size;
  return {reinterpret_cast<float*>(logits_.data()) + logit_row * vocabulary,
          static_cast<std::size_t>(vocabulary)};
}

Status Worker::run(const Batch& batch, std::vector<StepResult>& results) {
  positions_.clear();
  logit_rows_.clear();
  sequences_.clear();
  for (const BatchSequence& sequence : batch.sequences) {
    sequences_.push_back({sequence.row_begin, sequence.row_count, sequence.first_position, sequence.pages});
    for (int i = 0; i < sequence.row_count; ++i) positions_.push_back(sequence.first_position + i);
  }
  for (const LogitRow& wanted : batch.logit_rows) logit_rows_.push_back(wanted.row);

  OpContext context{.threads = threads_, .activations = activations_};
  model_->forward(context,
                  {.tokens = batch.tokens,
                   .positions = positions_,
                   .sequences = sequences_,
                   .kv = kv_.layers(),
                   .logit_rows = logit_rows_},
                  logits_of(0).data());
  NIBBLE_RETURN_IF_ERROR(model_->intact());

  results.assign(batch.sequences.size(), StepResult{});
  threads_.parallel_for(static_cast<int>(results.size()), [&](int begin, int end) {
    for (int i = begin; i < end; ++i)
      sample_sequence(batch, static_cast<std::size_t>(i), results[static_cast<std::size_t>(i)]);
  });
  return {};
}

void Worker::sample_sequence(const Batch& batch, std::size_t index, StepResult& result) {
  const BatchSequence& sequence = batch.sequences[index];
  const SamplingParams& asked = *sequence.sampling;
  for (int i = 0; i < sequence.logit_count; ++i) {
    const int logit_row = sequence.logit_begin + i;
    const LogitRow& wanted = batch.logit_rows[static_cast<std::size_t>(logit_row)];
    const std::span<const float> logits = logits_of(logit_row);
    const RowStatistics statistics = row_statistics(logits);
    if (!statistics.finite) {
      result.finite = false;
      return;
    }
    if (wanted.target >= 0) result.target_logprobs.push_back(logprob(logits, statistics, wanted.target));
    if (!sequence.samples || i + 1 < sequence.logit_count) continue;

    SampleWorkspace& room = sample_rooms_[index];
    result.token =
        sample(logits, statistics,
               {.temperature = asked.temperature,
                .top_k = asked.top_k,
                .top_p = asked.top_p,
                .min_p = asked.min_p,
                .seed = asked.seed,
                .choice = asked.choice,
                .position = static_cast<std::uint32_t>(sequence.first_position + sequence.row_count)},
               room);
    result.logprob = logprob(logits, statistics, result.token);
    if (asked.logprobs <= 0) continue;
    likeliest(logits, asked.logprobs, room.candidates);
    for (const TokenId id : room.candidates) result.top.push_back({id, logprob(logits, statistics, id)});
  }
}

}  // namespace nibble
