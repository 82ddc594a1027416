// The warps of latent attention that load: a tile's queries, then vectors, each side's steps by warps of its
// own, in groups of columns as their places become free. What no query of the tile sees, and columns past the
// last, are zeros. Where all of a step is seen and is bfloat16, one thread has the copy engine bring it.
#pragma once

#include <type_traits>

#include "ops/latent_attention/cuda/latent_tile.cuh"
#include "ops/ptx/swizzled_map.cuh"

namespace nibble {

// The barriers at which a side's warps have written a group or a step.
inline constexpr int side_has_written = 6;

// A step's vectors, of which the tile sees the first ones.
struct StepVectors {
  int slot, seen;
};

// What kernels of latent attention are given.
struct LatentParams {
  LatentAttentionCudaArgs args;
  float exponents;       // scale * log2 e
  ptx::TensorMap q;      // [rows * heads, width]
  ptx::TensorMap cache;  // [slots, width], of bfloat16
};

template <class Element>
struct LatentLoad {
  static constexpr bool is_converted = std::is_same_v<Element, E4m3>;

  const LatentParams& params;
  const LatentAttentionCudaArgs& args;
  LatentShared& shared;
  int side, thread, width, groups;  // thread: of the side's

  __device__ __forceinline__ LatentLoad(const LatentParams& params_, LatentShared& shared_)
      : params(params_),
        args(params_.args),
        shared(shared_),
        side(static_cast<int>(threadIdx.x) / side_load_threads),
        thread(static_cast<int>(threadIdx.x) % side_load_threads),
        width(params_.args.cache.width()),
        groups(latent_padded(width) / group_columns) {}

  // Queries past the tile's last are some that others have.
  __device__ __forceinline__ void fetch_queries(const LatentItem& item) const {
    ptx::mbarrier_arrive_expecting(&shared.queries_full, static_cast<unsigned>(groups * group_bytes));
    for (int group = 0; group < groups; ++group) {
      ptx::tile_copy_to_shared(shared.queries[group], params.q, group * group_columns, item.query,
                               &shared.queries_full);
    }
  }

  __device__ __forceinline__ StepVectors step_at(const LatentItem& item, int step, int last) const {
    const int first = step * latent_step;
    if (first > last) return {0, 0};
    const std::int32_t page = args.page_table[item.pages_at + first / args.page_size];
    return {page * args.page_size + first % args.page_size, last + 1 - first};
  }

  // By all of the side's threads.
  __device__ __forceinline__ void write_group(const Bf16* first, int seen, int group) const {
    const int piece = thread % 8, column = group * group_columns + piece * 8;
#pragma unroll
    for (int row = thread / 8; row < latent_step; row += side_load_threads / 8) {
      std::uint8_t* const to = shared.vectors[side][group] + latent_piece_at(row, piece);
      if (row < seen && column < width) {
        ptx::copy_to_shared(to, first + row * width + column);
      } else {
        *reinterpret_cast<uint4*>(to) = make_uint4(0, 0, 0, 0);
      }
    }
  }
  __device__ __forceinline__ void write_group(const E4m3* first, int seen, int group) const {
    constexpr int rows_at_once = side_load_threads / 4, rows = latent_step / rows_at_once;
    const int two = thread % 4, column = group * group_columns + two * 16;
    uint4 codes[rows];
#pragma unroll
    for (int i = 0; i < rows; ++i) {
      const int row = i * rows_at_once + thread / 4;
      codes[i] = make_uint4(0, 0, 0, 0);
      if (row < seen && column < width)
        codes[i] = *reinterpret_cast<const uint4*>(first + row * width + column);
    }
#pragma unroll
    for (int i = 0; i < rows; ++i) {
      const int row = i * rows_at_once + thread / 4;
      put_converted(shared.vectors[side][group], row, two, codes[i]);
    }
  }

  // What the side's threads have written is there for products.
  template <class Announce>
  __device__ __forceinline__ void announce(const Announce& each) const {
    ptx::await_copies_to_shared();
    ptx::fence_shared_writes();
    ptx::named_barrier(side_has_written + side, side_load_threads);
    if (thread == 0) each();
  }
  // A step that is converted, or not all seen. Its groups are announced before places of the side's next are
  // waited for: they become free by what this step's groups are read for. One thread waits for places: the
  // others may be steps ahead of it, where a phase's parity says nothing.
  __device__ __forceinline__ void write_step(const StepVectors& vectors, unsigned parity) const {
    const Element* const first = static_cast<const Element*>(args.cache.vectors) +
                                 static_cast<std::size_t>(vectors.slot) * static_cast<std::size_t>(width);
#pragma unroll 1
    for (int turn = 0; turn < groups; ++turn) {
      const int group = latent_group_at(turn, groups);
      if (thread == 0) ptx::mbarrier_wait(&shared.empty[side][group], parity ^ 1);
      __syncwarp();
      ptx::named_barrier(side_has_written + side, side_load_threads);
      write_group(first, vectors.seen, group);
      if constexpr (is_converted) announce([&] { ptx::mbarrier_arrive(&shared.full[side][group]); });
    }
    if constexpr (is_converted) return;
    announce([&] {
      for (int group = 0; group < groups; ++group) ptx::mbarrier_arrive(&shared.full[side][group]);
    });
  }
  __device__ __forceinline__ void copy_step(const StepVectors& vectors, unsigned parity) const {
    for (int turn = 0; turn < groups; ++turn) {
      const int group = latent_group_at(turn, groups);
      ptx::mbarrier_wait(&shared.empty[side][group], parity ^ 1);
      ptx::mbarrier_arrive_expecting(&shared.full[side][group], group_bytes);
      ptx::tile_copy_to_shared(shared.vectors[side][group], params.cache, group * group_columns, vectors.slot,
                               &shared.full[side][group]);
    }
  }

  __device__ __forceinline__ void run() const {
    unsigned items = 0, steps = 0;
    for_each_latent_item(args.work, [&](const LatentItem& item) {
      const LatentSteps range(item, args.heads);
      if (side == 0 && thread == 0) {
        ptx::mbarrier_wait(&shared.queries_empty, (items++ & 1) ^ 1);
        fetch_queries(item);
      }
      __syncwarp();
      for (int step = range.begin; step < range.end; step += sides, ++steps) {
        const StepVectors vectors = step_at(item, step + side, range.last);
        if (is_converted || vectors.seen < latent_step) {
          write_step(vectors, steps & 1);
        } else if (thread == 0) {
          copy_step(vectors, steps & 1);
        }
        __syncwarp();  // lanes come to barriers together
      }
    });
  }
};

}  // namespace nibble
