// The plan: every choice of an engine as a value with its reason, made before a byte is allocated.
//
// resolve() is pure. Each field has a list of candidates; a rule may remove one, with a reason, or prefer
// one; what the user gave is honoured or refused; the best that remains wins. Rules are gathered before
// anything is decided, so their order cannot matter. Fields are decided in the order of `Field`, and a rule
// sees those before its own.
#pragma once

#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/json_writer.h"
#include "base/options.h"
#include "base/status.h"
#include "ops/linear/weight_lines.h"
#include "plan/gates.h"
#include "plan/kernel_table.h"
#include "plan/machine.h"
#include "plan/model_traits.h"

namespace nibble {

enum class Field : std::uint8_t {
  device,
  threads,
  tensor_parallel,
  processes,  // that share the ranks
  gpus,       // of this process, where there are several
  expert_parallel,
  data_parallel,  // ranks, or groups of them, that have sequences of their own
  dtype,
  quantization,
  kv_cache_dtype,
  experts,           // the pair of compute and exchange
  many_tokens_from,  // tokens an expert from which its kernel for many is taken
  weight_lines,
  attention,
  linear_attention,
  all_reduce,
  batch_invariance,
  cuda_graphs,
  max_num_batched_tokens,
  max_num_seqs,
  speculation,  // where drafts of next tokens come from
  draft_tokens,
  expert_copies,  // of GPUs that share a model
  attention_split,
  prefix_cache,
  snapshot_interval,
  state_snapshots,
  max_model_len,
  kv_pages,
  kv_window_pages,
  tuning,
  pinning,
  count,
};

// Which rank, or group of ranks, gets a sequence where each has its own, as sched/owner_choice.h chooses.
inline constexpr std::string_view owner_rule =
    "a sequence goes to the owner that has most of its prompt, unless that one runs 4 sequences more than "
    "another; else to the one that runs fewest, then to the one with fewest pages in use, then to the first";

struct Rejected {
  std::string value;
  std::string why;
  bool operator==(const Rejected&) const = default;
};

// A row of a plan.
struct Choice {
  std::string field;  // "moe_runner"
  std::string value;
  std::string from;  // user, rule:<id> or default
  std::string why;
  std::vector<Rejected> rejected;
  std::vector<std::string> alternatives;  // what would run here too, in order of preference
  bool operator==(const Choice&) const = default;
};

// Of one rank, in bytes.
struct MemoryPlan {
  std::int64_t weights = 0;
  std::int64_t kv = 0;         // keys and values, and states with their snapshots where a model has them
  std::int64_t snapshots = 0;  // of it
  std::int64_t workspace = 0;  // activations, logits and sampling
  std::int64_t graphs = 0;
  std::int64_t total = 0;
  std::int64_t budget = 0;     // what may be taken
  std::int64_t capacity = 0;   // what there is
  std::int64_t kv_tokens = 0;  // positions that fit
  double max_concurrency = 0;  // sequences of max_model_len
  bool operator==(const MemoryPlan&) const = default;
};

// What the bytes and products of the model allow on the machine; 0 where the machine's rates are unknown.
struct BoundPlan {
  static constexpr int context = 1024;  // positions before a decoded token
  static constexpr int batches[] = {1, 8, 32, 128};
  static constexpr int prompts[] = {128, 1024, 8192, 32768};
  double bytes_per_token = 0;  // of weights that a step of one token reads, all ranks together
  double kv_bytes_per_token = 0;
  double flops_per_token = 0;  // of products with weights, lm_head left out, as in a prefill
  double decode_tokens_per_s[std::size(batches)] = {};
  double prefill_tokens_per_s = 0;                // of a prompt of 8,192 tokens, or of what the context holds
  double first_token_s[std::size(prompts)] = {};  // 0 also where the context is shorter
  bool operator==(const BoundPlan&) const = default;
};

struct Plan {
  ModelTraits model;
  Machine machine;

  DeviceKind device = DeviceKind::cpu;
  int threads = 1;
  bool pin_threads = false;
  int tensor_parallel = 1;
  int first_gpu = 0;  // of this process, among those that it sees
  int expert_parallel = 1;
  int data_parallel = 1;            // ranks, or groups of them, with sequences of their own; 1: all have all
  bool experts_everywhere = false;  // each GPU has all experts, whoever multiplies for them
  bool by_nccl = false;             // GPUs gather by NCCL
  DType dtype = DType::bf16;
  bool int8_products = false;  // inputs of weights in blocks are rounded once more
  bool fp8_prompts = false;    // inputs of FP8 weights are, in steps of prompts alone
  Quantization quantization = Quantization::none;
  DType kv_dtype = DType::bf16;
  ExpertPath experts;
  int many_tokens_from = 0;  // on a GPU: tokens an expert from which its kernel for many is taken
  WeightLines weight_lines = WeightLines::each;
  std::string_view attention;  // a name of attention_table()
  int max_num_batched_tokens = 0;
  int max_num_seqs = 0;
  int max_logit_rows = 0;
  int page_size = 0;
  int max_model_len = 0;
  int kv_pages = 0;
  int kv_window_pages = 0;
  bool cuda_graphs = false;
  bool prefix_cache = false;
  int snapshot_interval = 0;  // positions from one snapshot of a state to the next; 0: none are kept
  int state_snapshots = 0;
  int draft_tokens = 0;  // of next tokens, that a step checks at most
  bool looks_up_drafts = false;
  std::string tuning_model;  // what an entry of a tuning table is for

  std::vector<Choice> choices;
  std::vector<GateResult> gates;
  std::vector<std::string> not_built;  // kernels of it that this program does not have
  MemoryPlan memory;
  BoundPlan bound;

  // Of rows, sequences or positions of a step: those of one rank, or group, that has sequences of its own.
  int of_owner(int all) const { return (all + data_parallel - 1) / data_parallel; }
  const Choice& choice(std::string_view field) const;
  // Gates that are not open and that the user overrode: what needs them may fail.
  std::vector<std::string> degraded_by() const;
  bool operator==(const Plan&) const = default;
};

Result<Plan> resolve(const EngineOptions& options, const Machine& machine, const ModelTraits& model);

// The screen of `nibble plan`, lines of at most `columns` characters.
std::string plan_text(const Plan& plan, int columns);
// The same choices, one below the other, as a log at the start has them; lines of at most `columns`
// characters.
std::string startup_text(const Plan& plan, int columns = std::numeric_limits<int>::max());
std::string plan_json(const Plan& plan);
// The members of plan_json, for who puts them into an object of their own.
void write_plan(const Plan& plan, JsonWriter& json);
void write_choices(std::span<const Choice> choices, JsonWriter& json);

// "1,234,567"
std::string grouped(std::int64_t number);

}  // namespace nibble
