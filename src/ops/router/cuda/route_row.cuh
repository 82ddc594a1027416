// One row's choice of experts, by a warp.
#pragma once

#include <cstdint>

namespace nibble {

// Ascending with the value, both zeros alike; 0 for a NaN.
__device__ __forceinline__ std::uint32_t rank_of(float logit) {
  if (!(logit == logit)) return 0;
  const std::uint32_t bits = __float_as_uint(logit + 0.0f);
  return bits >> 31 ? ~bits : bits | 0x80000000u;
}

// Lane i < top_k stores choice i. Each choice is the largest of what lies behind the last one in the order
// (logit, then lower index), so nothing is marked as taken. The ranks of the first held experts stay in
// registers.
__device__ __forceinline__ void route_row(const float* logits, int experts, int top_k,
                                          std::int32_t* expert_ids, float* expert_weights) {
  constexpr unsigned all_lanes = 0xffffffffu;
  constexpr int held = 4;  // of a lane
  const int lane = static_cast<int>(threadIdx.x) % 32;
  std::uint32_t ranks[held];
#pragma unroll
  for (int i = 0; i < held; ++i) ranks[i] = lane + 32 * i < experts ? rank_of(logits[lane + 32 * i]) : 0;
  std::uint32_t last_rank = 0xffffffffu;  // no number's
  int last_expert = 0;
  int my_expert = 0;
#pragma unroll 1
  for (int choice = 0; choice < top_k; ++choice) {
    std::uint32_t best_rank = 0;
    int best_expert = experts;  // none yet
    const auto consider = [&](int expert, std::uint32_t rank) {
      const bool behind = rank < last_rank || (rank == last_rank && expert > last_expert);
      if (behind && (best_expert == experts || rank > best_rank)) {
        best_rank = rank;
        best_expert = expert;
      }
    };
#pragma unroll
    for (int i = 0; i < held; ++i) {
      if (lane + 32 * i < experts) consider(lane + 32 * i, ranks[i]);
    }
#pragma unroll 1
    for (int expert = lane + 32 * held; expert < experts; expert += 32)
      consider(expert, rank_of(logits[expert]));
    last_rank = __reduce_max_sync(all_lanes, best_rank);
    const bool has_it = best_expert < experts && best_rank == last_rank;
    last_expert = experts - static_cast<int>(__reduce_max_sync(
                                all_lanes, has_it ? static_cast<unsigned>(experts - best_expert) : 0u));
    if (lane == choice) my_expert = last_expert;
  }
  const float mine = lane < top_k ? logits[my_expert] : 0.0f;
  const float power = __expf(mine - __shfl_sync(all_lanes, mine, 0));
  float sum = 0;
#pragma unroll 4
  for (int choice = 0; choice < top_k; ++choice) sum += __shfl_sync(all_lanes, power, choice);
  if (lane < top_k) {
    expert_ids[lane] = my_expert;
    expert_weights[lane] = power / sum;
  }
}

}  // namespace nibble
