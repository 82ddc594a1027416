// What a block of threads does with a share of a row of logits: their order, their masses, and the search for
// the place where a running sum passes a mark.
#pragma once

#include <cstdint>

#include "ops/fixed_math.h"
#include "ops/sample/cuda/sample_cuda.h"

namespace nibble::sampling {

using Mass = long long;

constexpr unsigned all_lanes = 0xffffffffu;
constexpr int block_ids = sample_cuda_block;
constexpr int row_threads = 512;
constexpr int row_warps = row_threads / 32;
constexpr std::uint32_t not_finite = 0xffffffffu;  // no number's rank

// Sums of whole numbers, in any order; what was there before.
__device__ __forceinline__ int add_to(int* sum, int more) { return atomicAdd(sum, more); }
__device__ __forceinline__ std::uint32_t add_to(std::uint32_t* sum, std::uint32_t more) {
  return atomicAdd(sum, more);
}
__device__ __forceinline__ void add_to(unsigned long long* sum, Mass more) {
  atomicAdd(sum, static_cast<unsigned long long>(more));
}

// Ascending with the logit, both zeros alike.
__device__ __forceinline__ std::uint32_t rank_of(float logit) {
  const std::uint32_t bits = __float_as_uint(logit + 0.0f);
  return bits >> 31 ? ~bits : bits | 0x80000000u;
}
__device__ __forceinline__ float logit_of(std::uint32_t rank) {
  return __uint_as_float(rank >> 31 ? rank & 0x7fffffffu : ~rank);
}
__device__ __forceinline__ bool is_finite(float logit) {
  return (__float_as_uint(logit) & 0x7f800000u) != 0x7f800000u;
}

// An id in the order of likelihood: the greater key is the likelier. No id's key is 0.
__device__ __forceinline__ std::uint64_t key_of(std::uint32_t rank, int id) {
  return std::uint64_t{rank} << 32 | ~static_cast<std::uint32_t>(id);
}
__device__ __forceinline__ std::uint32_t rank_of_key(std::uint64_t key) {
  return static_cast<std::uint32_t>(key >> 32);
}
__device__ __forceinline__ int id_of_key(std::uint64_t key) {
  return static_cast<int>(~static_cast<std::uint32_t>(key));
}

// A token's weight at the temperature, relative to the likeliest one's 1, and what is drawn from.
struct Weighing {
  float largest, temperature;

  __device__ float weight(float logit) const {
    const float below = __fsub_rn(logit, largest);
    return fixed_exp_of_negative(temperature == 1.0f ? below : below / temperature);
  }
  __device__ static Mass mass(float weight) { return static_cast<Mass>(__fmul_rn(weight, 0x1p40f)); }
  __device__ Mass mass_of(float logit) const { return mass(weight(logit)); }

  // Weights in falling order of magnitude, a thirty-second of a power of two in each; the CPU's.
  static constexpr std::uint32_t buckets = 41 * 32;
  __device__ static std::uint32_t bucket(float weight) {
    return min((__float_as_uint(1.0f) - __float_as_uint(weight)) >> 18, buckets - 1);
  }
};

// What is left of a row after some filters, as the CPU's Kept.
struct Kept {
  std::uint32_t last_rank = 0;
  int last_id = 0x7fffffff;
  float least_weight = 0;

  __device__ bool has(std::uint32_t rank, int id) const {
    return rank > last_rank || (rank == last_rank && id <= last_id);
  }
};

// The ranks that begin with certain bits: all of them at first, narrowed digit by digit. Digits count
// downwards, so that the likelier come first.
struct Prefix {
  std::uint32_t value = 0;
  int bits = 0;

  __device__ bool has(std::uint32_t rank) const { return bits == 0 || (rank ^ value) >> (32 - bits) == 0; }
  __device__ bool under(std::uint32_t rank) const { return bits > 0 && rank > value && !has(rank); }
  __device__ bool whole() const { return bits == 32; }
  __device__ int bins() const { return bits < 22 ? 2048 : 1024; }
  __device__ int shift() const { return bits == 0 ? 21 : bits == 11 ? 10 : 0; }
  __device__ int bin(std::uint32_t rank) const {
    return bins() - 1 - static_cast<int>(rank >> shift() & static_cast<std::uint32_t>(bins() - 1));
  }
  __device__ void narrow(int bin) {
    value |= static_cast<std::uint32_t>(bins() - 1 - bin) << shift();
    bits = bits == 22 ? 32 : bits + 11;
  }
};

// The greatest key of the warp's; two reductions of words.
__device__ __forceinline__ std::uint64_t greatest_of_warp(std::uint64_t own) {
  const std::uint32_t rank = rank_of_key(own), most = __reduce_max_sync(all_lanes, rank);
  const std::uint32_t id = __reduce_max_sync(all_lanes, rank == most ? static_cast<std::uint32_t>(own) : 0u);
  return std::uint64_t{most} << 32 | id;
}

// The part in which a running sum first exceeds a mark, and how much of the mark is in it.
struct Found {
  int index;
  Mass left;
};

// In shared memory.
struct SearchRoom {
  Mass of_warp[row_warps];
  std::uint64_t keys[row_warps];
  Found found;
  int count;
};

__device__ __forceinline__ Mass mass_of_warp(Mass own) {
  for (int apart = 16; apart > 0; apart /= 2) own += __shfl_xor_sync(all_lanes, own, apart);
  return own;
}

// The sum of what each thread has, to all threads.
__device__ __forceinline__ Mass add_up(SearchRoom& room, Mass own) {
  own = mass_of_warp(own);
  if (threadIdx.x % 32 == 0) room.of_warp[threadIdx.x / 32] = own;
  __syncthreads();  // every warp's sum is there
  Mass sum = 0;
  for (int warp = 0; warp < row_warps; ++warp) sum += room.of_warp[warp];
  __syncthreads();  // the place may be used again
  return sum;
}

// Of the parts value(0), value(1), ... (`count` of them, at most four a thread), the one in which their
// running sum first exceeds `left`; left is below their sum.
template <class Value>
__device__ __forceinline__ Found find_part(SearchRoom& room, int count, Mass left, const Value& value) {
  const int thread = static_cast<int>(threadIdx.x), lane = thread % 32, warp = thread / 32,
            first = thread * 4;
  Mass own[4], sum = 0;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    own[i] = first + i < count ? value(first + i) : 0;
    sum += own[i];
  }
  Mass up_to = sum;
  for (int step = 1; step < 32; step *= 2) {
    const Mass before = __shfl_up_sync(all_lanes, up_to, step);
    if (lane >= step) up_to += before;
  }
  if (lane == 31) room.of_warp[warp] = up_to;
  __syncthreads();  // every warp's sum is there
  for (int i = 0; i < warp; ++i) up_to += room.of_warp[i];
  Mass rest = left - (up_to - sum);
  if (rest >= 0 && rest < sum) {
    int index = first;
    bool before = true;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      before = before && rest >= own[i];
      if (before) rest -= own[i], ++index;
    }
    room.found = {index, rest};
  }
  __syncthreads();  // the result is there
  const Found found = room.found;
  __syncthreads();  // it has been read
  return found;
}

// The id of tie number `number` (from 0) of this rank among the kept ids of [first, past).
__device__ __forceinline__ int find_tie(SearchRoom& room, const float* logits, const Kept& kept,
                                        std::uint32_t rank, int first, int past, int number) {
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int each = ((past - first + row_warps - 1) / row_warps + 31) / 32 * 32;
  const int begin = min(first + warp * each, past), end = min(begin + each, past);
  const auto ties_at = [&](int at) {  // among 32 ids
    const int id = at + lane;
    return __ballot_sync(all_lanes, id < end && rank_of(logits[id]) == rank && kept.has(rank, id));
  };
  int ties = 0;
  for (int at = begin; at < end; at += 32) ties += __popc(ties_at(at));
  if (lane == 0) room.of_warp[warp] = ties;
  __syncthreads();  // all ties are counted
  int left = number;
  for (int i = 0; i < warp; ++i) left -= static_cast<int>(room.of_warp[i]);
  if (left >= 0 && left < ties) {
    int at = begin;
    unsigned here = ties_at(at);
    while (left >= __popc(here)) {
      left -= __popc(here);
      here = ties_at(at += 32);
    }
    for (; left > 0; --left) here &= here - 1;
    if (lane == 0) room.count = at + __ffs(static_cast<int>(here)) - 1;
  }
  __syncthreads();  // the id is there
  const int id = room.count;
  __syncthreads();  // it has been read
  return id;
}

// Sums of masses by bin, in shared memory. Masses of up to 2^40 come in parts of 14 bits, for which there are
// atomic additions.
struct Histogram {
  std::uint32_t low[SampleCudaShares::bins], middle[SampleCudaShares::bins], high[SampleCudaShares::bins];

  template <int threads>
  __device__ void clear() {
    for (int i = static_cast<int>(threadIdx.x); i < SampleCudaShares::bins; i += threads)
      low[i] = middle[i] = high[i] = 0;
    __syncthreads();  // all bins are empty
  }
  __device__ void add(int bin, Mass mass) {
    constexpr std::uint32_t mask = (1u << 14) - 1;
    const auto word = static_cast<std::uint32_t>(mass);
    if ((word & mask) != 0) add_to(&low[bin], word & mask);
    const std::uint32_t next = static_cast<std::uint32_t>(mass >> 14) & mask;
    if (next != 0) add_to(&middle[bin], next);
    const auto last = static_cast<std::uint32_t>(mass >> 28);
    if (last != 0) add_to(&high[bin], last);
  }
  __device__ Mass sum(int bin) const {
    return static_cast<Mass>(low[bin]) + (static_cast<Mass>(middle[bin]) << 14) +
           (static_cast<Mass>(high[bin]) << 28);
  }
};

// Falling order; `count` keys, room for the next power of two.
__device__ __forceinline__ void sort_keys(std::uint64_t* keys, int count) {
  const int thread = static_cast<int>(threadIdx.x);
  int all = 1;
  while (all < count) all *= 2;
  for (int i = count + thread; i < all; i += row_threads) keys[i] = 0;
  __syncthreads();  // keys are there, and what fills them up
  for (int size = 2; size <= all; size *= 2) {
    for (int apart = size / 2; apart > 0; apart /= 2) {
      for (int i = thread; i < all / 2; i += row_threads) {
        const int a = (i & ~(apart - 1)) * 2 + (i & (apart - 1)), b = a + apart;
        const std::uint64_t first = keys[a], second = keys[b];
        if ((first < second) == ((a & size) == 0)) keys[a] = second, keys[b] = first;
      }
      __syncthreads();  // this step's exchanges are done
    }
  }
}

}  // namespace nibble::sampling
