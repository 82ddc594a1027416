#include <cmath>
#include <limits>

#include "formats/bf16.h"
#include "formats/e4m3.h"
#include "ops/attention/attention_kernels.h"
#include "ops/fixed_math.h"

namespace nibble {
namespace {

float stored_float(const std::byte* from, std::int64_t element, DType dtype) {
  switch (dtype) {
    case DType::bf16: return (reinterpret_cast<const Bf16*>(from) + element)->to_float();
    case DType::f8_e4m3: return (reinterpret_cast<const E4m3*>(from) + element)->to_float();
    default: return reinterpret_cast<const float*>(from)[element];
  }
}

}  // namespace

void scalar_attend_split(const QueryTile& tile, const SplitView& split, float* partials) {
  const int head_dim = split.head_dim;
  for (int query = 0; query < tile.count; ++query) {
    float* sum = partials + query * partial_floats(head_dim);
    float weights[kv_split];
    float maximum = -std::numeric_limits<float>::infinity();
    for (int position = tile.begin[query]; position < tile.end[query]; ++position) {
      float product = 0;
      for (int d = 0; d < head_dim; ++d) {
        const float key = stored_float(split.keys[position / kv_run],
                                       key_element(split.dtype, position % kv_run, d), split.dtype);
        product = std::fma(tile.q[query][d], key, product);
      }
      const float score = product * tile.scale;
      weights[position] = score;
      maximum = score > maximum ? score : maximum;
    }
    float lanes[kv_run] = {};
    for (int d = 0; d < head_dim; ++d) sum[d] = 0;
    for (int position = tile.begin[query]; position < tile.end[query]; ++position) {
      const float weight = fixed_exp(weights[position] - maximum);
      lanes[position % kv_run] += weight;
      for (int d = 0; d < head_dim; ++d) {
        const float value =
            stored_float(split.values[position / kv_run],
                         position % kv_run * head_dim + value_element(split.dtype, d), split.dtype);
        sum[d] = std::fma(weight, value, sum[d]);
      }
    }
    for (int width = kv_run / 2; width > 0; width /= 2) {
      for (int lane = 0; lane < width; ++lane) lanes[lane] += lanes[lane + width];
    }
    *partial_maximum(sum, head_dim) = maximum;
    *partial_weight(sum, head_dim) = lanes[0];
  }
}

}  // namespace nibble
