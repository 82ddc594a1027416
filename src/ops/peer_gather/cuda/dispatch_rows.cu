// Blocks take pieces of rows, a vector a thread, and store each to the ranks whose experts the row chose.
#include <algorithm>

#include "comm/cuda/peer_meeting.cuh"
#include "ops/cuda/launch.cuh"
#include "ops/peer_gather/cuda/dispatch_rows.cuh"
#include "ops/ptx/grid.cuh"

namespace nibble {
namespace {

constexpr int dispatch_threads = 256;
// So many that the links never wait for stores.
constexpr int most_dispatch_blocks = 528;

__global__ void __launch_bounds__(dispatch_threads)
    dispatch_rows(const __grid_constant__ PeerRoom room, const __grid_constant__ DispatchRowsCudaArgs args,
                  int pieces) {
  ptx::grid_launch_dependents();
  ptx::grid_dependency_wait();
  const int thread = static_cast<int>(threadIdx.x), words = static_cast<int>(args.row_bytes / sizeof(uint4));
  const unsigned sharers = sharers_of(args, room.rank);
  for (int unit = static_cast<int>(blockIdx.x); unit < args.places * pieces;
       unit += static_cast<int>(gridDim.x)) {
    const int row = unit / pieces, piece = unit % pieces,
              place = room.rank / args.sharers * args.places + row;
    std::int32_t* const ids = ids_of(args, place);
    const bool is_row = row < args.count;
    const bool sends = row % args.sharers == room.rank % args.sharers;
    if (piece == 0 && thread < args.top_k) {
      const std::int32_t id = is_row ? __ldcg(ids + thread) : -1;
      if (!is_row) ids[thread] = id;
      for (int peer = 0; sends && peer < room.ranks; ++peer) {
        if ((sharers >> peer & 1u) != 0) continue;
        ptx::store_peer(reinterpret_cast<std::uint32_t*>(at_peer(room, peer, ids + thread)),
                        static_cast<std::uint32_t>(id));
      }
    }
    const int word = piece * dispatch_threads + thread;
    if (!is_row || !sends || word >= words) continue;
    const unsigned wanted_by = ranks_of(args, room.ranks, place, ids) & ~sharers;
    uint4* const at = row_of(args, place) + word;
    const uint4 value = __ldcg(at);
    for (int i = 1; i < room.ranks; ++i) {
      const int peer = (room.rank + i) % room.ranks;
      if ((wanted_by >> peer & 1u) != 0) ptx::store_peer(at_peer(room, peer, at), value);
    }
  }
  meet_ranks(room);
}

}  // namespace

Status dispatch_rows_cuda(const PeerRoom& room, const DispatchRowsCudaArgs& args, cudaStream_t stream) {
  NIBBLE_RETURN_IF_ERROR(check_dispatch(args));
  const int words = static_cast<int>(args.row_bytes / sizeof(uint4)),
            pieces = (words + dispatch_threads - 1) / dispatch_threads;
  launch_kernel(
      {.blocks = dim3(static_cast<unsigned>(std::clamp(args.places * pieces, 1, most_dispatch_blocks))),
       .threads = dispatch_threads,
       .stream = stream,
       .overlaps = true},
      dispatch_rows, room, args, pieces);
  return {};
}

}  // namespace nibble
