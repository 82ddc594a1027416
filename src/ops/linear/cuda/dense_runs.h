// How the tiles of a dense product of many tokens are dealt to the clusters of blocks that stay on the
// multiprocessors.
//
// As many tiles as there are clusters are one round; neighbours among them share weights or tokens, which the
// second-level cache then has. The last round's tiles, if they are few, may be dealt in units of (tile,
// chunk) in contiguous ranges first of all. So rounds and ranges move bytes in time but no bit.
#pragma once

#include <algorithm>

#include "ops/linear/cuda/dense_tiles.h"

namespace nibble {

struct Deal {
  int row_tiles, token_tiles;  // of what a cluster computes at a time
  int clusters;
  int rounds;        // of one whole tile a cluster
  int shared_tiles;  // the others, dealt in units

  // Whether no cluster has more than one run.
  NIBBLE_HOST_DEVICE bool lone() const { return rounds <= 1 && shared_tiles == 0; }
  NIBBLE_HOST_DEVICE int units() const { return shared_tiles * dense_k_chunks; }
  NIBBLE_HOST_DEVICE int border(int cluster) const {
    return static_cast<int>(static_cast<long long>(units()) * cluster / clusters);
  }
  // Where the first of a shared tile's runs ends.
  NIBBLE_HOST_DEVICE int first_past(int shared_tile) const {
    const int unit = shared_tile * dense_k_chunks;
    const int owner = static_cast<int>(((unit + 1LL) * clusters - 1) / units());
    return std::min(int{dense_k_chunks}, border(owner + 1) - unit);
  }
};

// Whole tiles; or, if `may_share`, the last round's in units where that leaves half of the machine idle, more
// than which there is no room for.
inline Deal deal_tiles(int row_tiles, int token_tiles, int clusters, bool may_share) {
  const int tiles = row_tiles * token_tiles, rounds = tiles / clusters, left = tiles - rounds * clusters;
  const bool shares = may_share && left > 0 && left * 2 <= clusters;
  return {row_tiles, token_tiles, clusters, shares || left == 0 ? rounds : rounds + 1, shares ? left : 0};
}

// The place of tile number `index`: eight tiles of tokens beside each other, rows after rows.
struct Place {
  int row_tile, token_tile;

  NIBBLE_HOST_DEVICE Place(const Deal& deal, int index) {
    constexpr int beside = 8;
    const int band = index / (beside * deal.row_tiles), in_band = index - band * beside * deal.row_tiles;
    const int width = std::min(beside, deal.token_tiles - band * beside);
    row_tile = in_band / width;
    token_tile = band * beside + in_band % width;
  }
};

// A run of chunks of one tile.
struct ChunkRun {
  int tile, first, past;

  NIBBLE_HOST_DEVICE bool whole() const { return past - first == dense_k_chunks; }
};

// A cluster's runs, one after the other.
struct ChunkRuns {
  const Deal& deal;
  int cluster, unit, end_unit, round = 0;

  NIBBLE_HOST_DEVICE ChunkRuns(const Deal& of, int of_cluster)
      : deal(of),
        cluster(of_cluster),
        unit(of.shared_tiles == 0 ? 0 : of.border(of_cluster)),
        end_unit(of.shared_tiles == 0 ? 0 : of.border(of_cluster + 1)) {}
  NIBBLE_HOST_DEVICE bool next(ChunkRun& run) {
    if (unit < end_unit) {
      const int first = unit % dense_k_chunks, count = std::min(dense_k_chunks - first, end_unit - unit);
      run = {deal.rounds * deal.clusters + unit / dense_k_chunks, first, first + count};
      unit += count;
      return true;
    }
    if (round == deal.rounds) return false;
    run = {round++ * deal.clusters + cluster, 0, dense_k_chunks};
    return run.tile < deal.row_tiles * deal.token_tiles;
  }
  // Which of the shared tiles a run's is.
  NIBBLE_HOST_DEVICE int shared_tile(const ChunkRun& run) const {
    return run.tile - deal.rounds * deal.clusters;
  }
};

}  // namespace nibble
