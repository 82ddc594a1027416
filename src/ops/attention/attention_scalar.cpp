#include "formats/bf16.h"
#include "ops/attention/attention_kernels.h"
#include "ops/linear/dot_tile.h"

namespace nibble {
namespace {

// The vector as floats: in place where the cache holds floats, else widened into `room`.
const float* load_vector(const std::byte* from, std::int64_t element, int n, DType dtype, float* room) {
  if (dtype == DType::f32) return reinterpret_cast<const float*>(from) + element;
  const Bf16* in = reinterpret_cast<const Bf16*>(from) + element;
  for (int i = 0; i < n; ++i) room[i] = in[i].to_float();
  return room;
}

}  // namespace

void scalar_attend_split(const HeadGroup& group, const KvLayer& cache, std::span<const std::int32_t> pages,
                         int begin, int end, HeadSoftmax* splits) {
  const int head_dim = cache.head_dim;
  float room[max_head_dim], scores[kv_split];
  for (int head = 0; head < group.count; ++head) {
    HeadSoftmax& split = splits[head];
    for (int position = begin; position < end; ++position) {
      const std::int64_t at = kv_element(cache, pages, group.kv_head, position);
      const float* key = load_vector(cache.keys, at, head_dim, cache.dtype, room);
      const float score = dot(group.q + head * head_dim, key, head_dim) * group.scale;
      scores[position - begin] = score;
      // A NaN score must reach the result.
      split.maximum = score > split.maximum || score != score ? score : split.maximum;
    }
    for (int position = begin; position < end; ++position) {
      const std::int64_t at = kv_element(cache, pages, group.kv_head, position);
      const float* value = load_vector(cache.values, at, head_dim, cache.dtype, room);
      const float weight = fixed_exp(scores[position - begin] - split.maximum);
      split.weight += weight;
      for (int i = 0; i < head_dim; ++i) split.sum[i] += weight * value[i];
    }
  }
}

}  // namespace nibble
