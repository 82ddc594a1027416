// A rank's part of a model on GPUs: heads of attention and of layers with a state, columns of dense layers,
// whole experts, rows of the vocabulary. What heads and columns give is gathered before the projection behind
// them, which every rank has whole, as it has the shared experts. Ranks may be groups with sequences of their
// own, which divide all of that but the experts. One rank takes each sum, in the order of one GPU, so ranks
// change no bit (docs/internals/gpu_ranks.md).
#pragma once

#include <array>
#include <cstdint>

#include "base/status.h"
#include "checkpoint/model_config.h"
#include "comm/cuda/peer_room.h"
#include "comm/cuda/rank_merge.h"
#include "plan/rank_part.h"
#include "tensor/device_arena.h"

namespace nibble {

struct Run {
  std::int64_t begin = 0, count = 0;
  std::int64_t end() const { return begin + count; }
};

struct CudaPart {
  int rank = 0, ranks = 1;  // that have the same sequences
  // Of groups of so many ranks that have sequences of their own. Experts are spread over all of them; of
  // everything else a group has all.
  int owner = 0, owners = 1;
  Run heads, kv_heads;  // as in the checkpoint
  // Of queries as the kernels take them, a power of two for each head of keys: heads that fill a group up
  // have weights of zero on both sides.
  Run padded_heads;
  std::int64_t all_padded_heads = 0;
  Run state_heads;    // of keys, of layers with a state; each has its heads of values and gates
  Run dense_columns;  // of a dense layer's gates and ups
  Run experts, vocabulary;
  std::array<std::int32_t, most_ranks + 1> first_experts =
      {};  // of each rank of all; then how many there are
  // Every rank has all experts, so few slots may be shared out evenly whatever they have chosen.
  bool experts_everywhere = false;
  std::int64_t all_experts = 0;
  Run stored_experts() const { return experts_everywhere ? Run{0, all_experts} : experts; }

  bool alone() const { return ranks == 1; }
  bool owns_sequences() const { return owners > 1; }
  std::size_t size() const { return static_cast<std::size_t>(ranks); }
  // The same rank where all ranks of all groups meet, which is at the experts: rank and ranks are of all.
  CudaPart among_all() const;
  std::int64_t group() const { return heads.count / kv_heads.count; }  // queries of a head of keys
  std::int64_t padded_group() const { return padded_heads.count / kv_heads.count; }
};

// All of it, for one rank.
CudaPart whole_model(const ModelConfig& config);
// The config with the heads that the rank's caches and states are of.
ModelConfig config_of_caches(const ModelConfig& config, const CudaPart& part);
// Refused where the kernels cannot cut the model so.
Result<CudaPart> cuda_part(const ModelConfig& config, const RankPart& part, bool experts_everywhere);

// Where a rank runs.
struct CudaPlace {
  CudaPart part;
  // Its end of what ranks with the same sequences share, and the memory there that is left to take; neither
  // where it is alone.
  const PeerRoom* room = nullptr;
  DeviceArena shared;
  // Instead of a room, where ranks cannot write each other's memory; `shared` is then the rank's own.
  const RankMerge* merge = nullptr;
  // The same of all ranks, where groups of them have sequences of their own.
  const PeerRoom* room_of_all = nullptr;
  DeviceArena shared_by_all;

  CudaPlace among_all() const;

  // From what ranks share, or else from `own`.
  template <class T>
  T* take_shared(std::size_t count, DeviceArena& own) {
    return part.alone() ? own.take<T>(count) : shared.take<T>(count);
  }
};

}  // namespace nibble
