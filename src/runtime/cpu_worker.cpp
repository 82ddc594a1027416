#include "runtime/cpu_worker.h"

#include <algorithm>

#include "base/check.h"
#include "models/model_traits.h"
#include "runtime/step_message.h"

namespace nibble {

namespace {

int sharers_of(const WorkerLimits& limits) { return limits.ranks / limits.owners; }

// How ranks wait for each other. Steps come when requests do, so a first step has no deadline of its own.
Communicator::Options meetings_of_ranks(const WorkerLimits& limits, RankWatch* watch, ProcessLinks* links) {
  return {.deadline = limits.rank_deadline,
          .first_deadline = limits.rank_deadline,
          .watch = watch,
          .stillness = limits.rank_stillness,
          .world = watch == nullptr ? nullptr : &watch->world(),
          .links = links};
}

// The groups that each rank is in; none of one rank.
Result<std::vector<RankGroups>> groups_of_ranks(const WorkerLimits& limits, std::size_t slot_bytes,
                                                const Communicator::Options& options) {
  std::vector<RankGroups> of_ranks(static_cast<std::size_t>(limits.ranks));
  if (limits.ranks == 1) return of_ranks;
  const auto join = [&](int size, std::optional<Communicator> RankGroups::*place) -> Status {
    NIBBLE_ASSIGN(const std::vector<Group> groups,
                  groups_of_world(limits.ranks, size, GroupShape::neighbours));
    for (const Group& group : groups) {
      NIBBLE_ASSIGN(std::vector<Communicator> members, communicators_of(group, slot_bytes, options));
      for (Communicator& member : members) {
        const int rank = group.members[static_cast<std::size_t>(member.member())];
        (of_ranks[static_cast<std::size_t>(rank)].*place).emplace(std::move(member));
      }
    }
    return {};
  };
  NIBBLE_RETURN_IF_ERROR(join(limits.ranks, &RankGroups::world));
  if (const int sharers = sharers_of(limits); sharers > 1 && sharers < limits.ranks)
    NIBBLE_RETURN_IF_ERROR(join(sharers, &RankGroups::sharers));
  return Result<std::vector<RankGroups>>(std::move(of_ranks));
}

}  // namespace

CpuWorker::CpuWorker(std::vector<std::unique_ptr<CpuRank>> ranks, Ties ties, const WorkerLimits& limits,
                     Buffer logits)
    : watch_(std::move(ties.watch)),
      links_(std::move(ties.links)),
      owner_logits_(std::move(ties.logits)),
      first_rank_(links_ == nullptr ? 0 : links_->first_rank()),
      ranks_(std::move(ranks)),
      logits_(std::move(logits)),
      sharers_(sharers_of(limits)),
      own_(limits) {
  // A group that begins here may end in another process.
  if (first_rank_ == 0) samplers_.resize((ranks_.size() - 1) / static_cast<std::size_t>(sharers_) + 1);
  for (std::size_t group = 0; group < samplers_.size(); ++group) {
    const CpuRank& sampling = *ranks_[group * static_cast<std::size_t>(sharers_)];
    for (int i = 0; i < sampling.threads().size(); ++i)
      samplers_[group].emplace_back(first().model().config().vocab_size);
  }
  results_.reserve(static_cast<std::size_t>(limits.max_sequences));
  if (watch_ != nullptr && first_rank_ == 0)
    first_watch_ = std::make_unique<FirstRankWatch>(*watch_, limits.rank_stillness.cpu);
  if (ranks_.size() == 1) return;
  const RankThreads::Patience patience{.deadline = limits.rank_deadline + std::chrono::seconds(1),
                                       .watch = watch_.get(),
                                       .stillness = limits.rank_stillness};
  rank_threads_.emplace(static_cast<int>(ranks_.size()), patience,
                        [this](int rank) { return run_seated(rank); });
}

CpuWorker::~CpuWorker() {
  rank_threads_.reset();
  // What arrives is put down in the ranks' memory.
  if (links_ != nullptr) links_->end();
}

Status CpuWorker::run_all() { return rank_threads_ ? rank_threads_->run() : run_seated(0); }

Status CpuWorker::run_seated(int rank) {
  if (watch_ != nullptr) watch_->take_seat(first_rank_ + rank);
  return run(phase_, rank);
}

Status CpuWorker::run(Phase phase, int rank) {
  CpuRank& own = *ranks_[static_cast<std::size_t>(rank)];
  float* logits = reinterpret_cast<float*>(logits_.data());
  if (own_.empty()) return own.forward(*batch_, first_rank_ + rank == 0 ? logits : nullptr);
  const int in_world = first_rank_ + rank, group = in_world / sharers_;
  const bool is_first = in_world % sharers_ == 0;  // of its group
  if (phase == Phase::choice) {
    if (is_first) sample_owners(group);
    return {};
  }
  const OwnerSteps::Step& step = own_.of(group);
  const std::int64_t vocabulary = own.model().config().vocab_size;
  NIBBLE_RETURN_IF_ERROR(
      own.forward(step.batch, is_first ? logits + step.logit_begin * vocabulary : nullptr, own_.most_rows()));
  const TimedScope scope(own.times(), "ranks");
  return owner_logits_.travel(in_world, own_, vocabulary, logits);
}

void CpuWorker::sample_owners(int group) {
  const int groups = static_cast<int>(samplers_.size());
  for (int owner = group; owner < own_.owners(); owner += groups) {
    const OwnerSteps::Step& step = own_.of(owner);
    sample(group, {.batch = step.batch, .places = step.sequences, .logit_begin = step.logit_begin});
  }
}

Result<std::unique_ptr<CpuWorker>> CpuWorker::start_ranks(const ModelConfig& config, WeightSource weights,
                                                          const WorkerLimits& limits,
                                                          const ConversionProgress& progress,
                                                          std::unique_ptr<ProcessLinks> links) {
  NIBBLE_ASSIGN(const ModelTraits traits, traits_of(config, {}));
  std::unique_ptr<RankWatch> watch = limits.ranks > 1 ? std::make_unique<RankWatch>() : nullptr;
  const Communicator::Options options = meetings_of_ranks(limits, watch.get(), links.get());
  const auto slot_bytes = static_cast<std::size_t>(rank_slot_bytes(traits));
  NIBBLE_ASSIGN(std::vector<RankGroups> groups, groups_of_ranks(limits, slot_bytes, options));
  NIBBLE_ASSIGN(OwnerLogits logits, OwnerLogits::join(limits, slot_bytes, options));
  const auto source = std::make_shared<const WeightSource>(std::move(weights));
  WorkerLimits own = limits_of_owner(limits);
  const int first = links == nullptr ? 0 : links->first_rank(),
            here = links == nullptr ? limits.ranks : links->ranks_here();
  std::vector<std::unique_ptr<CpuRank>> ranks;
  for (int rank = first; rank < first + here; ++rank) {
    const RankPart part = limits.owners > 1 ? owner_part(traits, limits.ranks, limits.owners, rank)
                                            : rank_part(traits, limits.ranks, limits.expert_ranks, rank);
    if (here > 1) own.threads = threads_of_rank(limits.threads, here, rank - first);
    NIBBLE_ASSIGN(std::unique_ptr<Model> model, bind_model(config, source, part));
    NIBBLE_ASSIGN(
        std::unique_ptr<CpuRank> started,
        CpuRank::start(std::move(model), part, own, std::move(groups[static_cast<std::size_t>(rank)]),
                       rank == first ? progress : ConversionProgress()));
    if (watch != nullptr) watch->add_workers(rank, started->threads());
    ranks.push_back(std::move(started));
  }
  if (links != nullptr) {
    watch->watch_through(*links);
    links->begin(*watch, watch->world().fault());
  }
  return of(std::move(ranks),
            {.watch = std::move(watch), .links = std::move(links), .logits = std::move(logits)}, limits);
}

Result<std::unique_ptr<Worker>> CpuWorker::start(const ModelConfig& config, WeightSource weights,
                                                 const WorkerLimits& limits,
                                                 const ConversionProgress& progress,
                                                 std::unique_ptr<ProcessLinks> links) {
  NIBBLE_ASSIGN(std::unique_ptr<CpuWorker> worker,
                start_ranks(config, std::move(weights), limits, progress, std::move(links)));
  if (worker->links_ != nullptr) NIBBLE_RETURN_IF_ERROR(worker->links_->wait_until_all_are_ready());
  return std::unique_ptr<Worker>(std::move(worker));
}

Status CpuWorker::follow(const ModelConfig& config, WeightSource weights, const WorkerLimits& limits,
                         std::unique_ptr<ProcessLinks> links, const std::function<void()>& ready) {
  NIBBLE_ASSIGN(const std::unique_ptr<CpuWorker> worker,
                start_ranks(config, std::move(weights), limits, {}, std::move(links)));
  worker->links_->announce_ready();
  ready();
  ReceivedStep step(limits.owners);
  while (true) {
    NIBBLE_ASSIGN(const bool came, worker->links_->wait_for_step(worker->step_message_));
    if (!came) return {};
    NIBBLE_RETURN_IF_ERROR(step.read(worker->step_message_));
    NIBBLE_RETURN_IF_ERROR(worker->forward(step.batch()));
  }
}

Result<std::unique_ptr<Worker>> CpuWorker::start(std::unique_ptr<Model> model, const WorkerLimits& limits,
                                                 const ConversionProgress& progress) {
  NIBBLE_CHECK(limits.ranks == 1);
  NIBBLE_ASSIGN(const ModelTraits traits, traits_of(model->config(), {}));
  std::vector<std::unique_ptr<CpuRank>> ranks;
  NIBBLE_ASSIGN(std::unique_ptr<CpuRank> started,
                CpuRank::start(std::move(model), rank_part(traits, 1, 1, 0), limits, {}, progress));
  ranks.push_back(std::move(started));
  NIBBLE_ASSIGN(std::unique_ptr<CpuWorker> worker, of(std::move(ranks), {}, limits));
  return std::unique_ptr<Worker>(std::move(worker));
}

Result<std::unique_ptr<CpuWorker>> CpuWorker::of(std::vector<std::unique_ptr<CpuRank>> ranks, Ties ties,
                                                 const WorkerLimits& limits) {
  const std::size_t logit_bytes =
      static_cast<std::size_t>(limits.max_logit_rows * ranks[0]->model().config().vocab_size) * sizeof(float);
  NIBBLE_ASSIGN(Buffer logits, Buffer::allocate(logit_bytes));
  return std::unique_ptr<CpuWorker>(
      new CpuWorker(std::move(ranks), std::move(ties), limits, std::move(logits)));
}

Status CpuWorker::failure() const {
  NIBBLE_RETURN_IF_ERROR(first().failure());
  if (first_watch_ == nullptr || !first_watch_->computes_without_end(Stillness::Clock::now())) return {};
  return internal_error("rank 0 computes without end: no piece of its work gets done");
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
  phase_ = Phase::forward;
  if (!own_.empty()) own_.divide(batch);
  if (links_ != nullptr && first_rank_ == 0) {
    write_step(batch, step_message_);
    links_->announce_step(step_message_);
  }
  NIBBLE_RETURN_IF_ERROR(run_all());
  return first().model().intact();
}

Status CpuWorker::choose(const Batch& batch) {
  results_.resize(batch.sequences.size());
  const TimedScope scope(first().times(), "sampling");
  if (own_.empty()) {
    sample(0, {.batch = batch, .places = {}});
    return {};
  }
  phase_ = Phase::choice;
  return run_all();
}

void CpuWorker::sample(int group, const Sampled& step) {
  std::vector<RowSampler>& samplers = samplers_[static_cast<std::size_t>(group)];
  // Sequences are few and rooms are large, so each thread has a room and takes an equal run of sequences.
  const int shares = static_cast<int>(samplers.size()),
            sequences = static_cast<int>(step.batch.sequences.size());
  ranks_[static_cast<std::size_t>(group * sharers_)]->threads().parallel_for(shares, [&](int begin, int end) {
    for (int share = begin; share < end; ++share) {
      for (int i = sequences * share / shares; i < sequences * (share + 1) / shares; ++i) {
        const std::size_t at = static_cast<std::size_t>(i);
        const BatchSequence& sequence = step.batch.sequences[at];
        const std::size_t place = step.places.empty() ? at : static_cast<std::size_t>(step.places[at]);
        results_[place] = samplers[static_cast<std::size_t>(share)].sample(
            step.batch, sequence, logits_of(step.logit_begin + sequence.logit_begin));
      }
    }
  });
}

Status CpuWorker::finish(const Batch& batch, std::span<StepResult> results) {
  NIBBLE_CHECK(results.size() == batch.sequences.size() && results.size() == results_.size(),
               "one result a sequence");
  std::copy(results_.begin(), results_.end(), results.begin());
  return {};
}

}  // namespace nibble
