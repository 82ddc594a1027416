// A block takes pieces of rows, a vector a thread, and stores each to all ranks.
#include <algorithm>
#include <string>

#include "comm/cuda/peer_meeting.cuh"
#include "ops/cuda/launch.cuh"
#include "ops/peer_gather/cuda/peer_gather_cuda.h"
#include "ops/peer_gather/cuda/slot_owners.cuh"
#include "ops/ptx/grid.cuh"

namespace nibble {
namespace {

constexpr int gather_threads = 256;
// So many that the links never wait for stores.
constexpr int most_blocks = 528;

int blocks_for(int rows, int pieces) { return std::clamp(rows * pieces, 1, most_blocks); }

// In words of one size.
template <class Word>
struct Columns {
  const Word* from;
  Word* to;
  std::size_t from_stride, to_stride;
  int words, pieces, rows, wanted_by, rows_a_rank;  // words, pieces: of a row
  bool meets;
};

template <class Word>
__global__ void __launch_bounds__(gather_threads)
    gather_columns(const __grid_constant__ PeerRoom room, const Columns<Word> columns) {
  ptx::grid_launch_dependents();
  ptx::grid_dependency_wait();
  for (int unit = static_cast<int>(blockIdx.x); unit < columns.rows * columns.pieces;
       unit += static_cast<int>(gridDim.x)) {
    const int row = unit / columns.pieces,
              word = unit % columns.pieces * gather_threads + static_cast<int>(threadIdx.x);
    if (word >= columns.words) continue;
    const Word value = __ldcg(columns.from + static_cast<std::size_t>(row) * columns.from_stride + word);
    Word* const to = columns.to + static_cast<std::size_t>(row) * columns.to_stride + word;
    const int wanted_by = columns.rows_a_rank > 0 ? row / columns.rows_a_rank : columns.wanted_by;
    // What already lies where it belongs is not stored there.
    for (int i = columns.from == columns.to ? 1 : 0; i < room.ranks; ++i) {
      const int peer = (room.rank + i) % room.ranks;
      if (wanted_by < 0 || wanted_by == peer) ptx::store_peer(at_peer(room, peer, to), value);
    }
  }
  if (columns.meets) meet_ranks(room);
}

__global__ void __launch_bounds__(gather_threads)
    gather_products(const __grid_constant__ PeerRoom room, const GatherProductsCudaArgs args, int pieces) {
  ptx::grid_launch_dependents();
  ptx::grid_dependency_wait();
  const int words = args.hidden / 4;
  for (int unit = static_cast<int>(blockIdx.x); unit < args.slots * pieces;
       unit += static_cast<int>(gridDim.x)) {
    const int slot = unit / pieces, word = unit % pieces * gather_threads + static_cast<int>(threadIdx.x);
    if (owner_of(args.owners, room.ranks, slot, __ldcg(args.expert_ids + slot)) != room.rank || word >= words)
      continue;
    uint4* const at = reinterpret_cast<uint4*>(args.products) +
                      static_cast<std::size_t>(slot) * static_cast<std::size_t>(words) + word;
    const uint4 value = __ldcg(at);
    if (args.slots_a_group > 0) {
      const int first = slot / args.slots_a_group * args.sharers;
      for (int peer = first; peer < first + args.sharers; ++peer)
        if (peer != room.rank) ptx::store_peer(at_peer(room, peer, at), value);
      continue;
    }
    for (int i = 1; i < room.ranks; ++i)
      ptx::store_peer(at_peer(room, (room.rank + i) % room.ranks, at), value);
  }
  meet_ranks(room);
}

bool whole_in(std::size_t unit, const GatherColumnsCudaArgs& args) {
  return (reinterpret_cast<std::uintptr_t>(args.from) | reinterpret_cast<std::uintptr_t>(args.to) |
          args.from_stride | args.to_stride | args.bytes) %
             unit ==
         0;
}

template <class Word>
void launch_columns(const PeerRoom& room, const GatherColumnsCudaArgs& args, cudaStream_t stream) {
  const int words = static_cast<int>(args.bytes / sizeof(Word)),
            pieces = (words + gather_threads - 1) / gather_threads;
  launch_kernel({.blocks = dim3(static_cast<unsigned>(blocks_for(args.rows, pieces))),
                 .threads = gather_threads,
                 .stream = stream,
                 .overlaps = true},
                gather_columns<Word>, room,
                Columns<Word>{.from = static_cast<const Word*>(args.from),
                              .to = static_cast<Word*>(args.to),
                              .from_stride = args.from_stride / sizeof(Word),
                              .to_stride = args.to_stride / sizeof(Word),
                              .words = words,
                              .pieces = pieces,
                              .rows = args.rows,
                              .wanted_by = args.wanted_by,
                              .rows_a_rank = args.rows_a_rank,
                              .meets = args.meets});
}

}  // namespace

Status gather_columns_cuda(const PeerRoom& room, const GatherColumnsCudaArgs& args, cudaStream_t stream) {
  if (!whole_in(sizeof(std::uint32_t), args))
    return invalid_argument("columns that ranks gather begin and end at multiples of 4 bytes");
  if (whole_in(sizeof(uint4), args)) {
    launch_columns<uint4>(room, args, stream);
  } else {
    launch_columns<std::uint32_t>(room, args, stream);
  }
  return {};
}

Status gather_products_cuda(const PeerRoom& room, const GatherProductsCudaArgs& args, cudaStream_t stream) {
  if (args.hidden % 4 != 0) {
    return invalid_argument("products that ranks gather are rows of a multiple of 4 columns, not " +
                            std::to_string(args.hidden));
  }
  if (args.window != nullptr) return gather_few_products_cuda(room, args, stream);
  const int pieces = (args.hidden / 4 + gather_threads - 1) / gather_threads;
  launch_kernel({.blocks = dim3(static_cast<unsigned>(blocks_for(args.slots, pieces))),
                 .threads = gather_threads,
                 .stream = stream,
                 .overlaps = true},
                gather_products, room, args, pieces);
  return {};
}

}  // namespace nibble
