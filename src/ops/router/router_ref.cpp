#include "base/check.h"
#include "ops/fixed_math.h"
#include "ops/router/router.h"

namespace nibble {

void route_top_k(OpContext& context, const RouteTopKArgs& args) {
  NIBBLE_CHECK(args.top_k >= 1 && args.top_k <= args.experts);
  context.threads.parallel_for(args.rows, [&](int begin, int end) {
    for (int row = begin; row < end; ++row) {
      const float* logits = args.logits + static_cast<std::int64_t>(row) * args.experts;
      std::int32_t* ids = args.expert_ids + static_cast<std::int64_t>(row) * args.top_k;
      float* weights = args.expert_weights + static_cast<std::int64_t>(row) * args.top_k;
      // Insertion into a sorted list of k: an expert displaces only strictly smaller logits. A NaN compares
      // larger than nothing and stays behind; the NaN it came from reaches the result through the residual.
      int kept = 0;
      for (int expert = 0; expert < args.experts; ++expert) {
        int place = kept;
        while (place > 0 && logits[expert] > logits[ids[place - 1]]) --place;
        if (place == args.top_k) continue;
        if (kept < args.top_k) ++kept;
        for (int i = kept - 1; i > place; --i) ids[i] = ids[i - 1];
        ids[place] = expert;
      }
      float sum = 0;
      for (int i = 0; i < args.top_k; ++i) {
        weights[i] = fixed_exp(logits[ids[i]] - logits[ids[0]]);
        sum += weights[i];
      }
      for (int i = 0; i < args.top_k; ++i) weights[i] /= sum;
    }
  });
}

}  // namespace nibble
