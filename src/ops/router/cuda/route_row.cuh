// One row's choice of experts, by a warp.
#pragma once

#include <cstdint>

namespace nibble {

// Ascending with the value, both zeros alike; 1 for a NaN, and 0 is no logit's.
__device__ __forceinline__ std::uint32_t rank_of(float logit) {
  if (!(logit == logit)) return 1;
  const std::uint32_t bits = __float_as_uint(logit + 0.0f);
  return bits >> 31 ? ~bits : bits | 0x80000000u;
}
// Of both zeros the positive one.
__device__ __forceinline__ float logit_of(std::uint32_t rank) {
  return __uint_as_float(rank >> 31 ? rank ^ 0x80000000u : ~rank);
}

// The experts of a lane, those that leave its number when divided by 32: the best that has not been taken, in
// the order (logit, then lower index), whose rank is 0 if there is none. Of up to 128 experts in all a lane's
// lie sorted in registers.
struct FewOfLane {
  static constexpr int held = 4, most = held * 32;
  std::uint32_t rank[held];
  int expert[held];

  __device__ __forceinline__ FewOfLane(const float* logits, int experts) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
    for (int i = 0; i < held; ++i) {
      expert[i] = lane + 32 * i;
      const std::uint32_t here = rank_of(logits[min(expert[i], experts - 1)]);  // all loads at once
      rank[i] = expert[i] < experts ? here : 0;
    }
    // Neighbours change places, so equal ones stay in order.
#pragma unroll
    for (int round = 0; round < held; ++round) {
#pragma unroll
      for (int i = round % 2; i + 1 < held; i += 2) {
        const bool swaps = rank[i] < rank[i + 1];
        const std::uint32_t low_rank = swaps ? rank[i] : rank[i + 1];
        const int low_expert = swaps ? expert[i] : expert[i + 1];
        rank[i] = swaps ? rank[i + 1] : rank[i];
        expert[i] = swaps ? expert[i + 1] : expert[i];
        rank[i + 1] = low_rank;
        expert[i + 1] = low_expert;
      }
    }
  }
  __device__ __forceinline__ std::uint32_t best_rank() const { return rank[0]; }
  __device__ __forceinline__ int best_expert() const { return expert[0]; }
  __device__ __forceinline__ void take_best() {
#pragma unroll
    for (int i = 0; i < held; ++i) {
      rank[i] = i + 1 < held ? rank[i + 1] : 0;
      if (i + 1 < held) expert[i] = expert[i + 1];
    }
  }
};

// Of up to 32 x `held` experts, in registers as they come: to look through them takes less time than to load
// them anew for each choice.
template <int held>
struct SomeOfLane {
  static constexpr int most = held * 32;
  std::uint32_t rank[held], best;
  int at = 0;  // of the best

  __device__ __forceinline__ SomeOfLane(const float* logits, int experts) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
    for (int i = 0; i < held; ++i) {
      const std::uint32_t here = rank_of(logits[min(lane + 32 * i, experts - 1)]);  // all loads at once
      rank[i] = lane + 32 * i < experts ? here : 0;
    }
    look();
  }
  __device__ __forceinline__ void look() {
    best = rank[0];
    at = 0;
#pragma unroll
    for (int i = 1; i < held; ++i) {
      at = rank[i] > best ? i : at;  // of equal ones the first
      best = max(best, rank[i]);
    }
  }
  __device__ __forceinline__ std::uint32_t best_rank() const { return best; }
  __device__ __forceinline__ int best_expert() const { return static_cast<int>(threadIdx.x) % 32 + 32 * at; }
  __device__ __forceinline__ void take_best() {
#pragma unroll
    for (int i = 0; i < held; ++i) rank[i] = i == at ? 0 : rank[i];
    look();
  }
};

// Any number: what has been taken lies before the best, so nothing is marked as taken.
struct ManyOfLane {
  const float* logits;
  int experts;
  std::uint32_t rank = 0xffffffffu;  // no number's
  int expert = 0;

  __device__ __forceinline__ ManyOfLane(const float* of_row, int count) : logits(of_row), experts(count) {
    take_best();
  }
  __device__ __forceinline__ std::uint32_t best_rank() const { return rank; }
  __device__ __forceinline__ int best_expert() const { return expert; }
  __device__ __forceinline__ void take_best() {
    const std::uint32_t last_rank = rank;
    const int last_expert = expert;
    rank = 0;
#pragma unroll 1
    for (int i = static_cast<int>(threadIdx.x) % 32; i < experts; i += 32) {
      const std::uint32_t here = rank_of(logits[i]);
      if (here > rank && (here < last_rank || (here == last_rank && i > last_expert))) {
        rank = here;
        expert = i;
      }
    }
  }
};

// Lane i's choice i < top_k, as it enters the softmax, and the softmax's sum over the chosen; the largest
// logit, which powers are taken from.
struct LaneChoice {
  int expert = 0;
  float power = 0, sum = 0, first = 0;
};

// A choice's logit is known from its rank to all lanes at once, so powers and sum come along with the
// choices.
template <class OfLane>
__device__ __forceinline__ LaneChoice choose(OfLane own, int top_k) {
  constexpr unsigned all_lanes = 0xffffffffu;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  LaneChoice mine;
#pragma unroll 1
  for (int choice = 0; choice < top_k; ++choice) {
    const std::uint32_t rank = __reduce_max_sync(all_lanes, own.best_rank());
    const int expert = static_cast<int>(__reduce_min_sync(
        all_lanes, own.best_rank() == rank ? static_cast<unsigned>(own.best_expert()) : all_lanes));
    if (own.best_expert() == expert) own.take_best();
    const float logit = logit_of(rank);
    if (choice == 0) mine.first = logit;
    const float power = __expf(logit - mine.first);
    mine.sum += power;
    if (lane == choice) {
      mine.expert = expert;
      mine.power = power;
    }
  }
  return mine;
}

// The softmax's sum over all experts: a lane's in order, then lanes as a butterfly (16, 8, 4, 2, 1 apart).
__device__ __forceinline__ float sum_of_all(const float* logits, int experts, float first) {
  float sum = 0;
#pragma unroll 1
  for (int i = static_cast<int>(threadIdx.x) % 32; i < experts; i += 32) sum += __expf(logits[i] - first);
#pragma unroll
  for (int apart = 16; apart > 0; apart /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, apart);
  return sum;
}

// Which experts, and what their weights are shares of.
struct RowChoice {
  int experts, top_k;
  bool of_all;  // a softmax over all experts, not over the chosen
};

// Lane i < top_k stores choice i, if the row's choices are to be stored.
__device__ __forceinline__ void route_row(const float* logits, const RowChoice& choice,
                                          std::int32_t* expert_ids, float* expert_weights,
                                          bool stores = true) {
  const int lane = static_cast<int>(threadIdx.x) % 32, experts = choice.experts, top_k = choice.top_k;
  LaneChoice mine;
  if (experts <= FewOfLane::most) {
    mine = choose(FewOfLane(logits, experts), top_k);
  } else if (experts <= SomeOfLane<8>::most) {
    mine = choose(SomeOfLane<8>(logits, experts), top_k);
  } else if (experts <= SomeOfLane<16>::most) {
    mine = choose(SomeOfLane<16>(logits, experts), top_k);
  } else {
    mine = choose(ManyOfLane(logits, experts), top_k);
  }
  if (choice.of_all) mine.sum = sum_of_all(logits, experts, mine.first);
  if (!stores || lane >= top_k) return;
  expert_ids[lane] = mine.expert;
  expert_weights[lane] = mine.power / mine.sum;
}

}  // namespace nibble
