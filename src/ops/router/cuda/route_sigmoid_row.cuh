// One row's choice of experts by sigmoids, by a warp: what experts are chosen by lies in shared memory, where
// a lane finds the two best of its groups; then a lane has its experts' ranks in registers.
#pragma once

#include <cstdint>

#include "ops/fixed_math.h"
#include "ops/router/cuda/route_row.cuh"
#include "ops/router/cuda/route_sigmoid_cuda.h"

namespace nibble {

__device__ __forceinline__ float sigmoid(float x) { return 1.0f / (1.0f + fixed_exp(-x)); }

// The best of numbered candidates, of which lane i has those that leave i when divided by 32: the highest
// rank, and of equals the lowest number. Rank 0 is that of one that cannot be chosen.
template <int count>
struct Candidates {
  std::uint32_t rank[count];

  // The chosen one, which no later choice finds.
  __device__ __forceinline__ int take() {
    constexpr unsigned all_lanes = 0xffffffffu;
    const int lane = static_cast<int>(threadIdx.x) % 32;
    std::uint32_t own = 0;
    int place = 0;
#pragma unroll
    for (int i = 0; i < count; ++i) {
      place = rank[i] > own ? i : place;
      own = max(own, rank[i]);
    }
    const std::uint32_t best = __reduce_max_sync(all_lanes, own);
    const unsigned number = static_cast<unsigned>(place * 32 + lane);
    const int chosen = static_cast<int>(__reduce_min_sync(all_lanes, own == best ? number : all_lanes));
#pragma unroll
    for (int i = 0; i < count; ++i) rank[i] = i * 32 + lane == chosen ? 0 : rank[i];
    return chosen;
  }
};

struct SigmoidRow {
  const float* logits;  // [experts]
  float* choices;       // [experts] in shared memory, for what experts are chosen by
  int experts, top_k;
};

// A bit for each group whose experts may be chosen.
__device__ __forceinline__ std::uint64_t kept_groups(const SigmoidRule& rule, const SigmoidRow& row) {
  if (rule.groups == 1) return 1;
  constexpr int groups_of_lane = route_sigmoid_most_groups / 32;
  constexpr std::uint32_t none = 0xff800000u;  // minus infinity
  const int lane = static_cast<int>(threadIdx.x) % 32, of_group = row.experts / rule.groups;
  Candidates<groups_of_lane> groups;
#pragma unroll
  for (int i = 0; i < groups_of_lane; ++i) {
    const int group = i * 32 + lane;
    groups.rank[i] = 0;
    if (group >= rule.groups) continue;
    float best = __uint_as_float(none), second = best;
    // Each lane begins elsewhere in its group, so that lanes read from different banks.
    int at = lane % of_group;
#pragma unroll 8
    for (int expert = 0; expert < of_group; ++expert) {
      const float choice = row.choices[group * of_group + at];
      at = at + 1 < of_group ? at + 1 : 0;
      second = choice > best ? best : choice > second ? choice : second;
      best = choice > best ? choice : best;
    }
    groups.rank[i] = rank_of(of_group == 1 ? best : best + second);
  }
  std::uint64_t kept = 0;
#pragma unroll 1
  for (int i = 0; i < rule.top_groups; ++i) kept |= std::uint64_t{1} << groups.take();
  return kept;
}

// Of up to 32 x `held` experts. Lane i < top_k stores choice i, if the row's choices are to be stored.
template <int held>
__device__ __forceinline__ void choose_by_sigmoid(const SigmoidRule& rule, const SigmoidRow& row,
                                                  std::int32_t* expert_ids, float* expert_weights,
                                                  bool stores) {
  constexpr unsigned all_lanes = 0xffffffffu;
  const int lane = static_cast<int>(threadIdx.x) % 32, experts = row.experts, top_k = row.top_k;
  float choice[held];
#pragma unroll
  for (int i = 0; i < held; ++i) {  // all loads at once
    const int expert = min(i * 32 + lane, experts - 1);
    choice[i] = sigmoid(row.logits[expert]) + (rule.bias == nullptr ? 0.0f : rule.bias[expert]);
  }
  if (rule.groups > 1) {
#pragma unroll
    for (int i = 0; i < held; ++i) {
      if (i * 32 + lane < experts) row.choices[i * 32 + lane] = choice[i];
    }
    __syncwarp();  // each lane's choices are there
  }
  const std::uint64_t kept = kept_groups(rule, row);
  const int of_group = experts / rule.groups;
  Candidates<held> candidates;
#pragma unroll
  for (int i = 0; i < held; ++i) {
    const int expert = i * 32 + lane;
    const bool open = expert < experts && (rule.groups == 1 || (kept >> (expert / of_group) & 1) != 0);
    candidates.rank[i] = open ? rank_of(choice[i]) : 0;
  }
  int own = 0;
#pragma unroll 1
  for (int i = 0; i < top_k; ++i) {
    const int expert = candidates.take();
    own = lane == i ? expert : own;
  }
  float weight = sigmoid(row.logits[own]), sum = 0;
#pragma unroll 1
  for (int i = 0; i < top_k; ++i) sum = __fadd_rn(sum, __shfl_sync(all_lanes, weight, i));
  if (rule.renormalise) weight = weight / __fadd_rn(sum, 1e-20f);
  if (!stores || lane >= top_k) return;
  expert_ids[lane] = own;
  expert_weights[lane] = __fmul_rn(weight, rule.scale);
}

__device__ __forceinline__ void route_sigmoid_row(const SigmoidRule& rule, const SigmoidRow& row,
                                                  std::int32_t* expert_ids, float* expert_weights,
                                                  bool stores = true) {
  if (row.experts <= 64) {
    choose_by_sigmoid<2>(rule, row, expert_ids, expert_weights, stores);
  } else if (row.experts <= 256) {
    choose_by_sigmoid<8>(rule, row, expert_ids, expert_weights, stores);
  } else {
    choose_by_sigmoid<route_sigmoid_most_experts / 32>(rule, row, expert_ids, expert_weights, stores);
  }
}

}  // namespace nibble
