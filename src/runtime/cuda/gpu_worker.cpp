#include "runtime/cuda/gpu_worker.h"

#include <algorithm>
#include <numeric>
#include <string>
#include <thread>
#include <utility>

#include "base/check.h"
#include "comm/cuda/on_device.h"
#include "models/model_traits.h"
#include "ops/sample/cuda/unlike_logits_cuda.h"
#include "plan/kernel_formats.h"
#include "plan/kernel_table.h"
#include "runtime/cuda/graph_probe.h"
#include "tensor/cuda_check.h"

namespace nibble {
namespace {

GpuSampler::Place other(GpuSampler::Place place) {
  return place == GpuSampler::first ? GpuSampler::second : GpuSampler::first;
}

std::int64_t free_device_bytes() {
  std::size_t available = 0, all = 0;
  cuda_check(cudaMemGetInfo(&available, &all));
  return static_cast<std::int64_t>(available);
}

// Ranks do not begin to wait at the same moment.
constexpr std::chrono::milliseconds until_all_have_waited{400};

// task(index) for each rank in a thread, the first in the caller's; the first error.
Status at_once(int ranks, const std::function<Status(int)>& task) {
  std::vector<Status> results(static_cast<std::size_t>(ranks));
  std::vector<std::thread> threads;
  for (int rank = 1; rank < ranks; ++rank)
    threads.emplace_back([&, rank] { results[static_cast<std::size_t>(rank)] = task(rank); });
  results[0] = task(0);
  for (std::thread& thread : threads) thread.join();
  for (const Status& result : results) NIBBLE_RETURN_IF_ERROR(result);
  return {};
}

// The kernels' name in the plan. There is one set of them a format.
std::string_view expert_kernel_of(const ModelTraits& traits) {
  for (const ExpertKernel& kernel : expert_kernels()) {
    if (kernel.facts.device == DeviceKind::cuda && kernel.facts.compute_capability == 90 &&
        takes_format(kernel, traits.expert_format))
      return kernel.facts.name;
  }
  return "none";
}

}  // namespace

Status GpuWorker::Rooms::failure(int rank) const {
  if (all != nullptr) NIBBLE_RETURN_IF_ERROR(all->failure(rank));
  return groups.empty() ? Status()
                        : groups[static_cast<std::size_t>(rank / sharers)]->failure(rank % sharers);
}

std::optional<int> GpuWorker::Rooms::missed_by(int rank) const {
  std::optional<int> missed;
  if (all != nullptr) missed = all->missed_by(rank);
  if (!missed && !groups.empty())
    missed = groups[static_cast<std::size_t>(rank / sharers)]->missed_by(rank % sharers);
  return missed;
}

Result<GpuWorker::Places> GpuWorker::places_of(const ModelConfig& config, const WorkerLimits& limits,
                                               const GpuProcesses* processes) {
  NIBBLE_CHECK(processes == nullptr || limits.owners == 1, "the first process has all samplers");
  Places made;
  Rooms& rooms = made.rooms;
  rooms.sharers = limits.ranks / limits.owners;
  const int first_here = processes == nullptr ? 0 : processes->first_rank();
  const int here = processes == nullptr ? limits.ranks : processes->ranks_here();
  made.tokens.resize(static_cast<std::size_t>(here));
  if (limits.ranks == 1) {
    made.places.push_back({.part = whole_model(config)});
    return made;
  }
  NIBBLE_ASSIGN(const ModelTraits traits, traits_of(config, {}));
  std::vector<int> devices(static_cast<std::size_t>(here));
  std::iota(devices.begin(), devices.end(), limits.device);
  for (int rank = first_here; rank < first_here + here; ++rank) {
    const RankPart part = limits.owners > 1 ? owner_part(traits, limits.ranks, limits.owners, rank)
                                            : rank_part(traits, limits.ranks, limits.expert_ranks, rank);
    NIBBLE_ASSIGN(const CudaPart own, cuda_part(config, part, limits.experts_everywhere));
    made.places.push_back({.part = own});
  }
  const SharedBytes shared =
      shared_bytes_of_cuda_model(config, forward_limits(limits_of_owner(limits)), made.places[0].part);
  if (limits.owners > 1) {
    NIBBLE_ASSIGN(rooms.all, PeerRooms::make(devices, shared.of_all, limits.gpu_rank_deadline));
    for (int rank = 0; rank < limits.ranks; ++rank) {
      CudaPlace& place = made.places[static_cast<std::size_t>(rank)];
      place.room_of_all = &rooms.all->of(rank);
      place.shared_by_all = DeviceArena(rooms.all->content(rank));
    }
  }
  const std::size_t rows = static_cast<std::size_t>(limits.max_logit_rows);
  DeviceArena counted;
  counted.take<SampledToken>(rows);
  if (limits.by_nccl) {
    NIBBLE_CHECK(limits.owners == 1, "groups with sequences of their own exchange rows");
    for (int i = 0; i < here; ++i) {
      const std::size_t index = static_cast<std::size_t>(i);
      const OnDevice on(devices[index]);
      NIBBLE_ASSIGN(DeviceBuffer memory, DeviceBuffer::allocate(counted.used() + shared.of_sequences));
      CudaPlace& place = made.places[index];
      place.shared = DeviceArena(memory.data());
      rooms.merges.push_back(std::make_unique<RankMerge>(first_here + i, limits.ranks));
      place.merge = rooms.merges.back().get();
      made.tokens[index] = place.shared.take<SampledToken>(rows);
      rooms.merged.push_back(std::move(memory));
    }
    return made;
  }
  // Of a group; in several processes there is one.
  const int sharers_here = std::min(rooms.sharers, here);
  for (int first = 0; rooms.sharers > 1 && first < here; first += sharers_here) {
    const PeerDevices of_group{.here = std::span(devices).subspan(static_cast<std::size_t>(first),
                                                                  static_cast<std::size_t>(sharers_here)),
                               .first = first_here,
                               .others = processes == nullptr ? nullptr : &processes->handles()};
    NIBBLE_ASSIGN(
        std::unique_ptr<PeerRooms> group,
        PeerRooms::make(of_group, counted.used() + shared.of_sequences, limits.gpu_rank_deadline, first));
    for (int i = 0; i < sharers_here; ++i) {
      const std::size_t index = static_cast<std::size_t>(first + i);
      CudaPlace& place = made.places[index];
      place.room = &group->of(first_here + i);
      place.shared = DeviceArena(group->content(first_here + i));
      made.tokens[index] = place.shared.take<SampledToken>(rows);
    }
    if (rooms.all != nullptr) group->end_waits_with(*rooms.all);
    rooms.groups.push_back(std::move(group));
  }
  return made;
}

GpuWorker::GpuWorker(Ties ties, std::vector<Member> ranks, const WorkerLimits& limits)
    : processes_(std::move(ties.processes)),
      rooms_(std::move(ties.rooms)),
      ranks_(std::move(ranks)),
      first_patience_(2 * limits.gpu_rank_deadline),
      merge_patience_(3 * limits.gpu_rank_deadline / 2),
      own_{OwnerSteps(limits), OwnerSteps(limits)} {
  own_results_.reserve(static_cast<std::size_t>(limits.owner_sequences));
}

GpuWorker::~GpuWorker() {
  threads_.reset();
  // Each rank's memory goes on its device, once what its launches wait for has been launched on all.
  for (Member& member : ranks_) {
    const OnDevice on(member.rank->device());
    member.rank->stream().wait();
  }
  if (processes_ != nullptr) processes_->end();
  for (Member& member : ranks_) {
    const OnDevice on(member.rank->device());
    member = {};
  }
}

Result<std::unique_ptr<Worker>> GpuWorker::start(const ModelConfig& config, WeightFeed& feed,
                                                 const WorkerLimits& limits) {
  NIBBLE_CHECK(limits.ranks == 1, "ranks have a feed each");
  return start(
      config,
      [&](const CudaPlace& place, int device) { return GpuRank::load(config, place, device, feed, limits); },
      limits);
}

Result<std::unique_ptr<GpuWorker>> GpuWorker::start_ranks(const ModelConfig& config, const LoadRank& load,
                                                          const WorkerLimits& limits,
                                                          std::unique_ptr<ProcessLinks> links) {
  cuda_check(cudaSetDevice(limits.device));
  const std::int64_t free_before = free_device_bytes();
  Ties ties;
  if (links != nullptr) ties.processes = std::make_unique<GpuProcesses>(std::move(links));
  NIBBLE_ASSIGN(Places made, places_of(config, limits, ties.processes.get()));
  ties.rooms = std::move(made.rooms);
  const int here = static_cast<int>(made.places.size()), sharers = ties.rooms.sharers;
  const bool samples = ties.processes == nullptr || ties.processes->is_first();
  std::vector<Member> members(made.places.size());
  NIBBLE_RETURN_IF_ERROR(at_once(here, [&](int index) -> Status {
    Member& member = members[static_cast<std::size_t>(index)];
    NIBBLE_ASSIGN(member.rank, load(made.places[static_cast<std::size_t>(index)], limits.device + index));
    member.rank->use_device();
    member.tokens = made.tokens[static_cast<std::size_t>(index)];
    for (CudaEvent& done : member.done) done = new_event();
    member.rank->stream().wait();
    if (index % sharers != 0 || !samples) return {};
    NIBBLE_ASSIGN(member.sampler,
                  GpuSampler::allocate(limits_of_owner(limits), static_cast<int>(config.vocab_size),
                                       member.rank->model().gathered_logits()));
    return {};
  }));
  std::unique_ptr<GpuWorker> worker(new GpuWorker(std::move(ties), std::move(members), limits));
  GpuProcesses* const processes = worker->processes_.get();
  if (processes != nullptr) processes->begin();
  NIBBLE_RETURN_IF_ERROR(worker->join_merges());
  NIBBLE_RETURN_IF_ERROR(at_once(here, [&](int index) {
    Member& member = worker->ranks_[static_cast<std::size_t>(index)];
    member.rank->use_device();
    return member.sampler ? member.rank->prepare(member.sampler->chosen(), member.sampler->logits(), limits)
                          : member.rank->prepare(member.tokens, nullptr, limits);
  }));
  if (processes != nullptr) NIBBLE_RETURN_IF_ERROR(processes->meet());
  if (limits.graphs) {
    const Status held =
        at_once(here, [&](int index) { return worker->hold_graphs_to_eager_bits(index, limits); });
    if (!held.ok()) return worker->failed(held);
  }
  for (const Member& member : worker->ranks_) member.rank->forget_ran();
  NIBBLE_ASSIGN(const ModelTraits traits, traits_of(config, {}));
  worker->names_ = {.experts = expert_kernel_of(traits),
                    .attention = traits.attention == AttentionKind::latent ? "sm90_mla" : "sm90_attention"};
  worker->device_bytes_ = free_before - free_device_bytes();
  if (here > 1) {
    const RankThreads::Patience patience{.deadline = 2 * limits.gpu_rank_deadline,
                                         .grace = until_all_have_waited};
    worker->threads_.emplace(here, patience, [at = worker.get()](int index) {
      at->ranks_[static_cast<std::size_t>(index)].rank->use_device();
      return at->task_(index);
    });
  }
  if (processes != nullptr) NIBBLE_RETURN_IF_ERROR(processes->become_ready());
  return worker;
}

Result<std::unique_ptr<Worker>> GpuWorker::start(const ModelConfig& config, const LoadRank& load,
                                                 const WorkerLimits& limits,
                                                 std::unique_ptr<ProcessLinks> links) {
  NIBBLE_ASSIGN(std::unique_ptr<GpuWorker> worker, start_ranks(config, load, limits, std::move(links)));
  return std::unique_ptr<Worker>(std::move(worker));
}

Status GpuWorker::follow(const ModelConfig& config, const LoadRank& load, const WorkerLimits& limits,
                         std::unique_ptr<ProcessLinks> links, const std::function<void()>& ready) {
  NIBBLE_ASSIGN(const std::unique_ptr<GpuWorker> worker, start_ranks(config, load, limits, std::move(links)));
  ready();
  GpuProcesses& first = *worker->processes_;
  while (true) {
    NIBBLE_ASSIGN(const std::optional<GpuProcesses::Call> call, first.next());
    if (!call) return {};
    switch (*call) {
      case GpuProcesses::Call::begin: return internal_error("process 0 begins twice");
      case GpuProcesses::Call::forward: NIBBLE_RETURN_IF_ERROR(worker->forward(first.batch())); break;
      case GpuProcesses::Call::choose: NIBBLE_RETURN_IF_ERROR(worker->choose(first.batch())); break;
      case GpuProcesses::Call::finish: NIBBLE_RETURN_IF_ERROR(worker->await_oldest().status()); break;
    }
  }
}

RanTable GpuWorker::ran() const {
  RanTable table;
  for (const Member& member : ranks_) {
    const GpuRank::Ran ran = member.rank->ran();
    const auto add = [&](std::string_view field, std::string_view value, std::string_view form,
                         LaunchKind kind) {
      table.add({.field = field, .value = value, .form = form, .times = ran.launches.of(kind)});
    };
    add("moe_runner", names_.experts, "few", LaunchKind::experts_few);
    add("moe_runner", names_.experts, "many", LaunchKind::experts_many);
    add("attention", names_.attention, "one_row", LaunchKind::attention_one_row);
    add("attention", names_.attention, "rows", LaunchKind::attention_rows);
    add("attention", names_.attention, "one_row", LaunchKind::latent_one_row);
    add("attention", names_.attention, "rows", LaunchKind::latent_rows);
    add("linear_attention", "sm90_gated_delta", "one_row", LaunchKind::delta_one_row);
    add("linear_attention", "sm90_gated_delta", "rows", LaunchKind::delta_rows);
    add("all_reduce", "gather", "gather_sums", LaunchKind::gather_sums);
    add("all_reduce", "gather", "gather_tokens", LaunchKind::gather_tokens);
    add("all_reduce", "gather", "gather_columns", LaunchKind::gather_columns);
    add("all_reduce", "nccl", "merge_columns", LaunchKind::merge_columns);
    add("all_reduce", "nccl", "merge_products", LaunchKind::merge_products);
    if (own_[0].empty()) {
      add("all_reduce", "gather", "gather_products", LaunchKind::gather_products);
      add("all_reduce", "gather", "send_products", LaunchKind::send_products);
    } else {
      add("token_exchange", "normal", "dispatch", LaunchKind::dispatch_rows);
      add("token_exchange", "normal", "combine", LaunchKind::gather_products);
      add("token_exchange", "normal", "combine", LaunchKind::send_products);
      add("token_exchange", "low_latency", "dispatch", LaunchKind::dispatch_few);
      add("token_exchange", "low_latency", "combine", LaunchKind::combine_few);
    }
    table.add({.field = "steps", .value = "graph", .form = "", .times = ran.graphs});
    table.add({.field = "steps", .value = "launches", .form = "", .times = ran.eager});
  }
  return table;
}

Status GpuWorker::failed(const Status& why) const {
  return processes_ == nullptr ? why : processes_->failed(why);
}

Status GpuWorker::on_all(std::function<Status(int)> task) {
  task_ = std::move(task);
  const Status outcome = run_all();
  if (outcome.ok()) return outcome;
  const Status missing = missing_rank();
  return failed(missing.ok() ? outcome : missing);
}

// Who waited in vain was missing to those who waited for it meanwhile. So the one to be named is who has not
// waited, where that is known.
Status GpuWorker::missing_rank() const {
  const int begin = first_rank(), end = begin + static_cast<int>(ranks_.size());
  int by = begin;
  while (by < end && !rooms_.missed_by(by)) ++by;
  if (by == end) return {};
  for (int hops = 0; hops < most_ranks; ++hops) {
    const int missed = *rooms_.missed_by(by);
    if (missed < begin || missed >= end || !rooms_.missed_by(missed)) break;
    by = missed;
  }
  return rooms_.failure(by);
}

// The others wait for it in each layer. So once they are done it has little left to do.
Status GpuWorker::first_is_late() const {
  const auto away = threads_ ? threads_->first_is_away() : Stillness::Clock::duration();
  if (away < first_patience_) return {};
  return internal_error("rank " + std::to_string(first_rank()) + " did not finish its step within " +
                        std::to_string(std::chrono::duration_cast<std::chrono::milliseconds>(away).count()) +
                        " ms of the others");
}

// The engine's thread says itself who was missing, unless it is the missing rank's.
Status GpuWorker::failure() const {
  if (processes_ != nullptr) NIBBLE_RETURN_IF_ERROR(processes_->failure());
  const Status missing = missing_rank();
  if (missing.ok()) return first_is_late();
  const auto now = Stillness::Clock::now().time_since_epoch();
  Stillness::Clock::rep since = 0;
  if (missing_since_.compare_exchange_strong(since, now.count())) return {};
  return now - Stillness::Clock::duration(since) < until_all_have_waited ? Status() : missing;
}

Status GpuWorker::run_all() {
  if (threads_) return threads_->run();
  // Every thread begins with device 0, and steps may run on another one than the worker was started on.
  first().use_device();
  return task_(0);
}

Status GpuWorker::forward(const Batch& batch) {
  NIBBLE_CHECK(begun_ < 2 && chosen_,
               "a step begins once the one before it is chosen and the one before that finished");
  if (is_first_of_several()) processes_->tell(GpuProcesses::Call::forward, &batch);
  newest_ = other(newest_);
  chosen_ = false;
  ++begun_;
  int most_rows = static_cast<int>(batch.tokens.size());
  if (!own_[newest_].empty()) {
    own_[newest_].divide(batch, &own_[other(newest_)]);
    most_rows = own_[newest_].most_rows();
  }
  return on_all([&](int index) {
    return ranks_[static_cast<std::size_t>(index)].rank->forward(batch_of(index, newest_, batch), most_rows,
                                                                 index == 0 ? times_ : nullptr);
  });
}

const Batch& GpuWorker::batch_of(int index, GpuSampler::Place place, const Batch& batch) const {
  return own_[place].empty() ? batch : own_[place].of(index / rooms_.sharers).batch;
}

Status GpuWorker::choose(const Batch& batch) {
  NIBBLE_CHECK(!chosen_, "a step's tokens are chosen once");
  if (is_first_of_several()) processes_->tell(GpuProcesses::Call::choose);
  chosen_ = true;
  own_[newest_].refresh(batch);
  return on_all([&](int index) { return choose_on(index, batch_of(index, newest_, batch)); });
}

Status GpuWorker::choose_on(int index, const Batch& batch) {
  Member& member = ranks_[static_cast<std::size_t>(index)];
  GpuRank& own = *member.rank;
  const cudaStream_t stream = own.stream().get();
  const TimedScope scope(index == 0 ? times_ : nullptr, "launches of sampling");
  if (member.sampler) {
    const StepShape& shape = own.newest_shape();
    NIBBLE_RETURN_IF_ERROR(member.sampler->queue(batch, own.inputs().params(shape),
                                                 own.inputs().targets(shape), newest_, stream));
  }
  NIBBLE_RETURN_IF_ERROR(
      own.share_tokens(chosen_for(index), member.tokens, static_cast<int>(batch.logit_rows.size())));
  cuda_check(cudaEventRecord(member.done[newest_].get(), stream));
  return {};
}

Status GpuWorker::join_merges() {
  if (rooms_.merges.empty()) return {};
  NcclId id{};
  if (first_rank() == 0) {
    NIBBLE_ASSIGN(id, RankMerge::draw_id());
  }
  if (processes_ != nullptr)
    NIBBLE_RETURN_IF_ERROR(processes_->meet(std::as_writable_bytes(std::span(id.bytes))));
  return at_once(static_cast<int>(ranks_.size()), [&](int index) {
    const Member& member = ranks_[static_cast<std::size_t>(index)];
    member.rank->use_device();
    return rooms_.merges[static_cast<std::size_t>(index)]->join(id, member.rank->stream().get());
  });
}

// A merge knows no end of its wait.
Status GpuWorker::await(int index, const CudaEvent& done) {
  const GpuRank& own = *ranks_[static_cast<std::size_t>(index)].rank;
  if (rooms_.merges.empty()) {
    own.require(cudaEventSynchronize(done.get()));
    return {};
  }
  RankMerge& merge = *rooms_.merges[static_cast<std::size_t>(index)];
  const auto begin = Stillness::Clock::now();
  while (true) {
    const cudaError_t found = cudaEventQuery(done.get());
    if (found != cudaErrorNotReady) own.require(found);
    Status failed = merge.failure();
    if (failed.ok() && found == cudaSuccess) return {};
    if (failed.ok() && processes_ != nullptr) failed = processes_->failure();
    if (failed.ok() && Stillness::Clock::now() - begin > merge_patience_)
      failed = internal_error("rank " + std::to_string(first_rank() + index) + " waited " +
                              std::to_string(merge_patience_.count()) +
                              " ms for the others in a step's merges; one of them does not come");
    if (failed.ok()) {
      std::this_thread::yield();
      continue;
    }
    merge.give_up();
    return failed;
  }
}

Result<GpuSampler::Place> GpuWorker::await_oldest() {
  NIBBLE_CHECK(begun_ > (chosen_ ? 0 : 1), "a step is finished once it is chosen");
  const GpuSampler::Place oldest = begun_ == 2 ? other(newest_) : newest_;
  NIBBLE_RETURN_IF_ERROR(on_all([&](int index) -> Status {
    const Member& member = ranks_[static_cast<std::size_t>(index)];
    const TimedScope scope(index == 0 ? times_ : nullptr, "waiting for the GPU");
    const Status came = await(index, member.done[oldest]);
    return came.ok() ? rooms_.failure(first_rank() + index) : came;
  }));
  --begun_;
  return oldest;
}

Status GpuWorker::finish(const Batch& batch, std::span<StepResult> results) {
  NIBBLE_CHECK(results.size() == batch.sequences.size(), "one result a sequence");
  if (is_first_of_several()) processes_->tell(GpuProcesses::Call::finish);
  NIBBLE_ASSIGN(const GpuSampler::Place oldest, await_oldest());
  if (own_[oldest].empty()) {
    ranks_[0].sampler->collect(batch, oldest, results);
    return {};
  }
  own_[oldest].refresh(batch);
  for (std::size_t rank = 0; rank < ranks_.size(); ++rank) {
    if (!ranks_[rank].sampler) continue;
    const OwnerSteps::Step& own = own_[oldest].of(static_cast<int>(rank) / rooms_.sharers);
    own_results_.resize(own.sequences.size());
    ranks_[rank].sampler->collect(own.batch, oldest, own_results_);
    for (std::size_t i = 0; i < own.sequences.size(); ++i)
      results[static_cast<std::size_t>(own.sequences[i])] = own_results_[i];
  }
  return {};
}

// A token that the host samples is nowhere on the device.
bool GpuWorker::may_begin_behind(const Batch&) const {
  return std::all_of(ranks_.begin(), ranks_.end(), [&](const Member& member) {
    return !member.sampler || member.sampler->is_gpus_alone(newest_);
  });
}

// Penalties and masks look at the tokens themselves.
bool GpuWorker::may_choose_behind(const Batch& next) const {
  return std::none_of(next.sequences.begin(), next.sequences.end(), [](const BatchSequence& sequence) {
    return sequence.samples && (sequence.constrained != nullptr || !logit_changes_of(sequence).none());
  });
}

Status GpuWorker::hold_graphs_to_eager_bits(int index, const WorkerLimits& limits) {
  GpuRank& own = *ranks_[static_cast<std::size_t>(index)].rank;
  own.use_device();
  std::optional<GpuSampler>& sampler = ranks_[static_cast<std::size_t>(index)].sampler;
  const ModelConfig& config = own.model().config();
  const std::size_t vocabulary = static_cast<std::size_t>(config.vocab_size);
  const std::span<const DecodeGraphs::Captured> graphs = own.graphs().all();
  std::vector<std::uint32_t> unlike(graphs.size());
  NIBBLE_ASSIGN(DeviceBuffer counts, DeviceBuffer::allocate(unlike.size() * sizeof(unlike[0])));
  counts.fill(0);
  for (std::size_t at = 0; at < graphs.size(); ++at) {
    const std::size_t logits = static_cast<std::size_t>(graphs[at].step.rows) * vocabulary;
    const cudaStream_t stream = own.stream().get();
    const GraphProbe probe(graphs[at].step.rows, config, limits);
    NIBBLE_RETURN_IF_ERROR(own.run_eager(probe.batch(), sampler ? sampler->spare_logits() : nullptr));
    // What the graph before this one has left might be right.
    if (sampler) cuda_check(cudaMemsetAsync(sampler->logits(), 0xff, logits * sizeof(float), stream));
    own.run_graph(at);
    if (sampler) {
      count_unlike_logits_cuda(sampler->spare_logits(), sampler->logits(), logits,
                               counts.as<std::uint32_t>() + at, stream);
    }
    own.stream().wait();  // the next size's inputs take the place of these
    NIBBLE_RETURN_IF_ERROR(rooms_.failure(first_rank() + index));
  }
  counts.copy_to(std::span(unlike));
  for (std::size_t at = 0; at < graphs.size(); ++at) {
    if (unlike[at] == 0) continue;
    const DecodeGraphs::Step& step = graphs[at].step;
    return internal_error("the CUDA graph of " + std::to_string(step.rows) + " sequences" +
                          (step.later_clusters != attention_any_context ? " with short contexts" : "") +
                          (step.checks_drafts ? " that are drafts" : "") +
                          " gives other bits than its launches one by one in " + std::to_string(unlike[at]) +
                          " logits; --enforce-eager runs without graphs");
  }
  return {};
}

}  // namespace nibble
