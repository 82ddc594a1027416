#include "plan/budget.h"

#include <algorithm>

#include "plan/exchange_shape.h"

namespace nibble {
namespace {

bool has_share(const Situation& s) { return s.on_gpu() || s.options.memory_utilization > 0; }

int ranks_of(const Situation& s) {
  return static_cast<int>(std::max<std::int64_t>(s.number(Field::tensor_parallel), 1));
}

int ranks_of_process(const Situation& s) {
  return std::max(ranks_of(s) / std::max(s.options.processes, 1), 1);
}

// Those that share this machine's memory.
int ranks_on_machine(const Situation& s) { return ranks_of_process(s) * s.options.processes_here; }

std::int64_t graphs_of(const Situation& s) {
  return s.at(Field::cuda_graphs).value == "on" ? graph_bytes(step_limits(s, 0)) : 0;
}

std::int64_t part_of_owner(const Situation& s, Field field) {
  return (s.number(field) + owners_of(s) - 1) / owners_of(s);
}

std::int64_t states_of(const Situation& s) {
  return state_bytes_of_rank(s.model, sharers_of(s), static_cast<int>(s.number(Field::draft_tokens))) *
         sequences_of_rank(s);
}

std::int64_t snapshots_of(const Situation& s) {
  return snapshot_bytes_of_rank(s.model, sharers_of(s)) * s.number(Field::state_snapshots);
}

// As the kernel's own estimate may be short of what a small model needs anyway.
// Of one rank, where several share the machine.
std::int64_t free_beside_weights(const Situation& s) {
  constexpr std::int64_t least = 256 << 20;
  return std::max(s.machine.cpu.available_bytes / ranks_on_machine(s) - weights_of(s), least);
}

// Of a share of memory, what everything else that is known by then leaves.
std::int64_t left_for_caches(const Situation& s) {
  return memory_budget(s) - weights_of(s) - workspace_bytes(s.model, step_limits(s, s.model.max_positions)) -
         graphs_of(s) - states_of(s);
}

KvShape kv_shape_of(const Situation& s) {
  return {.dtype = kv_dtype_of(s), .ranks = sharers_of(s), .page_size = page_size_of(s)};
}

}  // namespace

int owners_of(const Situation& s) {
  return static_cast<int>(std::max<std::int64_t>(s.number(Field::data_parallel), 1));
}
int sharers_of(const Situation& s) { return ranks_of(s) / owners_of(s); }
std::int64_t sequences_of_rank(const Situation& s) { return part_of_owner(s, Field::max_num_seqs); }
std::int64_t rows_of_rank(const Situation& s) { return part_of_owner(s, Field::max_num_batched_tokens); }

Quantization quantization_of(const Situation& s) {
  const std::string& name = s.at(Field::quantization).value;
  return name == "q8" ? Quantization::q8 : name == "mxfp4" ? Quantization::mxfp4 : Quantization::none;
}

std::int64_t weights_of(const Situation& s) {
  const int ranks = ranks_of(s);
  const std::int64_t copies = has_expert_copies(s) ? expert_copies_bytes(s.model, ranks) : 0;
  const std::int64_t whole = s.on_gpu() ? whole_weight_bytes(s.model, sharers_of(s)) : 0;
  return (owners_of(s) > 1 ? owner_weight_bytes(s.model, quantization_of(s), ranks, owners_of(s))
                           : weight_bytes(s.model, quantization_of(s), ranks)) +
         whole + copies;
}

DType kv_dtype_of(const Situation& s) {
  const std::string& name = s.at(Field::kv_cache_dtype).value;
  return name == "float32" ? DType::f32 : name == "fp8" ? DType::f8_e4m3 : DType::bf16;
}

int page_size_of(const Situation& s) { return find_attention(s.at(Field::attention).value)->page_size; }

StepLimits step_limits(const Situation& s, std::int64_t positions) {
  const std::int64_t rows = s.number(Field::max_num_batched_tokens),
                     sequences = s.number(Field::max_num_seqs);
  return {.rows = rows_of_rank(s),
          .logit_rows = std::max(sequences, std::min<std::int64_t>(scoring_rows, rows)),
          .sequences = sequences_of_rank(s),
          .drafts = s.on_gpu() ? s.number(Field::draft_tokens) : 0,
          .positions = positions,
          .threads = s.on_gpu() ? 1
                                : threads_of_rank(static_cast<int>(s.number(Field::threads)),
                                                  ranks_of_process(s), 0),
          .ranks = ranks_of(s),
          .owners = owners_of(s),
          .expert_ranks = static_cast<int>(std::max<std::int64_t>(s.number(Field::expert_parallel), 1)),
          .exchange = exchange_kind(s.at(Field::experts).path.exchange),
          .on_gpu = s.on_gpu(),
          .fp8_prompts = s.at(Field::dtype).value == "fp8",
          .by_nccl = s.at(Field::all_reduce).value == "nccl",
          .many_tokens_from = static_cast<int>(s.number(Field::many_tokens_from))};
}

std::int64_t memory_budget(const Situation& s) {
  const double asked = static_cast<double>(s.options.memory_utilization);
  if (s.on_gpu()) {
    return static_cast<std::int64_t>(static_cast<double>(s.machine.gpu.memory_bytes) *
                                     (asked > 0 ? asked : usual_gpu_share));
  }
  if (asked > 0)
    return static_cast<std::int64_t>(static_cast<double>(s.machine.cpu.memory_bytes / ranks_on_machine(s)) *
                                     asked);
  return weights_of(s) + free_beside_weights(s);
}

std::int64_t affordable_tokens(const Situation& s) {
  const KvShape shape = kv_shape_of(s);
  const auto tokens_in = [&](std::int64_t bytes) {
    return shape.page_size * whole_pages_in(s.model, shape, sequences_of_rank(s), rows_of_rank(s), bytes);
  };
  if (!has_share(s)) return std::max<std::int64_t>(tokens_in(free_beside_weights(s) / 2), shape.page_size);
  return tokens_in(left_for_caches(s) - snapshots_of(s));
}

std::int64_t affordable_snapshots(const Situation& s) {
  const std::int64_t bytes = has_share(s) ? left_for_caches(s) / 5 : free_beside_weights(s) / 8;
  return std::max<std::int64_t>(bytes, 0) /
         std::max<std::int64_t>(snapshot_bytes_of_rank(s.model, sharers_of(s)), 1);
}

std::int64_t usable_tokens(const Situation& s) {
  const int page_size = page_size_of(s);
  const std::int64_t of_all = page_size * owners_of(s);
  const std::int64_t asked = (s.options.kv_cache_tokens + of_all - 1) / of_all * page_size;
  return asked > 0 ? std::min(asked, affordable_tokens(s)) : affordable_tokens(s);
}

MemoryPlan plan_memory(const Situation& s) {
  const std::int64_t context = s.number(Field::max_model_len), pages = s.number(Field::kv_pages);
  const KvPages page = kv_page_bytes(s.model, kv_shape_of(s));
  MemoryPlan memory{
      .weights = weights_of(s),
      .kv = pages * page.whole + s.number(Field::kv_window_pages) * page.windowed + states_of(s) +
            snapshots_of(s),
      .snapshots = snapshots_of(s),
      .workspace = workspace_bytes(s.model, step_limits(s, context)),
      .graphs = graphs_of(s),
      .budget = memory_budget(s),
      .capacity = s.on_gpu() ? s.machine.gpu.memory_bytes : s.machine.cpu.memory_bytes / ranks_on_machine(s),
      .kv_tokens = pages * page_size_of(s) * owners_of(s)};
  memory.total = memory.weights + memory.kv + memory.workspace + memory.graphs;
  memory.max_concurrency =
      static_cast<double>(memory.kv_tokens) / static_cast<double>(std::max<std::int64_t>(context, 1));
  return memory;
}

}  // namespace nibble
