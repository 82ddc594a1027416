// How much of a rank's memory the decided fields leave for keys and values.
#pragma once

#include <cstdint>

#include "plan/memory.h"
#include "plan/rules.h"

namespace nibble {

// Without --gpu-memory-utilization: of a GPU's memory.
inline constexpr double usual_gpu_share = 0.9;

// What a step takes on a GPU where the user leaves it open.
inline constexpr int usual_gpu_rows = 8192;
inline constexpr int usual_gpu_sequences = 128;

// Ranks that have sequences of their own: all, or 1.
int owners_of(const Situation& situation);
// Ranks that divide the heads of a sequence.
int sharers_of(const Situation& situation);
// Of a step, at most on one rank.
std::int64_t sequences_of_rank(const Situation& situation);
std::int64_t rows_of_rank(const Situation& situation);
Quantization quantization_of(const Situation& situation);
DType kv_dtype_of(const Situation& situation);
// On a rank, with copies of experts where they are decided.
std::int64_t weights_of(const Situation& situation);
// Of keys and values, as the chosen attention takes them.
int page_size_of(const Situation& situation);
StepLimits step_limits(const Situation& situation, std::int64_t positions);

// What may be taken on a rank: a share of a GPU's memory, or on a CPU of the machine's where a share was
// asked for, else the weights and half of what is free beside them.
std::int64_t memory_budget(const Situation& situation);
// Positions whose keys and values fit, whole pages of them. On a CPU without a share asked for, workspaces
// come from the half that keys and values leave.
std::int64_t affordable_tokens(const Situation& situation);
// The same, or what --kv-cache-tokens says where that is less.
std::int64_t usable_tokens(const Situation& situation);
// Snapshots of states that fit, in a share of what states and weights leave: the rest is for keys and values,
// without which a snapshot serves nobody.
std::int64_t affordable_snapshots(const Situation& situation);
// Of all decided fields.
MemoryPlan plan_memory(const Situation& situation);

}  // namespace nibble
