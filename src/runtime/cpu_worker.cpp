#include "runtime/cpu_worker.h"

#include <algorithm>

#include "base/check.h"
#include "models/model_traits.h"

namespace nibble {

namespace {

// Parts of the model with a place among the ranks each; none of one rank.
Result<std::vector<std::optional<Communicator>>> places_of(const ModelTraits& traits,
                                                           const WorkerLimits& limits,
                                                           const PeerWatch* watch) {
  std::vector<std::optional<Communicator>> places(static_cast<std::size_t>(limits.ranks));
  if (limits.ranks == 1) return places;
  NIBBLE_ASSIGN(const std::vector<Group> world,
                groups_of_world(limits.ranks, limits.ranks, GroupShape::neighbours));
  // Steps come when requests do, so a first step has no deadline of its own.
  NIBBLE_ASSIGN(std::vector<Communicator> members,
                communicators_of(world[0], static_cast<std::size_t>(rank_slot_bytes(traits)),
                                 {.deadline = limits.rank_deadline,
                                  .first_deadline = limits.rank_deadline,
                                  .watch = watch,
                                  .stillness = limits.rank_stillness}));
  for (std::size_t i = 0; i < places.size(); ++i) places[i].emplace(std::move(members[i]));
  return places;
}

}  // namespace

CpuWorker::CpuWorker(std::vector<std::unique_ptr<CpuRank>> ranks, std::unique_ptr<RankWatch> watch,
                     const WorkerLimits& limits, Buffer logits)
    : watch_(std::move(watch)), ranks_(std::move(ranks)), logits_(std::move(logits)) {
  for (int i = 0; i < first().threads().size(); ++i)
    samplers_.emplace_back(first().model().config().vocab_size);
  results_.reserve(static_cast<std::size_t>(limits.max_sequences));
  if (ranks_.size() == 1) return;
  const RankThreads::Patience patience{.deadline = limits.rank_deadline + std::chrono::seconds(1),
                                       .watch = watch_.get(),
                                       .stillness = limits.rank_stillness};
  rank_threads_.emplace(static_cast<int>(ranks_.size()), patience, [this](int rank) {
    watch_->take_seat(rank);
    float* whole = rank == 0 ? reinterpret_cast<float*>(logits_.data()) : nullptr;
    return ranks_[static_cast<std::size_t>(rank)]->forward(*batch_, whole);
  });
}

Result<std::unique_ptr<Worker>> CpuWorker::start(const ModelConfig& config, WeightSource weights,
                                                 const WorkerLimits& limits,
                                                 const ConversionProgress& progress) {
  NIBBLE_ASSIGN(const ModelTraits traits, traits_of(config, {}));
  std::unique_ptr<RankWatch> watch = limits.ranks > 1 ? std::make_unique<RankWatch>() : nullptr;
  NIBBLE_ASSIGN(std::vector<std::optional<Communicator>> places, places_of(traits, limits, watch.get()));
  const auto source = std::make_shared<const WeightSource>(std::move(weights));
  WorkerLimits own = limits;
  std::vector<std::unique_ptr<CpuRank>> ranks;
  for (int rank = 0; rank < limits.ranks; ++rank) {
    const RankPart part = rank_part(traits, limits.ranks, limits.expert_ranks, rank);
    if (limits.ranks > 1) own.threads = threads_of_rank(limits.threads, limits.ranks, rank);
    NIBBLE_ASSIGN(std::unique_ptr<Model> model, bind_model(config, source, part));
    NIBBLE_ASSIGN(
        std::unique_ptr<CpuRank> started,
        CpuRank::start(std::move(model), part, own, std::move(places[static_cast<std::size_t>(rank)]),
                       rank == 0 ? progress : ConversionProgress()));
    if (watch != nullptr) watch->add_workers(rank, started->threads());
    ranks.push_back(std::move(started));
  }
  return of(std::move(ranks), std::move(watch), limits);
}

Result<std::unique_ptr<Worker>> CpuWorker::start(std::unique_ptr<Model> model, const WorkerLimits& limits,
                                                 const ConversionProgress& progress) {
  NIBBLE_CHECK(limits.ranks == 1);
  NIBBLE_ASSIGN(const ModelTraits traits, traits_of(model->config(), {}));
  std::vector<std::unique_ptr<CpuRank>> ranks;
  NIBBLE_ASSIGN(std::unique_ptr<CpuRank> started,
                CpuRank::start(std::move(model), rank_part(traits, 1, 1, 0), limits, std::nullopt, progress));
  ranks.push_back(std::move(started));
  return of(std::move(ranks), nullptr, limits);
}

Result<std::unique_ptr<Worker>> CpuWorker::of(std::vector<std::unique_ptr<CpuRank>> ranks,
                                              std::unique_ptr<RankWatch> watch, const WorkerLimits& limits) {
  const std::size_t logit_bytes =
      static_cast<std::size_t>(limits.max_logit_rows * ranks[0]->model().config().vocab_size) * sizeof(float);
  NIBBLE_ASSIGN(Buffer logits, Buffer::allocate(logit_bytes));
  return std::unique_ptr<Worker>(
      new CpuWorker(std::move(ranks), std::move(watch), limits, std::move(logits)));
}

RanTable CpuWorker::ran() const {
  RanTable table;
  for (const std::unique_ptr<CpuRank>& rank : ranks_) rank->add_ran(table);
  return table;
}

int CpuWorker::threads() const {
  int all = 0;
  for (const std::unique_ptr<CpuRank>& rank : ranks_) all += rank->threads().size();
  return all;
}

const float* CpuWorker::logits_of(int logit_row) const {
  return reinterpret_cast<const float*>(logits_.data()) + logit_row * first().model().config().vocab_size;
}

Status CpuWorker::forward(const Batch& batch) {
  batch_ = &batch;
  NIBBLE_RETURN_IF_ERROR(rank_threads_ ? rank_threads_->run()
                                       : first().forward(batch, reinterpret_cast<float*>(logits_.data())));
  return first().model().intact();
}

Status CpuWorker::choose(const Batch& batch) {
  results_.resize(batch.sequences.size());
  const TimedScope scope(first().times(), "sampling");
  // Sequences are few and rooms are large, so each thread has a room and takes an equal run of sequences.
  const int shares = first().threads().size(), sequences = static_cast<int>(results_.size());
  first().threads().parallel_for(shares, [&](int share_begin, int share_end) {
    for (int share = share_begin; share < share_end; ++share) {
      for (int i = sequences * share / shares; i < sequences * (share + 1) / shares; ++i) {
        const BatchSequence& sequence = batch.sequences[static_cast<std::size_t>(i)];
        results_[static_cast<std::size_t>(i)] = samplers_[static_cast<std::size_t>(share)].sample(
            batch, sequence, logits_of(sequence.logit_begin));
      }
    }
  });
  return {};
}

Status CpuWorker::finish(const Batch& batch, std::span<StepResult> results) {
  NIBBLE_CHECK(results.size() == batch.sequences.size() && results.size() == results_.size(),
               "one result a sequence");
  std::copy(results_.begin(), results_.end(), results.begin());
  return {};
}

}  // namespace nibble
