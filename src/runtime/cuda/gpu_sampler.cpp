#include "runtime/cuda/gpu_sampler.h"

#include <algorithm>

#include "tensor/cuda_check.h"
#include "tensor/device_arena.h"

namespace nibble {

Result<GpuSampler> GpuSampler::allocate(const WorkerLimits& limits, int vocabulary) {
  GpuSampler sampler(vocabulary);
  const std::size_t rows = static_cast<std::size_t>(limits.max_logit_rows);
  const std::size_t lists = rows * sample_cuda_max_likeliest;
  const std::size_t row_bytes = static_cast<std::size_t>(vocabulary) * sizeof(float);
  NIBBLE_ASSIGN(sampler.logits_, DeviceBuffer::allocate(rows * row_bytes));
  const auto lay_out = [&](DeviceArena& arena) {
    sampler.workspace_ =
        arena.take<std::uint8_t>(sample_cuda_workspace_bytes(limits.max_logit_rows, vocabulary));
    sampler.tokens_ = arena.take<SampledToken>(rows);
    sampler.target_logprobs_ = arena.take<float>(rows);
    sampler.likeliest_ids_ = arena.take<std::int32_t>(lists);
    sampler.likeliest_logprobs_ = arena.take<float>(lists);
  };
  DeviceArena counted;
  lay_out(counted);
  NIBBLE_ASSIGN(sampler.room_, DeviceBuffer::allocate(counted.used()));
  DeviceArena arena(sampler.room_.data());
  lay_out(arena);
  NIBBLE_ASSIGN(sampler.host_tokens_, PinnedBuffer::allocate(rows * sizeof(SampledToken)));
  NIBBLE_ASSIGN(sampler.host_targets_, PinnedBuffer::allocate(rows * sizeof(float)));
  NIBBLE_ASSIGN(sampler.host_ids_, PinnedBuffer::allocate(lists * sizeof(std::int32_t)));
  NIBBLE_ASSIGN(sampler.host_logprobs_, PinnedBuffer::allocate(lists * sizeof(float)));
  NIBBLE_ASSIGN(sampler.host_logits_, PinnedBuffer::allocate(rows * row_bytes));
  return sampler;
}

bool GpuSampler::needs_host(const BatchSequence& sequence) {
  const std::size_t longest =
      std::max(sequence.top.size(), static_cast<std::size_t>(sequence.sampling->prompt_top_logprobs));
  return longest > sample_cuda_max_likeliest || (sequence.samples && !logit_changes_of(sequence).none());
}

Status GpuSampler::queue(const Batch& batch, const SampleCudaParams* params, const std::int32_t* targets,
                         cudaStream_t stream) {
  const int rows = static_cast<int>(batch.logit_rows.size());
  if (rows == 0) return {};
  likeliest_ = 0;
  bool scores = false;
  for (const BatchSequence& sequence : batch.sequences) {
    const bool has_targets = sequence.logit_count > (sequence.samples ? 1 : 0);
    scores |= has_targets;
    if (needs_host(sequence)) continue;
    likeliest_ = std::max(likeliest_, static_cast<int>(sequence.top.size()));
    if (has_targets) likeliest_ = std::max(likeliest_, sequence.sampling->prompt_top_logprobs);
  }
  NIBBLE_RETURN_IF_ERROR(sample_cuda({.logits = logits(),
                                      .rows = rows,
                                      .vocabulary = vocabulary_,
                                      .stride = vocabulary_,
                                      .params = params,
                                      .tokens = tokens_,
                                      .targets = scores ? targets : nullptr,
                                      .target_logprobs = target_logprobs_,
                                      .likeliest = likeliest_,
                                      .likeliest_ids = likeliest_ids_,
                                      .likeliest_logprobs = likeliest_logprobs_,
                                      .workspace = workspace_},
                                     stream));
  const auto bring = [stream](PinnedBuffer& to, const void* from, std::size_t bytes) {
    if (bytes > 0) cuda_check(cudaMemcpyAsync(to.data(), from, bytes, cudaMemcpyDeviceToHost, stream));
  };
  const std::size_t lists = static_cast<std::size_t>(rows) * static_cast<std::size_t>(likeliest_);
  bring(host_tokens_, tokens_, static_cast<std::size_t>(rows) * sizeof(SampledToken));
  bring(host_targets_, target_logprobs_, scores ? static_cast<std::size_t>(rows) * sizeof(float) : 0);
  bring(host_ids_, likeliest_ids_, lists * sizeof(std::int32_t));
  bring(host_logprobs_, likeliest_logprobs_, lists * sizeof(float));
  const std::size_t row_floats = static_cast<std::size_t>(vocabulary_);
  for (const BatchSequence& sequence : batch.sequences) {
    if (!needs_host(sequence)) continue;
    const std::size_t begin = static_cast<std::size_t>(sequence.logit_begin) * row_floats;
    cuda_check(cudaMemcpyAsync(host_logits_.at<float>(0) + begin, logits() + begin,
                               static_cast<std::size_t>(sequence.logit_count) * row_floats * sizeof(float),
                               cudaMemcpyDeviceToHost, stream));
  }
  return {};
}

void GpuSampler::collect(const Batch& batch, std::span<StepResult> results) {
  for (std::size_t i = 0; i < results.size(); ++i) results[i] = collect_sequence(batch, batch.sequences[i]);
}

StepResult GpuSampler::collect_sequence(const Batch& batch, const BatchSequence& sequence) {
  if (needs_host(sequence)) {
    const std::size_t begin =
        static_cast<std::size_t>(sequence.logit_begin) * static_cast<std::size_t>(vocabulary_);
    return on_host_.sample(batch, sequence, host_logits_.at<float>(0) + begin);
  }
  const SampledToken* const sampled = host_tokens_.at<SampledToken>(0);
  const std::size_t begin = static_cast<std::size_t>(sequence.logit_begin);
  const std::size_t top = static_cast<std::size_t>(sequence.sampling->prompt_top_logprobs);
  StepResult result;
  std::size_t targets = 0;
  for (std::size_t i = 0; i < static_cast<std::size_t>(sequence.logit_count); ++i) {
    const std::size_t row = begin + i;
    if (sampled[row].finite == 0) return {.finite = false};
    if (batch.logit_rows[row].target >= 0) {
      list_likeliest(row, sequence.target_top.subspan(targets * top, top));
      sequence.target_logprobs[targets++] = host_targets_.at<float>(0)[row];
    }
    if (!sequence.samples || i + 1 < static_cast<std::size_t>(sequence.logit_count)) continue;
    result.token = sampled[row].token;
    result.logprob = sampled[row].logprob;
    list_likeliest(row, sequence.top);
  }
  return result;
}

void GpuSampler::list_likeliest(std::size_t row, std::span<TokenLogprob> top) {
  const std::size_t list = row * static_cast<std::size_t>(likeliest_);
  for (std::size_t i = 0; i < top.size(); ++i)
    top[i] = {host_ids_.at<std::int32_t>(0)[list + i], host_logprobs_.at<float>(0)[list + i]};
}

}  // namespace nibble
