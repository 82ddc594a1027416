#include "engine/choices.h"

#include "base/sip_hash.h"
#include "models/model_traits.h"
#include "plan/exchange_shape.h"
#include "runtime/gpu.h"
#include "runtime/kernel_choice.h"
#include "runtime/kv_store.h"

namespace nibble {
namespace {

DenseFormat dense_format(Quantization quantization) {
  switch (quantization) {
    case Quantization::none: return DenseFormat::bf16;
    case Quantization::q8: return DenseFormat::q8;
    case Quantization::mxfp4: return DenseFormat::mxfp4;
  }
  return DenseFormat::bf16;
}

InputValues activations_of(const Plan& plan) {
  if (plan.int8_products) return InputValues::int8;
  if (plan.fp8_prompts) return InputValues::fp8;
  return plan.dtype == DType::bf16 ? InputValues::bf16 : InputValues::any_float;
}

WorkerLimits worker_limits(const Plan& plan) {
  return {.device = plan.first_gpu,
          .threads = plan.threads,
          .pin_threads = plan.pin_threads,
          .ranks = plan.tensor_parallel,
          .expert_ranks = plan.expert_parallel,
          .owners = plan.data_parallel,
          .owner_rows = plan.of_owner(plan.max_num_batched_tokens),
          .owner_sequences = plan.of_owner(plan.max_num_seqs),
          .experts_everywhere = plan.experts_everywhere,
          .by_nccl = plan.by_nccl,
          .exchange = exchange_kind(plan.experts.exchange),
          .max_rows = plan.max_num_batched_tokens,
          .max_logit_rows = plan.max_logit_rows,
          .max_sequences = plan.max_num_seqs,
          .max_drafts = plan.draft_tokens,
          .max_snapshots = plan.state_snapshots,
          .max_positions = plan.max_model_len,
          .activations = activations_of(plan),
          .kv_dtype = plan.kv_dtype,
          .page_size = plan.page_size,
          .page_counts = {plan.kv_pages, plan.kv_window_pages},
          .dense = dense_format(plan.quantization),
          .graphs = plan.cuda_graphs,
          .many_tokens_from = plan.many_tokens_from};
}

}  // namespace

Result<EngineChoices> make_choices(const EngineOptions& options, const ModelConfig& config,
                                   const std::string& name) {
  NIBBLE_ASSIGN(const ModelTraits traits, traits_of(config, name));
  Machine machine = probe_machine_with_gpus();
  if (!options.tuning_table.empty()) NIBBLE_RETURN_IF_ERROR(take_tuning(options.tuning_table, machine));
  NIBBLE_ASSIGN(Plan plan, resolve(options, machine, traits));
  NIBBLE_CHECK(plan.not_built.empty(), "a plan for this machine has only what is built");
  EngineChoices choices{.scheduler = {.max_num_seqs = plan.max_num_seqs,
                                      .max_num_batched_tokens = plan.max_num_batched_tokens,
                                      .owner_seqs = plan.of_owner(plan.max_num_seqs),
                                      .owner_rows = plan.of_owner(plan.max_num_batched_tokens),
                                      .max_logit_rows = plan.max_logit_rows,
                                      .max_model_len = plan.max_model_len,
                                      .vocabulary = static_cast<int>(config.vocab_size),
                                      .snapshot_interval = plan.snapshot_interval,
                                      .max_drafts = plan.draft_tokens,
                                      .draft_border = traits.linear_layers > 0 ? delta_chunk : 0,
                                      .looks_up_drafts = plan.looks_up_drafts,
                                      .prompts_apart = plan.fp8_prompts},
                        .cache = {.page_size = plan.page_size,
                                  .page_count = {plan.kv_pages, plan.kv_window_pages},
                                  .window = page_window(config),
                                  .states = traits.linear_layers > 0 ? plan.of_owner(plan.max_num_seqs) : 0,
                                  .snapshots = plan.state_snapshots,
                                  .snapshot_step = delta_chunk,
                                  .keep_prefixes = plan.prefix_cache,
                                  .key = drawn_key()},
                        .owners = plan.data_parallel,
                        .worker = worker_limits(plan)};
  if (plan.device == DeviceKind::cpu) {
    NIBBLE_ASSIGN(const KernelChoice<DotKernels> dots, choose_dot_kernels(plan.experts.kernel));
    NIBBLE_ASSIGN(const KernelChoice<AttentionKernels> attention, choose_attention_kernels(plan.attention));
    choices.worker.dots = dots.kernels;
    choices.worker.weight_lines = plan.weight_lines;
    choices.worker.attention = attention.kernels;
  } else {
    choices.plan_ahead = true;
  }
  choices.plan = std::move(plan);
  return choices;
}

}  // namespace nibble
