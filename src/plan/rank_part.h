// A rank's part of a model: which rows of which weight, which heads, which experts. Nothing of a sum over K
// is split: ranks have whole sums of different rows, and gather them (docs/internals/several_gpus.md). So a
// cut changes no bit, and parts may be uneven.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "comm/rank.h"
#include "plan/model_traits.h"

namespace nibble {

struct Plan;

// Matrices are cut between tiles of rows, so that a tile of scales is whole or begins at a multiple of these.
inline constexpr std::int64_t part_rows = 32;

// One axis over all ranks: rank r has [at[r], at[r + 1]), which may be empty.
struct Cuts {
  std::array<std::int64_t, most_ranks + 1> at{};

  std::int64_t begin(int rank) const { return at[static_cast<std::size_t>(rank)]; }
  std::int64_t end(int rank) const { return at[static_cast<std::size_t>(rank) + 1]; }
  std::int64_t count(int rank) const { return end(rank) - begin(rank); }
  std::int64_t most(int ranks) const;  // of one rank
  Cuts times(std::int64_t factor) const;
};

struct HeadRange {
  std::int64_t begin = 0, count = 0;
};

struct RankPart {
  int rank = 0, ranks = 1;  // experts are cut over all ranks
  // Ranks that have parts of the same sequences, neighbours, and this one's place among them: all ranks, a
  // group of them, or it alone. What is not experts' is cut over these.
  int sharers = 1, place = 0;
  bool whole_experts = false;  // ranks have different experts; else rows of every expert

  Cuts heads;          // of queries; those of one rank are whole groups, or of one group
  HeadRange kv_heads;  // this rank's; ranks that share a group have the same one
  Cuts hidden;         // rows of the attention's output, and of experts' down projections
  Cuts width;          // of each expert
  Cuts experts;
  Cuts vocabulary;
  Cuts state_heads;   // of keys, of layers with a state; each with its heads of values
  Cuts dense_width;   // of the feed-forwards of dense layers, in whole blocks of 64
  Cuts shared_width;  // of the expert that all tokens share, on a CPU; GPUs have it whole

  int owner() const { return rank / sharers; }  // the group's index among those that own sequences
  // The ranks' cuts of an expert's matrices: all of them where experts are whole.
  std::int64_t own_width() const;
  std::int64_t own_expert_rows() const;  // of a down projection
};

// The part of one of `ranks` (1, 2, 4 or 8) ranks. `expert_ranks` is 1 or `ranks`.
RankPart rank_part(const ModelTraits& model, int ranks, int expert_ranks, int rank);
// The part of a rank of a group, of `owners` that each have sequences of their own: the rank's experts of all
// ranks', and of everything else its part among the group's.
RankPart owner_part(const ModelTraits& model, int ranks, int owners, int rank);
// Of each rank of a plan; none where there is one rank, or where its parts are not built.
std::vector<RankPart> rank_parts(const Plan& plan);
// Of all threads, those of one rank: at least one.
int threads_of_rank(int threads, int ranks, int rank);
// Of the memory through which ranks gather, a slot of one of them: a row of the widest of what they gather,
// and enough that a step of few rows is one piece.
std::int64_t rank_slot_bytes(const ModelTraits& model);
// The most heads of keys and values that one of so many ranks has.
std::int64_t most_kv_heads(std::int64_t kv_heads, int ranks);
// Of a state, what so many of its heads of keys are, each with its heads of values.
DeltaShape with_key_heads(const DeltaShape& shape, std::int64_t key_heads);
// Of a state, the largest part that one of so many ranks has.
DeltaShape most_of_state(const DeltaShape& shape, int ranks);

}  // namespace nibble
