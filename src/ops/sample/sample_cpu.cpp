#include <algorithm>
#include <array>
#include <bit>
#include <limits>

#include "base/check.h"
#include "ops/fixed_math.h"
#include "ops/sample/sample.h"

namespace nibble {
namespace {

using Mass = std::int64_t;
constexpr float mass_unit = 0x1p-40f;
// Masses are at most 2^40 each, and a row's sum fits 63 bits.
constexpr std::size_t max_vocabulary = std::size_t{1} << 22;

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

// Puts the `count` likeliest first, in no order.
void select(std::span<const float> logits, std::size_t count, std::span<TokenId> ids) {
  if (count < ids.size())
    std::nth_element(ids.begin(), ids.begin() + static_cast<std::ptrdiff_t>(count), ids.end(),
                     Likelier(logits));
}

// What is left of a row after some filters: the tokens down to the last one in order of likelihood, without
// those below a share of the likeliest.
struct Kept {
  float last_logit = -std::numeric_limits<float>::infinity();
  TokenId last_id = std::numeric_limits<TokenId>::max();
  float least_weight = 0;

  bool has(float logit, TokenId id, float weight) const {
    return (logit > last_logit || (logit == last_logit && id <= last_id)) && weight >= least_weight;
  }
};

Mass mass_of(float weight) { return static_cast<Mass>(weight * (1.0f / mass_unit)); }

// What top_p has still to do once all tokens above the candidates are known to stay: `above` is their mass,
// and the candidates, in ascending order, have what is missing to `needed`.
struct TopMass {
  std::span<const float> logits;
  std::span<const float> weights;
  double needed;
  Mass above;

  Mass mass(TokenId id) const { return mass_of(weights[static_cast<std::size_t>(id)]); }
  float logit(TokenId id) const { return logits[static_cast<std::size_t>(id)]; }

  // Narrows the candidates, ever finer shares of their range of logits at a time, to the few among which the
  // last token is; then walks those in order.
  Kept last(std::vector<TokenId>& candidates, Kept kept) {
    constexpr std::size_t shares = 256;
    while (candidates.size() > 64) {
      const auto [low, high] = std::minmax_element(candidates.begin(), candidates.end(),
                                                   [&](TokenId a, TokenId b) { return logit(a) < logit(b); });
      const float least = logit(*low), most = logit(*high);
      if (least == most) break;  // equal logits stand in the order of their ids as they are
      const auto share_of = [&](TokenId id) {
        return static_cast<std::size_t>((most - logit(id)) / (most - least) * (shares - 1));
      };
      std::array<Mass, shares> masses{};
      for (TokenId id : candidates) masses[share_of(id)] += mass(id);
      std::size_t share = 0;
      while (share + 1 < shares && static_cast<double>(above + masses[share]) < needed)
        above += masses[share++];
      std::erase_if(candidates, [&](TokenId id) { return share_of(id) != share; });
    }
    if (candidates.size() <= 64) std::sort(candidates.begin(), candidates.end(), Likelier(logits));
    for (TokenId id : candidates) {
      kept.last_logit = logit(id);
      kept.last_id = id;
      above += mass(id);
      if (static_cast<double>(above) >= needed) break;
    }
    return kept;
  }
};

// The fewest of the likeliest among `kept` whose mass reaches the share top_p of all of it.
Kept top_mass(std::span<const float> logits, float top_p, const Kept& kept, SampleWorkspace& room) {
  // Weights in falling order of magnitude: a bucket is a thirty-second of a power of two wide. All masses
  // above zero are in the first 40 powers.
  constexpr std::uint32_t buckets = 41 * 32;
  const auto bucket_of = [](float weight) {
    return std::min((std::bit_cast<std::uint32_t>(1.0f) - std::bit_cast<std::uint32_t>(weight)) >> 18,
                    buckets - 1);
  };
  std::array<Mass, buckets> masses{};
  Mass total = 0;
  for (std::size_t i = 0; i < logits.size(); ++i) {
    if (!kept.has(logits[i], static_cast<TokenId>(i), room.weights[i])) continue;
    masses[bucket_of(room.weights[i])] += mass_of(room.weights[i]);
    total += mass_of(room.weights[i]);
  }
  TopMass top{.logits = logits,
              .weights = room.weights,
              .needed = static_cast<double>(top_p) * static_cast<double>(total),
              .above = 0};
  std::uint32_t bucket = 0;
  while (bucket + 1 < buckets && static_cast<double>(top.above + masses[bucket]) < top.needed)
    top.above += masses[bucket++];
  room.candidates.clear();
  for (std::size_t i = 0; i < logits.size(); ++i) {
    if (bucket_of(room.weights[i]) == bucket && kept.has(logits[i], static_cast<TokenId>(i), room.weights[i]))
      room.candidates.push_back(static_cast<TokenId>(i));
  }
  return top.last(room.candidates, kept);
}

// The token at the share `draw` of the kept tokens' mass.
TokenId draw_token(std::span<const float> logits, const Kept& kept, double draw, SampleWorkspace& room) {
  const auto mass = [&](std::size_t i) {
    return kept.has(logits[i], static_cast<TokenId>(i), room.weights[i]) ? mass_of(room.weights[i]) : 0;
  };
  Mass total = 0;
  room.block_masses.clear();
  for (std::size_t block = 0; block < logits.size(); block += row_block) {
    const std::size_t end = std::min(block + row_block, logits.size());
    Mass sum = 0;
    for (std::size_t i = block; i < end; ++i) sum += mass(i);
    room.block_masses.push_back(sum);
    total += sum;
  }
  Mass left = std::min(static_cast<Mass>(draw * static_cast<double>(total)), total - 1);
  std::size_t block = 0;
  while (left >= room.block_masses[block]) left -= room.block_masses[block++];
  std::size_t token = block * row_block;
  while (left >= mass(token)) left -= mass(token++);
  return static_cast<TokenId>(token);
}

}  // namespace

TokenId likeliest_token(std::span<const float> logits, const RowKernels& kernels) {
  const RowScan scan = kernels.scan(logits.data(), static_cast<int>(logits.size()));
  NIBBLE_CHECK(scan.finite);
  return static_cast<TokenId>(std::find(logits.begin(), logits.end(), scan.largest) - logits.begin());
}

RowStatistics row_statistics(std::span<const float> logits, const RowKernels& kernels) {
  RowStatistics statistics;
  const RowScan scan = kernels.scan(logits.data(), static_cast<int>(logits.size()));
  if (!scan.finite) {
    statistics.finite = false;
    return statistics;
  }
  statistics.likeliest =
      static_cast<TokenId>(std::find(logits.begin(), logits.end(), scan.largest) - logits.begin());
  double sum = 0;
  for (std::size_t block = 0; block < logits.size(); block += row_block) {
    const std::size_t count = std::min<std::size_t>(row_block, logits.size() - block);
    sum += kernels.exp_sum(logits.data() + block, scan.largest, static_cast<int>(count));
  }
  statistics.log_sum_exp = scan.largest + fixed_log(sum);
  return statistics;
}

void likeliest(std::span<const float> logits, int count, std::vector<TokenId>& ids) {
  const std::size_t kept = std::min(logits.size(), static_cast<std::size_t>(count));
  ids.clear();
  if (kept == 0) return;
  // Twice as many as wanted are gathered before the worse half is dropped; from then on only what beats the
  // worst kept one is looked at. An equal logit comes later, so it has the higher id and loses.
  float bar = -std::numeric_limits<float>::infinity();
  bool full = false;
  for (std::size_t i = 0; i < logits.size(); ++i) {
    if (full && !(logits[i] > bar)) continue;
    ids.push_back(static_cast<TokenId>(i));
    if (ids.size() < 2 * kept) continue;
    select(logits, kept, ids);
    ids.resize(kept);
    full = true;
    bar = logits[static_cast<std::size_t>(*std::max_element(ids.begin(), ids.end(), Likelier(logits)))];
  }
  select(logits, kept, ids);
  ids.resize(kept);
  std::sort(ids.begin(), ids.end(), Likelier(logits));
}

TokenId sample(std::span<const float> logits, TokenId first, const SampleParams& params,
               SampleWorkspace& room, const RowKernels& kernels) {
  NIBBLE_CHECK(logits.size() <= max_vocabulary);
  if (params.temperature <= 0.0f) return first;
  if (room.weights.size() < logits.size()) room.weights.resize(logits.size());
  kernels.weigh(logits.data(), logits[static_cast<std::size_t>(first)], params.temperature,
                static_cast<int>(logits.size()), room.weights.data());
  Kept kept;
  if (params.top_k > 0 && static_cast<std::size_t>(params.top_k) < logits.size()) {
    likeliest(logits, params.top_k, room.candidates);
    kept.last_id = room.candidates.back();
    kept.last_logit = logits[static_cast<std::size_t>(kept.last_id)];
  }
  if (params.top_p < 1.0f) kept = top_mass(logits, params.top_p, kept, room);
  // min_p is relative to the likeliest token, whose weight is 1 whatever the filters before left.
  kept.least_weight = params.min_p;
  return draw_token(logits, kept, uniform_draw(params.seed, params.choice, params.position), room);
}

}  // namespace nibble
