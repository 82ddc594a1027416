// What a block of latent attention of few queries has in shared memory, and brings there, all its threads: a
// tile's queries, the vectors of its step of a round, and its columns of all the round's steps. What the tile
// does not see, and columns past the last, are zeros.
#pragma once

#include <type_traits>

#include "ops/latent_attention/cuda/latent_tile.cuh"

namespace nibble {

inline constexpr int latent_few_warps = 8, latent_few_threads = latent_few_warps * 32;
inline constexpr int block_groups = 2;  // of columns, whose sums a block has
inline constexpr int step_eights = latent_step / 8;

struct FewShared {
  std::uint8_t queries[most_groups][latent_few_tile * ptx::swizzled_row_bytes];
  std::uint8_t keys[most_groups][group_bytes];                        // of the block's step
  std::uint8_t values[latent_few_blocks][block_groups][group_bytes];  // of all steps the block's columns
  float4 scores[latent_few_blocks][step_eights][32];     // by lanes; then weights, in the first half
  float risen[latent_few_blocks][latent_few_tile];       // a step's largest score, as a level
  float weights[latent_few_blocks][latent_few_tile][4];  // a step's sums, by lanes
};

template <class Element>
struct FewLoads {
  static constexpr bool is_converted = std::is_same_v<Element, E4m3>;

  const LatentAttentionCudaArgs& args;
  FewShared& shared;
  int rank, thread, width, groups;
  int pages_at = 0;
  LatentSteps steps;

  __device__ __forceinline__ FewLoads(const LatentAttentionCudaArgs& args_, FewShared& shared_, int rank_)
      : args(args_),
        shared(shared_),
        rank(rank_),
        thread(static_cast<int>(threadIdx.x)),
        width(args_.cache.width()),
        groups(latent_padded(width) / group_columns),
        steps({}, 1) {}

  __device__ __forceinline__ void take(const LatentItem& item) {
    pages_at = item.pages_at;
    steps = LatentSteps(item, args.heads);
  }
  // Steps before it were in memory before the grids ahead ended.
  __device__ __forceinline__ int settled_end() const {
    return max(steps.last + 1 - args.rows, 0) / latent_step;
  }

  __device__ __forceinline__ void bring_queries(const LatentItem& item) const {
    const Bf16* const first = args.q + static_cast<std::size_t>(item.query) * static_cast<std::size_t>(width);
#pragma unroll 1
    for (int group = 0; group < groups; ++group)
      bring_rows<latent_few_tile>(shared.queries[group], first, item.count, group);
  }
  // Of the round that begins with a step, what is of steps [from, past).
  __device__ __forceinline__ void bring_keys(int begin, int from, int past) const {
    const int step = begin + rank;
    if (step >= from && step < min(past, steps.end)) bring(shared.keys, step, 0, groups);
  }
  __device__ __forceinline__ void bring_values(int begin, int from, int past) const {
    const int first = block_groups * rank, past_step = min(min(past, steps.end), begin + latent_few_blocks);
#pragma unroll 1
    for (int step = max(begin, from); step < past_step; ++step)
      bring(shared.values[step - begin], step, first, min(first + block_groups, groups));
  }

 private:
  // A group of `rows` rows of bfloat16, of which the first `seen` are there.
  template <int rows>
  __device__ __forceinline__ void bring_rows(std::uint8_t* to, const Bf16* first, int seen, int group) const {
    const int piece = thread % 8, column = group * group_columns + piece * 8;
#pragma unroll
    for (int begin = 0; begin < rows; begin += latent_few_threads / 8) {
      const int row = begin + thread / 8;
      if (row >= rows) continue;
      std::uint8_t* const at = to + latent_piece_at(row, piece);
      if (row < seen && column < width) {
        ptx::copy_to_shared(at, first + row * width + column);
      } else {
        *reinterpret_cast<uint4*>(at) = make_uint4(0, 0, 0, 0);
      }
    }
  }
  // A step's groups [begin, past) of columns, to tiles one behind the other.
  __device__ __forceinline__ void bring(std::uint8_t (*to)[group_bytes], int step, int begin,
                                        int past) const {
    const int position = step * latent_step, seen = steps.last + 1 - position;
    const int slot =
        args.page_table[pages_at + position / args.page_size] * args.page_size + position % args.page_size;
    const Element* const first = static_cast<const Element*>(args.cache.vectors) +
                                 static_cast<std::size_t>(slot) * static_cast<std::size_t>(width);
    if constexpr (is_converted) {
      constexpr int at_once = 3;
      const int row = thread / 4, two = thread % 4;
#pragma unroll 1
      for (int group = begin; group < past; group += at_once) {
        uint4 codes[at_once];
#pragma unroll
        for (int i = 0; i < at_once; ++i) {
          const int column = (group + i) * group_columns + two * 16;
          codes[i] = make_uint4(0, 0, 0, 0);
          if (group + i < past && row < seen && column < width)
            codes[i] = *reinterpret_cast<const uint4*>(first + row * width + column);
        }
#pragma unroll
        for (int i = 0; i < at_once; ++i) {
          if (group + i < past) put_converted(to[group + i - begin], row, two, codes[i]);
        }
      }
    } else {
#pragma unroll 1
      for (int group = begin; group < past; ++group)
        bring_rows<latent_step>(to[group - begin], first, seen, group);
    }
  }
};

}  // namespace nibble
