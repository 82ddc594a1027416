// One rank: a model, its KV memory and what runs it. Takes a planned batch, gives each sequence's token.
#pragma once

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>

#include "base/status.h"
#include "base/time_table.h"
#include "checkpoint/model_config.h"
#include "checkpoint/weight_source.h"
#include "comm/peer_watch.h"
#include "comm/token_exchange.h"
#include "core/batch.h"
#include "core/ran_table.h"
#include "models/dense_conversion.h"
#include "ops/moe/many_tokens.h"
#include "runtime/kernel_choice.h"
#include "tensor/dtype.h"

namespace nibble {

struct WorkerLimits {
  int device = 0;   // on a GPU: which of this process's
  int threads = 0;  // 0: as many as can run at the same time
  bool pin_threads = false;
  int ranks = 1;         // that share the model: GPUs from `device` on, or threads of this process on a CPU
  int expert_ranks = 1;  // ranks that the experts are spread over
  // On a CPU: so many groups of ranks have sequences of their own, of which a step has so many and so many of
  // their rows. 1: all ranks have all.
  int owners = 1;
  int owner_rows = 0, owner_sequences = 0;
  bool experts_everywhere = false;  // on GPUs: each has all experts all the same
  bool by_nccl = false;             // there: ranks cannot write each other's memory
  ExchangeKind exchange = ExchangeKind::none;
  // For a rank of a CPU that does not come to a meeting, from its last piece of work on: ranks may share CPUs
  // with other programs.
  std::chrono::milliseconds rank_deadline{20000};
  StillnessLimits rank_stillness;  // likewise
  std::chrono::milliseconds gpu_rank_deadline{2000};
  int max_rows = 0;  // of all ranks together, and so are these
  int max_logit_rows = 0;
  int max_sequences = 0;
  // Drafts of a step. Where it has any, they and the sequences that decode are one more at most.
  int max_drafts = 0;
  int max_snapshots = 0;  // of states, where layers keep one
  int max_positions = 0;  // of one sequence
  InputValues activations = InputValues::any_float;
  DType kv_dtype = DType::f32;
  int page_size = 0;
  std::array<int, page_groups> page_counts{};
  const DotKernels* dots = nullptr;
  WeightLines weight_lines = WeightLines::each;
  const AttentionKernels* attention = nullptr;
  DenseFormat dense = DenseFormat::bf16;
  bool graphs = false;  // on a GPU
  int many_tokens_from =
      moe_many_tokens_unplanned;  // there: tokens an expert from which its kernel for many is taken

  // Rows of a step that only decodes, at most.
  int max_decode_rows() const {
    return std::max(max_sequences, std::min({max_drafts + 1, max_rows, max_logit_rows}));
  }
};

class Worker {
 public:
  virtual ~Worker() = default;

  // A step in three calls, for each batch in this order: its forward begins; its tokens are chosen, once the
  // masks and the tokens that the choice looks at are known; its results are taken. On a device the first two
  // only queue. Then the next step's forward may begin before the results of this one are there: at most two
  // steps have begun, and finish() takes the results of the older. An error means that the weights are no
  // longer what was loaded; nothing may be run after it.
  virtual Status forward(const Batch& batch) = 0;
  virtual Status choose(const Batch& batch) = 0;
  // results: one a sequence of the batch; what else a sequence asked for goes to its rooms.
  virtual Status finish(const Batch& batch, std::span<StepResult> results) = 0;
  Status run(const Batch& batch, std::span<StepResult> results) {
    NIBBLE_RETURN_IF_ERROR(forward(batch));
    NIBBLE_RETURN_IF_ERROR(choose(batch));
    return finish(batch, results);
  }

  // Whether the forward of `next`, planned while the step that was chosen last runs, may begin before that is
  // finished. Of its sequences those that ended meanwhile are empty by the time it is finished.
  virtual bool may_begin_behind(const Batch& /*next*/) const { return false; }
  // Whether its tokens may be chosen by then too: nothing about the choice depends on tokens to come.
  virtual bool may_choose_behind(const Batch& /*next*/) const { return false; }

  // From now on each run adds its ops' times to the table, which outlives that; null: to none.
  virtual void time_ops(TimeTable* table) = 0;

  // What ranks have found of each other; any thread may ask. Who sees that a step does not come back asks
  // again and again, for then nobody may wait for the rank whose thread it is.
  virtual Status failure() const { return {}; }
  // Since the start; no step may be running.
  virtual RanTable ran() const = 0;

  virtual int threads() const = 0;
  // Of the weights' files, mapped while they were loaded.
  virtual std::int64_t mapped_bytes() const = 0;
  // Of a GPU's memory, measured once everything was taken; 0 on a CPU.
  virtual std::int64_t device_bytes() const = 0;
};

}  // namespace nibble
