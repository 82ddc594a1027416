// A step's rows to the experts that they chose, where ranks have sequences of their own, or groups of ranks
// that have the same. Every group has places for as many rows, side by side by group, so what comes to an
// expert is ordered by group and row. A row goes once to each rank of another group that multiplies for it,
// into the same place there; its ids go to all of them. A place without a row has ids of -1, and what lies in
// it is never read. Products come back by gather_products_cuda.
#pragma once

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "base/status.h"
#include "comm/cuda/peer_room.h"
#include "ops/peer_gather/cuda/peer_gather_cuda.h"

namespace nibble {

struct DispatchRowsCudaArgs {
  std::byte* rows = nullptr;  // in the room: the first place of all; a rank has its group's rows there
  std::size_t row_bytes = 0;  // a multiple of 16
  std::int32_t* expert_ids = nullptr;  // likewise, [groups, places, top_k]
  int count = 0;                       // the group's rows
  int places = 0;                      // of each group
  int top_k = 0;
  int sharers = 1;  // ranks of a group, neighbours, which send its rows in turns
  SlotOwners owners;
};

// Ranks meet, so a place may be filled for the next step but one (comm/cuda/peer_room.h).
Status dispatch_rows_cuda(const PeerRoom& room, const DispatchRowsCudaArgs& args, cudaStream_t stream);

// The same for few places of a group, through windows (peer_gather_cuda.h): no fence and no flag. Ranks may
// run apart by one launch, so there are two windows, which take turns. A dispatch_rows_cuda, which stores
// straight into places that other ranks may still read, may follow only behind a meeting.
inline constexpr int dispatch_few_places = 32;  // of more it takes longer than a meeting
inline constexpr int dispatch_most_top_k = 32;
struct DispatchWindows {
  std::byte* data = nullptr;       // in the room: dispatch_window_bytes(), absent
  std::uint32_t* steps = nullptr;  // [groups, dispatch_few_places], 0 before the first launch
};
// Of a place: its row, and a word for each of its ids.
constexpr std::size_t dispatch_place_bytes(std::size_t row_bytes) {
  return row_bytes + dispatch_most_top_k * sizeof(std::uint32_t);
}
constexpr std::size_t dispatch_window_bytes(int groups, std::size_t row_bytes) {
  return 2 * static_cast<std::size_t>(groups * dispatch_few_places) * dispatch_place_bytes(row_bytes);
}
Status dispatch_few_rows_cuda(const PeerRoom& room, const DispatchRowsCudaArgs& args,
                              const DispatchWindows& windows, cudaStream_t stream);

}  // namespace nibble
