// The order in which a sum over K is taken, whatever the number of ranks.
//
// K is cut into eight leaves. A leaf is summed in order from +0.0f; leaves are added in float32 as a balanced
// tree, ((0 + 1) + (2 + 3)) + ((4 + 5) + (6 + 7)). A rank of N (1, 2, 4 or 8) holds 8 / N neighbouring
// leaves, so it adds a whole subtree by itself, and the tree over ranks goes on above it: the bits are those
// of one rank. A sum that starts from +0.0f is never -0.0f, so a transport may take -0.0f for "not here yet".
#pragma once

#include <cstdint>

namespace nibble {

inline constexpr int leaf_count = 8;

// Where leaf `leaf` of `units` begins; leaf_count is the end. Each half of a range takes the larger part
// first, so that the leaves of a rank join to those of half as many ranks.
constexpr std::int64_t leaf_begin(std::int64_t units, int leaf) {
  std::int64_t begin = 0, count = units;
  if (leaf == leaf_count) return units;
  for (int half = leaf_count / 2; half > 0; half /= 2) {
    const std::int64_t first = (count + 1) / 2;
    if ((leaf & half) != 0) {
      begin += first;
      count -= first;
    } else {
      count = first;
    }
  }
  return begin;
}

// Units of K that rank `rank` of `ranks` holds: [begin, end).
struct Shard {
  std::int64_t begin = 0, end = 0;
};
constexpr Shard shard_of(std::int64_t units, int rank, int ranks) {
  const int leaves = leaf_count / ranks;
  return {leaf_begin(units, rank * leaves), leaf_begin(units, (rank + 1) * leaves)};
}

// The balanced tree over `count` values, part(i) each, every one of them taken from +0.0f on. Where the count
// is no power of two, the last value of an odd level goes up as it is.
template <class Part>
constexpr float tree_sum(int count, const Part& part) {
  float sums[8] = {};
  for (int i = 0; i < count; ++i) sums[i] = 0.0f + part(i);
  for (int apart = 1; apart < count; apart *= 2) {
    for (int i = 0; i + apart < count; i += 2 * apart) sums[i] += sums[i + apart];
  }
  return sums[0];
}

}  // namespace nibble
