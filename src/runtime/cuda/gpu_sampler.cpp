#include "runtime/cuda/gpu_sampler.h"

#include <algorithm>

#include "ops/sample/cuda/target_ranks_cuda.h"
#include "tensor/cuda_check.h"

namespace nibble {
namespace {

bool is_masked(const BatchSequence& sequence) {
  for (int drafts = 0; drafts <= sequence.draft_count; ++drafts) {
    if (!sequence.mask(drafts).empty()) return true;
  }
  return false;
}

}  // namespace

GpuSampler::Room::Room(const WorkerLimits& limits, int vocabulary, DeviceArena& arena) {
  const std::size_t rows = static_cast<std::size_t>(limits.max_logit_rows);
  workspace = arena.take<std::uint8_t>(sample_cuda_workspace_bytes(limits.max_logit_rows, vocabulary));
  tokens = arena.take<SampledToken>(rows);
  target_logprobs = arena.take<float>(rows);
  target_ranks = arena.take<std::int32_t>(rows);
  likeliest_ids = arena.take<std::int32_t>(rows * sample_cuda_max_likeliest);
  likeliest_logprobs = arena.take<float>(rows * sample_cuda_max_likeliest);
}

GpuSampler::GpuSampler(const WorkerLimits& limits, int vocabulary, ChangedRows changed,
                       DeviceBuffer room_memory, DeviceArena room)
    : vocabulary_(vocabulary),
      cluster_(sample_cuda_cluster()),
      on_host_(vocabulary),
      changed_(std::move(changed)),
      room_memory_(std::move(room_memory)),
      room_(limits, vocabulary, room) {}

std::size_t GpuSampler::device_bytes(const WorkerLimits& limits, int vocabulary) {
  DeviceArena counted;
  const Room room(limits, vocabulary, counted);
  return counted.used() + ChangedRows::device_bytes(limits, vocabulary) +
         static_cast<std::size_t>(limits.max_logit_rows) * static_cast<std::size_t>(vocabulary) *
             sizeof(float);
}

Result<GpuSampler> GpuSampler::allocate(const WorkerLimits& limits, int vocabulary, float* logits) {
  const std::size_t rows = static_cast<std::size_t>(limits.max_logit_rows);
  const std::size_t lists = rows * sample_cuda_max_likeliest;
  const std::size_t row_bytes = static_cast<std::size_t>(vocabulary) * sizeof(float);
  NIBBLE_ASSIGN(ChangedRows changed, ChangedRows::allocate(limits, vocabulary));
  DeviceArena counted;
  Room(limits, vocabulary, counted);
  NIBBLE_ASSIGN(DeviceBuffer room_memory, DeviceBuffer::allocate(counted.used()));
  const DeviceArena room(room_memory.data());
  GpuSampler sampler(limits, vocabulary, std::move(changed), std::move(room_memory), room);
  if (logits == nullptr) {
    NIBBLE_ASSIGN(sampler.logits_memory_, DeviceBuffer::allocate(rows * row_bytes));
    logits = sampler.logits_memory_.as<float>();
  }
  sampler.logits_ = logits;
  for (Brought& step : sampler.steps_) {
    step.of_host.resize(static_cast<std::size_t>(limits.max_sequences));
    NIBBLE_ASSIGN(step.tokens, PinnedBuffer::allocate(rows * sizeof(SampledToken)));
    NIBBLE_ASSIGN(step.targets, PinnedBuffer::allocate(rows * sizeof(float)));
    NIBBLE_ASSIGN(step.ranks, PinnedBuffer::allocate(rows * sizeof(std::int32_t)));
    NIBBLE_ASSIGN(step.ids, PinnedBuffer::allocate(lists * sizeof(std::int32_t)));
    NIBBLE_ASSIGN(step.logprobs, PinnedBuffer::allocate(lists * sizeof(float)));
  }
  NIBBLE_ASSIGN(sampler.host_logits_, PinnedBuffer::allocate(rows * row_bytes));
  return Result<GpuSampler>(std::move(sampler));
}

Status GpuSampler::queue(const Batch& batch, const SampleCudaParams* params, const std::int32_t* targets,
                         Place place, cudaStream_t stream) {
  Brought& step = steps_[place];
  share_out(batch, step);
  if (batch.logit_rows.empty()) return {};
  NIBBLE_RETURN_IF_ERROR(changed_.queue(logits(), stream));
  NIBBLE_RETURN_IF_ERROR(sample(batch, params, targets, step, stream));
  if (step.ranked) {
    target_ranks_cuda({.logits = logits(),
                       .rows = static_cast<int>(batch.logit_rows.size()),
                       .vocabulary = vocabulary_,
                       .stride = vocabulary_,
                       .targets = targets,
                       .ranks = room_.target_ranks},
                      stream);
  }
  bring_results(batch, step, stream);
  return {};
}

void GpuSampler::share_out(const Batch& batch, Brought& step) {
  step.sequences = batch.sequences.size();
  step.likeliest = 0;
  step.scores = step.ranked = false;
  changed_.begin(batch.logit_rows.size());
  for (std::size_t i = 0; i < batch.sequences.size(); ++i) {
    const BatchSequence& sequence = batch.sequences[i];
    const bool has_targets = sequence.logit_count > (sequence.samples ? 1 + sequence.draft_count : 0);
    step.scores |= has_targets;
    step.ranked |= has_targets && !sequence.target_ranks.empty();
    const std::size_t of_targets =
        has_targets ? static_cast<std::size_t>(sequence.sampling->prompt_top_logprobs) : 0;
    const std::size_t longest = std::max(sequence.samples ? sequence.top_behind(0).size() : 0, of_targets);
    const bool of_allowed =
        sequence.samples && sequence.sampling->constrained_logprobs && is_masked(sequence);
    step.of_host[i] = of_allowed || longest > sample_cuda_max_likeliest ||
                      (sequence.samples && !list_changes(batch, sequence));
    if (step.of_host[i] == 0) step.likeliest = std::max(step.likeliest, static_cast<int>(longest));
  }
}

bool GpuSampler::list_changes(const Batch& batch, const BatchSequence& sequence) {
  for (int drafts = 0;; ++drafts) {
    if (!logit_changes_of(sequence, drafts).none() && !changed_.add(sequence, drafts)) return false;
    if (drafts == sequence.draft_count) return true;
    // Behind a draft that may not come nothing is chosen, and there is no mask.
    const int row = batch.logit_rows[static_cast<std::size_t>(sequence.logit_row_behind(drafts))].row;
    const std::size_t draft = static_cast<std::size_t>(batch.tokens[static_cast<std::size_t>(row) + 1]);
    const std::span<const std::uint32_t> mask = sequence.mask(drafts);
    if (!mask.empty() && (mask[draft / 32] >> draft % 32 & 1) == 0) return true;
  }
}

Status GpuSampler::sample(const Batch& batch, const SampleCudaParams* params, const std::int32_t* targets,
                          Brought& step, cudaStream_t stream) {
  return sample_cuda({.logits = logits(),
                      .rows = static_cast<int>(batch.logit_rows.size()),
                      .vocabulary = vocabulary_,
                      .stride = vocabulary_,
                      .params = params,
                      .tokens = room_.tokens,
                      .host_tokens = step.tokens.at<SampledToken>(0),
                      .changed = changed_.rows(),
                      .changed_rows = changed_.of_logit_rows(),
                      .targets = step.scores ? targets : nullptr,
                      .target_logprobs = room_.target_logprobs,
                      .likeliest = step.likeliest,
                      .likeliest_ids = room_.likeliest_ids,
                      .likeliest_logprobs = room_.likeliest_logprobs,
                      .workspace = room_.workspace,
                      .most_row_blocks = cluster_},
                     stream);
}

void GpuSampler::bring_results(const Batch& batch, Brought& step, cudaStream_t stream) {
  const auto bring = [stream](PinnedBuffer& to, const void* from, std::size_t bytes) {
    if (bytes > 0) cuda_check(cudaMemcpyAsync(to.data(), from, bytes, cudaMemcpyDeviceToHost, stream));
  };
  const std::size_t rows = batch.logit_rows.size();
  const std::size_t lists = rows * static_cast<std::size_t>(step.likeliest);
  bring(step.targets, room_.target_logprobs, step.scores ? rows * sizeof(float) : 0);
  bring(step.ranks, room_.target_ranks, step.ranked ? rows * sizeof(std::int32_t) : 0);
  bring(step.ids, room_.likeliest_ids, lists * sizeof(std::int32_t));
  bring(step.logprobs, room_.likeliest_logprobs, lists * sizeof(float));
  const std::size_t row_floats = static_cast<std::size_t>(vocabulary_);
  for (std::size_t i = 0; i < batch.sequences.size(); ++i) {
    if (step.of_host[i] == 0) continue;
    const BatchSequence& sequence = batch.sequences[i];
    const std::size_t begin = static_cast<std::size_t>(sequence.logit_begin) * row_floats;
    cuda_check(cudaMemcpyAsync(host_logits_.at<float>(0) + begin, logits() + begin,
                               static_cast<std::size_t>(sequence.logit_count) * row_floats * sizeof(float),
                               cudaMemcpyDeviceToHost, stream));
  }
}

bool GpuSampler::is_gpus_alone(Place place) const {
  const Brought& step = steps_[place];
  const auto end = step.of_host.begin() + static_cast<std::ptrdiff_t>(step.sequences);
  return std::find(step.of_host.begin(), end, 1) == end;
}

void GpuSampler::collect(const Batch& batch, Place place, std::span<StepResult> results) {
  Brought& step = steps_[place];
  for (std::size_t i = 0; i < results.size(); ++i) {
    const BatchSequence& sequence = batch.sequences[i];
    if (sequence.logit_count == 0) {
      results[i] = {};
    } else if (step.of_host[i] != 0) {
      const std::size_t begin =
          static_cast<std::size_t>(sequence.logit_begin) * static_cast<std::size_t>(vocabulary_);
      results[i] = on_host_.sample(batch, sequence, host_logits_.at<float>(0) + begin);
    } else {
      results[i] = step.result_of(batch, sequence);
    }
  }
}

bool GpuSampler::Brought::score(const Batch& batch, const BatchSequence& sequence) {
  const std::size_t top = static_cast<std::size_t>(sequence.sampling->prompt_top_logprobs);
  std::size_t target = 0;
  for (int i = 0; i < sequence.logit_count; ++i) {
    const std::size_t row = static_cast<std::size_t>(sequence.logit_begin + i);
    if (batch.logit_rows[row].target < 0) continue;
    if (tokens.at<SampledToken>(0)[row].finite == 0) return false;
    list_likeliest(row, sequence.target_top.subspan(target * top, top));
    if (!sequence.target_ranks.empty()) sequence.target_ranks[target] = ranks.at<std::int32_t>(0)[row];
    sequence.target_logprobs[target++] = targets.at<float>(0)[row];
  }
  return true;
}

// All of its rows have been sampled as if all drafts held; what counts ends where the first one does not.
StepResult GpuSampler::Brought::result_of(const Batch& batch, const BatchSequence& sequence) {
  StepResult result;
  if (!score(batch, sequence)) return {.finite = false};
  for (int drafts = 0; sequence.samples && drafts <= sequence.draft_count; ++drafts) {
    const std::size_t row = static_cast<std::size_t>(sequence.logit_row_behind(drafts));
    const SampledToken& sampled = tokens.at<SampledToken>(0)[row];
    // Behind a draft it is the next step's matter, which then begins with this row.
    if (sampled.finite == 0 && drafts > 0) break;
    if (sampled.finite == 0) return {.finite = false};
    list_likeliest(row, sequence.top_behind(drafts));
    if (drafts == 0) {
      result.token = sampled.token;
      result.logprob = sampled.logprob;
    } else {
      sequence.behind_drafts[static_cast<std::size_t>(drafts) - 1] = {sampled.token, sampled.logprob};
      result.accepted = drafts;
    }
    const std::size_t next = static_cast<std::size_t>(batch.logit_rows[row].row) + 1;
    if (drafts == sequence.draft_count || batch.tokens[next] != sampled.token) break;
  }
  return result;
}

void GpuSampler::Brought::list_likeliest(std::size_t row, std::span<TokenLogprob> top) {
  const std::size_t list = row * static_cast<std::size_t>(likeliest);
  for (std::size_t i = 0; i < top.size(); ++i)
    top[i] = {ids.at<std::int32_t>(0)[list + i], logprobs.at<float>(0)[list + i]};
}

}  // namespace nibble
