// What ranks of one process gather on GPUs. Every rank launches the same calls in the same order. No bit of
// it is computed anew.
//
// Many rows go straight to where they belong, and the ranks meet (comm/cuda/peer_room.h). Few rows go into a
// window, where the data says itself that it is there: a place holds absent_bits (ops/cuda/absent.h) until it
// comes, and its reader makes it absent again. That saves a fence and a flag, which take longer than the
// data.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "base/status.h"
#include "comm/cuda/peer_room.h"

namespace nibble {

// Columns of a matrix, or rows, each rank's its own. Sizes are in bytes and multiples of 4.
struct GatherColumnsCudaArgs {
  const void* from = nullptr;  // [rows, bytes], this rank's
  std::size_t from_stride = 0;
  void* to = nullptr;  // in the room: where they lie in the first row of the whole
  std::size_t to_stride = 0;
  std::size_t bytes = 0;  // of a row; 0: this rank has none
  int rows = 0;
  int wanted_by = -1;  // the one rank that has a use for them; -1: all have
  // Above 0: so many rows in turn go to one rank alone, the first ones to the first rank.
  int rows_a_rank = 0;
  // False: the ranks meet behind a later call, and until then what others send is not there.
  bool meets = true;
};
Status gather_columns_cuda(const PeerRoom& room, const GatherColumnsCudaArgs& args, cudaStream_t stream);
// A meeting alone, behind launches that have stored into other ranks' rooms.
inline Status meet_cuda(const PeerRoom& room, cudaStream_t stream) {
  return gather_columns_cuda(room, {}, stream);
}

// Token tiles (ops/linear/cuda/dense_tiles.h) of few tokens, of whose columns each rank has an equal part.
// Between two launches the ranks may run apart by one, so there are two windows, which take turns.
struct GatherTokensCudaArgs {
  const std::uint8_t* from = nullptr;  // this rank's part, whose columns are whole k64 blocks
  std::uint8_t* to = nullptr;          // of all columns
  std::uint8_t* windows = nullptr;     // in the room: [2, token_bytes(gather_few_tokens)] of all columns
  std::uint32_t* steps = nullptr;      // [gather_token_steps], 0 before the first launch
  int columns = 0;                     // this rank's
  int tokens = 0;                      // up to gather_few_tokens
};
inline constexpr int gather_few_tokens = 64;
inline constexpr int gather_blocks_a_group = 4;
inline constexpr int gather_token_steps = gather_few_tokens / 8 * gather_blocks_a_group;
Status gather_tokens_cuda(const PeerRoom& room, const GatherTokensCudaArgs& args, cudaStream_t stream);

// Which rank multiplies for a slot (a token's choice): by the expert, or by turns where all have all experts.
struct SlotOwners {
  std::int32_t first_expert[most_ranks + 1] = {};  // of each rank; then how many there are
  bool by_turns = false;
};

// The products of slots, each row from the rank that has it to all.
struct GatherProductsCudaArgs {
  float* products = nullptr;                 // [slots, hidden]; of many slots in the room
  const std::int32_t* expert_ids = nullptr;  // [slots]; -1: none
  int slots = 0, hidden = 0;                 // hidden: a multiple of 4
  SlotOwners owners;
  // Above 0: rows of so many slots in turn go to one group of `sharers` neighbouring ranks alone, the first
  // ones to the first.
  int slots_a_group = 0, sharers = 1;
  // Not null: in the room, absent, and products come through it, those of all slots or of the slots that this
  // rank alone gets. One launch may follow another only behind a gather_tokens_cuda, a peer_linear_cuda, a
  // dispatch_few_rows_cuda or a meeting, in which ranks find each other's last launch done.
  float* window = nullptr;  // [slots_a_group, or slots, hidden]
};
inline constexpr int gather_few_slots = 256;
Status gather_products_cuda(const PeerRoom& room, const GatherProductsCudaArgs& args, cudaStream_t stream);

}  // namespace nibble
