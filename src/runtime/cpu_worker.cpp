#include "runtime/worker.h"

#include <algorithm>

#include "base/check.h"

namespace nibble {

Worker::Worker(std::unique_ptr<ThreadPool> threads, std::unique_ptr<Model> model, const WorkerLimits& limits,
               KvStore kv, Buffer logits)
    : threads_(std::move(threads)),
      model_(std::move(model)),
      dots_(*limits.dots),
      attention_(*limits.attention),
      activations_(limits.activations),
      kv_(std::move(kv)),
      logits_(std::move(logits)) {
  positions_.reserve(static_cast<std::size_t>(limits.max_rows));
  logit_rows_.reserve(static_cast<std::size_t>(limits.max_logit_rows));
  for (std::vector<SequenceRows>& rows : sequences_)
    rows.reserve(static_cast<std::size_t>(limits.max_sequences));
  for (const KvLayer& layer : kv_.layers()) layers_.push_back({.cache = layer});
  sample_rooms_.resize(static_cast<std::size_t>(threads_->size()));
  for (SampleRoom& room : sample_rooms_) {
    room.sampling.reserve(static_cast<std::size_t>(model_->config().vocab_size));
    room.changes.reserve(static_cast<std::size_t>(model_->config().vocab_size));
  }
}

Result<std::unique_ptr<Worker>> Worker::start(std::unique_ptr<Model> model, const WorkerLimits& limits,
                                              const ConversionProgress& progress) {
  const ModelConfig& config = model->config();
  auto threads = std::make_unique<ThreadPool>(limits.threads);
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
      new Worker(std::move(threads), std::move(model), limits, std::move(kv), std::move(logits)));
}

std::span<float> Worker::logits_of(int logit_row) {
  const std::int64_t vocabulary = model_->config().vocab_size;
  return {reinterpret_cast<float*>(logits_.data()) + logit_row * vocabulary,
          static_cast<std::size_t>(vocabulary)};
}

Status Worker::run(const Batch& batch, std::span<StepResult> results) {
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
                    .times = times_};
  model_->forward(context,
                  {.tokens = batch.tokens, .positions = positions_, .kv = layers_, .logit_rows = logit_rows_},
                  logits_of(0).data());
  NIBBLE_RETURN_IF_ERROR(model_->intact());

  const TimedScope scope(times_, "sampling");
  // Sequences are few and rooms are large, so each thread has a room and takes an equal run of sequences.
  const int shares = threads_->size(), sequences = static_cast<int>(results.size());
  threads_->parallel_for(shares, [&](int share_begin, int share_end) {
    for (int share = share_begin; share < share_end; ++share) {
      for (int i = sequences * share / shares; i < sequences * (share + 1) / shares; ++i) {
        const std::size_t index = static_cast<std::size_t>(i);
        results[index] =
            sample_sequence(batch, batch.sequences[index], sample_rooms_[static_cast<std::size_t>(share)]);
      }
    }
  });
  return {};
}

TokenId Worker::choose(const BatchSequence& sequence, std::span<const float> logits, TokenId first,
                       SampleRoom& room) {
  const SamplingParams& asked = *sequence.sampling;
  const bool may_end = static_cast<int>(sequence.answer.size()) >= asked.min_tokens;
  const LogitChanges changes{.bias = asked.logit_bias,
                             .repetition_penalty = asked.repetition_penalty,
                             .frequency_penalty = asked.frequency_penalty,
                             .presence_penalty = asked.presence_penalty,
                             .prompt = sequence.prompt,
                             .answer = sequence.answer,
                             .banned = may_end ? std::span<const TokenId>() : asked.stop_ids};
  if (!changes.none()) {
    logits = change_logits(logits, changes, room.changes);
    first = likeliest_token(logits);
  }
  return sample(logits, first,
                {.temperature = asked.temperature,
                 .top_k = asked.top_k,
                 .top_p = asked.top_p,
                 .min_p = asked.min_p,
                 .seed = asked.seed,
                 .choice = asked.choice,
                 .position = static_cast<std::uint32_t>(sequence.first_position + sequence.row_count)},
                room.sampling);
}

StepResult Worker::sample_sequence(const Batch& batch, const BatchSequence& sequence, SampleRoom& room) {
  const auto fill_top = [&](std::span<const float> logits, const RowStatistics& statistics,
                            std::span<TokenLogprob> top) {
    if (top.empty()) return;
    std::vector<TokenId>& ids = room.sampling.candidates;
    likeliest(logits, static_cast<int>(top.size()), ids);
    std::transform(ids.begin(), ids.end(), top.begin(), [&](TokenId id) {
      return TokenLogprob{id, logprob(logits, statistics, id)};
    });
  };
  StepResult result;
  std::size_t targets = 0;
  for (int i = 0; i < sequence.logit_count; ++i) {
    const int logit_row = sequence.logit_begin + i;
    const LogitRow& wanted = batch.logit_rows[static_cast<std::size_t>(logit_row)];
    const std::span<const float> logits = logits_of(logit_row);
    const RowStatistics statistics = row_statistics(logits);
    if (!statistics.finite) return {.finite = false};
    if (wanted.target >= 0) {
      const std::size_t top = static_cast<std::size_t>(sequence.sampling->prompt_top_logprobs);
      fill_top(logits, statistics, sequence.target_top.subspan(targets * top, top));
      sequence.target_logprobs[targets++] = logprob(logits, statistics, wanted.target);
    }
    if (!sequence.samples || i + 1 < sequence.logit_count) continue;
    result.token = choose(sequence, logits, statistics.likeliest, room);
    result.logprob = logprob(logits, statistics, result.token);
    fill_top(logits, statistics, sequence.top);
  }
  return result;
}

}  // namespace nibble
