// How kernels write into other ranks' rooms and meet there (comm/cuda/peer_room.h).
#pragma once

#include "comm/cuda/peer_room.h"
#include "comm/ptx/peer.cuh"

namespace nibble {

// Where `peer` has what this rank has at `mine`.
template <class T>
__device__ __forceinline__ T* at_peer(const PeerRoom& room, int peer, T* mine) {
  return reinterpret_cast<T*>(room.rooms[peer] +
                              (reinterpret_cast<std::byte*>(mine) - room.rooms[room.rank]));
}

// The word in the room of `of` in which `rank` says to which meeting it has come.
__device__ __forceinline__ std::uint32_t* arrival(const PeerRoom& room, int of, int rank) {
  return reinterpret_cast<std::uint32_t*>(room.rooms[of]) + rank;
}

// One thread's wait. The first that outlasts its deadline writes down whom it waited for; then all waits of
// this device end, so that what is queued runs dry.
class RankWait {
 public:
  __device__ explicit RankWait(const PeerRoom& room) : room_(room) {}

  // Asked at each turn.
  __device__ __forceinline__ bool is_over(int peer, std::uint32_t step) {
    if (++turns_ % 64 != 0) return false;
    begin_ = look(room_, begin_, peer, step);
    return begin_ == over;
  }

 private:
  static constexpr std::uint64_t over = ~std::uint64_t{0};

  // When the wait began, or that it is over; 0: it has not begun.
  __device__ __noinline__ static std::uint64_t look(const PeerRoom& room, std::uint64_t begin, int peer,
                                                    std::uint32_t step) {
    if (ptx::load_peer(room.given_up) != 0) return over;
    const std::uint64_t now = ptx::nanoseconds();
    if (begin == 0) return now;
    if (now - begin < room.deadline_ns) return begin;
    if (atomicAdd(room.given_up, 1u) == 0) {
      room.fault->member = static_cast<std::uint32_t>(room.rank);
      room.fault->peer = static_cast<std::uint32_t>(peer);
      room.fault->step = step;
      ptx::fence_system();
      *const_cast<volatile std::uint32_t*>(&room.fault->state) = 1;
    }
    return over;
  }

  const PeerRoom& room_;
  std::uint32_t turns_ = 0;
  std::uint64_t begin_ = 0;
};

// Returns when `peer` has come to the meeting, or to one behind it.
__device__ __forceinline__ void await_rank(const PeerRoom& room, int peer, std::uint32_t meeting) {
  RankWait wait(room);
  while (static_cast<std::int32_t>(ptx::load_peer(arrival(room, room.rank, peer)) - meeting) < 0 &&
         !wait.is_over(peer, meeting)) {
  }
}

// A grid's end: all its threads call it once they have written what others shall have, by ptx::store_peer.
// The last block to come tells all ranks and waits for them, so nothing of the grid is needed to run beside
// it.
__device__ __forceinline__ void meet_ranks(const PeerRoom& room) {
  __shared__ bool is_last;
  __shared__ std::uint32_t meeting;
  __syncthreads();  // the block's threads have written
  if (threadIdx.x == 0) {
    ptx::fence_system();
    is_last = ptx::count_up(room.meetings + 1) + 1 == gridDim.x;
    if (is_last) meeting = room.meetings[0] + 1;
  }
  __syncthreads();
  if (!is_last) return;
  const int peer = static_cast<int>(threadIdx.x);
  if (peer < room.ranks && peer != room.rank) {
    ptx::fence_system();
    ptx::store_peer(arrival(room, peer, room.rank), meeting);
    await_rank(room, peer, meeting);
    ptx::fence_system();
  }
  if (threadIdx.x == 0) room.meetings[0] = meeting, room.meetings[1] = 0;
}

}  // namespace nibble
