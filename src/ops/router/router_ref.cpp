#include <algorithm>
#include <limits>

#include "base/check.h"
#include "ops/fixed_math.h"
#include "ops/router/router.h"

namespace nibble {
namespace {

float sigmoid(float x) { return 1.0f / (1.0f + fixed_exp(-x)); }

// What an expert is chosen by.
float choice_of(const RouterRule& rule, const float* logits, int expert) {
  if (rule.kind != RouterKind::sigmoid) return logits[expert];
  return sigmoid(logits[expert]) + (rule.bias == nullptr ? 0.0f : rule.bias[expert]);
}

// A bit for each group whose experts may be chosen.
std::uint64_t kept_groups(const RouterRule& rule, const float* logits, int experts) {
  if (rule.groups == 1) return 1;
  constexpr float none = -std::numeric_limits<float>::infinity();
  const int of_group = experts / rule.groups;
  float sums[64];
  for (int group = 0; group < rule.groups; ++group) {
    float best = none, second = none;
    for (int i = 0; i < of_group; ++i) {
      const float choice = choice_of(rule, logits, group * of_group + i);
      if (choice > best) {
        second = best;
        best = choice;
      } else if (choice > second) {
        second = choice;
      }
    }
    sums[group] = of_group == 1 ? best : best + second;
  }
  std::uint64_t kept = 0;
  for (int count = 0; count < rule.top_groups; ++count) {
    int best = -1;
    for (int group = 0; group < rule.groups; ++group) {
      if ((kept >> group & 1) == 0 && (best < 0 || sums[group] > sums[best])) best = group;
    }
    kept |= std::uint64_t{1} << best;
  }
  return kept;
}

// The chosen experts, with what they were chosen by in `choices`.
void choose(const RouteTopKArgs& args, const float* logits, std::int32_t* ids, float* choices) {
  const std::uint64_t groups = kept_groups(args.rule, logits, args.experts);
  const int of_group = args.experts / args.rule.groups;
  // Insertion into a sorted list of k: an expert displaces only strictly smaller choices. A NaN compares
  // larger than nothing and stays behind; the NaN it came from reaches the result through the residual.
  int kept = 0;
  for (int expert = 0; expert < args.experts; ++expert) {
    if (args.rule.groups > 1 && (groups >> (expert / of_group) & 1) == 0) continue;
    const float choice = choice_of(args.rule, logits, expert);
    int place = kept;
    while (place > 0 && choice > choices[place - 1]) --place;
    if (place == args.top_k) continue;
    if (kept < args.top_k) ++kept;
    for (int i = kept - 1; i > place; --i) {
      ids[i] = ids[i - 1];
      choices[i] = choices[i - 1];
    }
    ids[place] = expert;
    choices[place] = choice;
  }
}

void weigh(const RouteTopKArgs& args, const float* logits, const std::int32_t* ids, float* weights) {
  const RouterRule& rule = args.rule;
  if (rule.kind == RouterKind::sigmoid) {
    float sum = 0;
    for (int i = 0; i < args.top_k; ++i) {
      weights[i] = sigmoid(logits[ids[i]]);
      sum += weights[i];
    }
    for (int i = 0; i < args.top_k; ++i) {
      if (rule.renormalise) weights[i] /= sum + 1e-20f;
      weights[i] *= rule.scale;
    }
    return;
  }
  float sum = 0;
  for (int i = 0; i < args.top_k; ++i) {
    weights[i] = fixed_exp(logits[ids[i]] - logits[ids[0]]);
    sum += weights[i];
  }
  if (rule.kind == RouterKind::softmax_of_all && !rule.renormalise) {
    sum = 0;
    for (int expert = 0; expert < args.experts; ++expert) sum += fixed_exp(logits[expert] - logits[ids[0]]);
  }
  for (int i = 0; i < args.top_k; ++i) weights[i] /= sum;
}

}  // namespace

void route_top_k(OpContext& context, const RouteTopKArgs& args) {
  const RouterRule& rule = args.rule;
  NIBBLE_CHECK(args.top_k >= 1 && args.top_k <= args.experts);
  NIBBLE_CHECK(rule.groups >= 1 && rule.groups <= 64 && args.experts % rule.groups == 0 &&
               rule.top_groups >= 1 && rule.top_groups <= rule.groups &&
               args.top_k <= args.experts / rule.groups * rule.top_groups);
  context.threads.parallel_for(args.rows, [&](int begin, int end) {
    for (int row = begin; row < end; ++row) {
      const float* logits = args.logits + static_cast<std::int64_t>(row) * args.experts;
      std::int32_t* ids = args.expert_ids + static_cast<std::int64_t>(row) * args.top_k;
      float* weights = args.expert_weights + static_cast<std::int64_t>(row) * args.top_k;
      choose(args, logits, ids, weights);
      weigh(args, logits, ids, weights);
    }
  });
}

}  // namespace nibble
