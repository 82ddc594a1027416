#include <cmath>
#include <cstdint>

#include "ops/rms_norm/rms_norm.h"

namespace nibble {
namespace {

float sum_of_squares(const float* x, int n) {
  constexpr int lane_count = 16;
  float lanes[lane_count] = {};
  int i = 0;
  for (; i + lane_count <= n; i += lane_count) {
    for (int lane = 0; lane < lane_count; ++lane) lanes[lane] += x[i + lane] * x[i + lane];
  }
  for (int lane = 0; i + lane < n; ++lane) lanes[lane] += x[i + lane] * x[i + lane];
  for (int width = lane_count / 2; width > 0; width /= 2) {
    for (int lane = 0; lane < width; ++lane) lanes[lane] += lanes[lane + width];
  }
  return lanes[0];
}

}  // namespace

void add_rms_norm(OpContext& context, const AddRmsNormArgs& args) {
  context.threads.parallel_for(args.rows, [&](int begin, int end) {
    for (int row = begin; row < end; ++row) {
      const std::int64_t offset = static_cast<std::int64_t>(row) * args.hidden;
      float* x = args.residual + offset;
      float* out = args.out + offset;
      if (args.delta != nullptr) {
        for (int i = 0; i < args.hidden; ++i) x[i] += args.delta[offset + i];
      }
      const float mean = sum_of_squares(x, args.hidden) / static_cast<float>(args.hidden);
      const float scale = 1.0f / std::sqrt(mean + args.eps);
      for (int i = 0; i < args.hidden; ++i)
        out[i] = context.activation(x[i] * scale * args.weight[i].to_float());
    }
  });
}

}  // namespace nibble
