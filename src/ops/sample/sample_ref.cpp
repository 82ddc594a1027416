#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/check.h"
#include "ops/fixed_math.h"
#include "ops/sample/sample.h"

namespace nibble {
namespace {

std::uint64_t mix(std::uint64_t x) {  // the finaliser of SplitMix64
  x += 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

class Likelier {
 public:
  explicit Likelier(std::span<const float> logits) : logits_(logits) {}
  bool operator()(TokenId a, TokenId b) const {
    const float left = logits_[static_cast<std::size_t>(a)], right = logits_[static_cast<std::size_t>(b)];
    return left > right || (left == right && a < b);
  }

 private:
  std::span<const float> logits_;
};

void all_ids(std::size_t count, std::vector<TokenId>& ids) {
  ids.resize(count);
  std::iota(ids.begin(), ids.end(), 0);
}

// e^((logit - best) / temperature) of each candidate; returns their sum in order.
double weigh(std::span<const float> logits, float best, float temperature, std::span<const TokenId> ids,
             std::vector<double>& weights) {
  weights.resize(ids.size());
  double sum = 0;
  for (std::size_t i = 0; i < ids.size(); ++i) {
    weights[i] = fixed_exp((logits[static_cast<std::size_t>(ids[i])] - best) / temperature);
    sum += weights[i];
  }
  return sum;
}

// Candidates in descending order such that those cut off could not have been inside top_p. The mass of all
// is known, so sorting stops as soon as the sorted front holds enough of it.
void sort_front(std::span<const float> logits, double needed, float best, float temperature,
                SampleWorkspace& room) {
  std::vector<TokenId>& ids = room.candidates;
  std::size_t front = std::min<std::size_t>(256, ids.size());
  for (;; front = std::min(front * 8, ids.size())) {
    std::partial_sort(ids.begin(), ids.begin() + static_cast<std::ptrdiff_t>(front), ids.end(),
                      Likelier(logits));
    const double mass = weigh(logits, best, temperature, std::span(ids).first(front), room.weights);
    if (mass >= needed || front == ids.size()) break;
  }
  ids.resize(front);
}

}  // namespace

double uniform_draw(std::uint64_t seed, std::uint32_t choice, std::uint32_t position) {
  const std::uint64_t counter = static_cast<std::uint64_t>(choice) << 32 | position;
  return static_cast<double>(mix(mix(seed) + counter) >> 11) * 0x1p-53;
}

RowStatistics row_statistics(std::span<const float> logits) {
  RowStatistics statistics;
  float best = logits[0];
  for (std::size_t i = 0; i < logits.size(); ++i) {
    if (!std::isfinite(logits[i])) {
      statistics.finite = false;
      return statistics;
    }
    if (logits[i] > best) {
      best = logits[i];
      statistics.likeliest = static_cast<TokenId>(i);
    }
  }
  double sum = 0;
  for (const float logit : logits) sum += fixed_exp(logit - best);
  statistics.log_sum_exp = best + fixed_log(sum);
  return statistics;
}

void likeliest(std::span<const float> logits, int count, std::vector<TokenId>& ids) {
  all_ids(logits.size(), ids);
  const std::size_t kept = std::min(logits.size(), static_cast<std::size_t>(count));
  const auto middle = ids.begin() + static_cast<std::ptrdiff_t>(kept);
  std::nth_element(ids.begin(), middle, ids.end(), Likelier(logits));
  ids.resize(kept);
  std::sort(ids.begin(), ids.end(), Likelier(logits));
}

TokenId sample(std::span<const float> logits, const RowStatistics& statistics, const SampleParams& params,
               SampleWorkspace& room) {
  NIBBLE_CHECK(statistics.finite);
  if (params.temperature <= 0.0f) return statistics.likeliest;
  const float best = logits[static_cast<std::size_t>(statistics.likeliest)];
  const float temperature = params.temperature;

  if (params.top_k > 0) {
    likeliest(logits, params.top_k, room.candidates);
  } else {
    all_ids(logits.size(), room.candidates);
  }
  double total = weigh(logits, best, temperature, room.candidates, room.weights);
  if (params.top_p < 1.0f) {
    const double needed = params.top_p * total;
    if (params.top_k == 0) sort_front(logits, needed, best, temperature, room);
    std::size_t kept = 0;
    double mass = 0;
    while (kept < room.candidates.size() && (kept == 0 || mass < needed)) mass += room.weights[kept++];
    room.candidates.resize(kept);
    room.weights.resize(kept);
    total = mass;
  }
  // min_p is relative to the likeliest token, whose weight is 1 whatever the filters before left.
  const double threshold = params.min_p;
  if (threshold > 0) {
    total = 0;
    for (double& weight : room.weights) {
      if (weight < threshold) weight = 0;
      total += weight;
    }
  }
  const double target = uniform_draw(params.seed, params.choice, params.position) * total;
  double reached = 0;
  TokenId last = statistics.likeliest;
  for (std::size_t i = 0; i < room.candidates.size(); ++i) {
    if (room.weights[i] == 0) continue;
    reached += room.weights[i];
    last = room.candidates[i];
    if (target < reached) break;
  }
  return last;
}

}  // namespace nibble
