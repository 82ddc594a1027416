// A rank's part of a model on GPUs: heads of attention and of layers with a state, columns of dense layers,
// whole experts, rows of the vocabulary. What heads and columns give is gathered before the projection behind
// them, which every rank has whole, as it has the shared experts. A rank with sequences of its own has all of
// that but the experts. One rank takes each sum, in the order of one GPU, so ranks change no bit
// (docs/internals/several_gpus.md).
#pragma once

#include <array>
#include <cstdint>

#include "base/status.h"
#include "checkpoint/model_config.h"
#include "comm/cuda/peer_room.h"
#include "plan/rank_part.h"
#include "tensor/device_arena.h"

namespace nibble {

struct Run {
  std::int64_t begin = 0, count = 0;
  std::int64_t end() const { return begin + count; }
};

struct CudaPart {
  int rank = 0, ranks = 1;
  Run heads, kv_heads;  // as in the checkpoint
  // Of queries as the kernels take them, a power of two for each head of keys: heads that fill a group up
  // have weights of zero on both sides.
  Run padded_heads;
  std::int64_t all_padded_heads = 0;
  Run state_heads;    // of keys, of layers with a state; each has its heads of values and gates
  Run dense_columns;  // of a dense layer's gates and ups
  Run experts, vocabulary;
  std::array<std::int32_t, most_ranks + 1> first_experts = {};  // of each rank; then how many there are
  // It has sequences of its own and everything of the model but other ranks' experts. Else all ranks have all
  // sequences, and each its part of everything that is cut.
  bool owns_sequences = false;
  // Every rank has all experts, so few slots may be shared out evenly whatever they have chosen.
  bool experts_everywhere = false;
  Run stored_experts() const { return experts_everywhere ? Run{0, first_experts[size()]} : experts; }

  bool alone() const { return ranks == 1; }
  std::size_t size() const { return static_cast<std::size_t>(ranks); }
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
  // Its end of what ranks share, and the memory there that is left to take; neither where it is alone.
  const PeerRoom* room = nullptr;
  DeviceArena shared;

  // From what ranks share, or else from `own`.
  template <class T>
  T* take_shared(std::size_t count, DeviceArena& own) {
    return part.alone() ? own.take<T>(count) : shared.take<T>(count);
  }
};

}  // namespace nibble
