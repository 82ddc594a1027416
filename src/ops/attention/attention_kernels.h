// What an implementation of paged attention has to give, and the arithmetic that all of them share.
#pragma once

#include <limits>
#include <span>
#include <string_view>

#include "ops/attention/attention.h"
#include "ops/fixed_math.h"

namespace nibble {

inline constexpr int max_head_dim = 256;
// Query heads that an implementation is given at once; they share a KV head.
inline constexpr int max_group_heads = 8;

// Running result of one query head over the positions so far.
struct HeadSoftmax {
  float maximum = -std::numeric_limits<float>::infinity();
  float weight = 0;              // sum of e^(s - maximum)
  float sum[max_head_dim] = {};  // sum of e^(s - maximum) v
};

// Consecutive query heads of one row that read one KV head.
struct HeadGroup {
  const float* q = nullptr;  // [count, head_dim]
  int count = 0;             // at most max_group_heads
  int kv_head = 0;
  float scale = 1.0f;
};

// Positions [begin, end) of one split, for each head of the group; `splits` come in fresh.
struct AttentionKernels {
  std::string_view name;
  bool (*supported)();  // by this machine
  void (*attend_split)(const HeadGroup& group, const KvLayer& cache, std::span<const std::int32_t> pages,
                       int begin, int end, HeadSoftmax* splits);
};

// In order of preference; the last one runs anywhere. All give the same bits.
std::span<const AttentionKernels> attention_kernels();

// The contract in plain C++, the oracle of the others.
void scalar_attend_split(const HeadGroup& group, const KvLayer& cache, std::span<const std::int32_t> pages,
                         int begin, int end, HeadSoftmax* splits);
void avx2_attend_split(const HeadGroup& group, const KvLayer& cache, std::span<const std::int32_t> pages,
                       int begin, int end, HeadSoftmax* splits);

// Where the vectors of a position lie in the cache.
inline std::int64_t kv_element(const KvLayer& cache, std::span<const std::int32_t> pages, int kv_head,
                               int position) {
  return cache.element(pages[static_cast<std::size_t>(position / cache.page_size)], kv_head,
                       position % cache.page_size);
}

}  // namespace nibble
