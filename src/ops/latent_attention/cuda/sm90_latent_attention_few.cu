// Latent attention of few queries (decode): a cluster of four blocks a split of 16 or 32 queries, neighbours
// of one sequence. For the order of additions see latent_cuda.h.
//
// What bounds it is latency: a chain of products for each score, one for each sum, and what blocks tell each
// other between the two. So in a round of four steps each block has one step's scores, which it sends to all;
// then each has all steps' weights, and of all steps' vectors 128 columns, whose sums it adds up in order. A
// warp has 16 positions in the first product, of 16 queries, and 16 columns in the second, of all. In between
// it has a step's weights of 16 queries, as lanes of the first product left them: so they are operands of the
// second.
//
// A step's vectors come whole to the block that has its scores, and by columns to all. The next round's come
// as soon as this one's have been read; the first round's, but for the sequence's new rows, come before the
// grids ahead have ended. Instructions come from afar, too: so before its queries are there, a block takes a
// round with other numbers.
#include "ops/cuda/launch.cuh"
#include "ops/latent_attention/cuda/latent_few_load.cuh"
#include "ops/ptx/cluster.cuh"
#include "ops/ptx/copy_groups.cuh"
#include "ops/ptx/load.cuh"

namespace nibble {
namespace {

constexpr int blocks = latent_few_blocks, threads = latent_few_threads, warps = latent_few_warps;
constexpr int step_sixteens = latent_step / 16, step_scores = latent_step / 2;
static_assert(step_eights == warps && blocks * block_groups == sides * side_groups);
static_assert(blocks * most_sixteens == warps && warps * 16 == block_groups * group_columns);

// Of a lane's queries, two of each sixteen.
template <int sixteens>
struct FewTotal {
  float level[sixteens][2];
  float weight[sides][sixteens][2];  // of even and of odd steps
  float o[sixteens][2][4];           // of both eights of columns, as products have them

  __device__ __forceinline__ void clear() {
#pragma unroll
    for (int m = 0; m < sixteens; ++m) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        level[m][i] = latent_unseen;
        weight[0][m][i] = weight[1][m][i] = 0;
#pragma unroll
        for (int j = 0; j < 4; ++j) o[m][i][j] = 0;
      }
    }
  }
};

template <class Element, int sixteens>
struct FewQueries {
  const LatentAttentionCudaArgs& args;
  float exponents;
  FewShared<sixteens>& shared;
  std::uint64_t *arrived, *freed;  // arrived: a round's scores; freed: their places, of all blocks
  int rank, warp, lane, g, t;
  FewLoads<Element, sixteens> loads;
  LatentItem item;
  int readable_end = 0;  // steps before it may be brought
  unsigned rounds = 0;
  FewTotal<sixteens> total;

  __device__ __forceinline__ FewQueries(const LatentAttentionCudaArgs& args_, float exponents_,
                                        FewShared<sixteens>& shared_, std::uint64_t (&barriers)[2])
      : args(args_),
        exponents(exponents_),
        shared(shared_),
        arrived(&barriers[0]),
        freed(&barriers[1]),
        rank(ptx::cluster_rank()),
        warp(ptx::warp_of_block()),
        lane(static_cast<int>(threadIdx.x) % 32),
        g(lane / 4),
        t(lane % 4),
        loads(args_, shared_, rank),
        item{} {}

  // A lane's row and piece among four matrices of 8 x 16 bytes, two of rows by two of columns.
  __device__ __forceinline__ int matrix_row() const { return lane / 8 % 2 * 8 + lane % 8; }
  __device__ __forceinline__ int matrix_piece() const { return lane / 16; }

  // The block's step: scores of a warp's sixteen queries and of 16 positions, as two eights.
  struct Operands {
    std::uint32_t q[4][4], keys[4][4];  // of 16 columns; keys: of both eights
  };
  __device__ __forceinline__ void load_operands(Operands& of, int group) const {
    const std::uint8_t *const queries = shared.queries[group], *const keys = shared.keys[group];
    const int row_of_keys = 16 * (warp % blocks) + lane / 16 * 8 + lane % 8;
#pragma unroll
    for (int k = 0; k < group_columns / 16; ++k) {
      ptx::load_matrices(
          of.q[k][0], of.q[k][1], of.q[k][2], of.q[k][3],
          queries + latent_piece_at(16 * (warp / blocks) + matrix_row(), 2 * k + matrix_piece()));
      ptx::load_matrices(of.keys[k][0], of.keys[k][1], of.keys[k][2], of.keys[k][3],
                         keys + latent_piece_at(row_of_keys, 2 * k + lane / 8 % 2));
    }
  }
  __device__ __forceinline__ void score(float (&s)[2][4]) const {
    const int groups = loads.groups;
#pragma unroll
    for (int n = 0; n < 2; ++n) s[n][0] = s[n][1] = s[n][2] = s[n][3] = 0;
    Operands even, odd;  // the next group's are on their way while one is multiplied
    load_operands(even, latent_group_at(0, groups));
#pragma unroll 1
    for (int turn = 0; turn < groups; turn += 2) {
      if (turn + 1 < groups) load_operands(odd, latent_group_at(turn + 1, groups));
      multiply(s, even);
      if (turn + 1 == groups) break;
      if (turn + 2 < groups) load_operands(even, latent_group_at(turn + 2, groups));
      multiply(s, odd);
    }
  }
  __device__ __forceinline__ static void multiply(float (&s)[2][4], const Operands& of) {
#pragma unroll
    for (int k = 0; k < group_columns / 16; ++k) {
#pragma unroll
      for (int n = 0; n < 2; ++n) {
        ptx::mma_m16n8k16_bf16(s[n], of.q[k][0], of.q[k][1], of.q[k][2], of.q[k][3], of.keys[k][2 * n],
                               of.keys[k][2 * n + 1]);
      }
    }
  }
  // To all blocks.
  __device__ __forceinline__ void send(const float (&s)[2][4]) const {
#pragma unroll
    for (int n = 0; n < 2; ++n) {
      float4* const to = &shared.scores[rank][warp / blocks][2 * (warp % blocks) + n][lane];
#pragma unroll
      for (int block = 0; block < blocks; ++block)
        ptx::store_to_block(to, make_float4(s[n][0], s[n][1], s[n][2], s[n][3]), arrived, block);
    }
  }

  // Between the products a warp has a step of the round, and sixteen queries.
  struct Part {
    int step, m;
  };
  __device__ __forceinline__ void take_scores(const Part& part, int step, float (&s)[step_scores]) const {
#pragma unroll
    for (int j = 0; j < step_eights; ++j) {
      const float4 of_eight = shared.scores[part.step][part.m][j][lane];
      s[4 * j] = of_eight.x;
      s[4 * j + 1] = of_eight.y;
      s[4 * j + 2] = of_eight.z;
      s[4 * j + 3] = of_eight.w;
    }
    if (item.query / args.heads + item.shift < (step + 1) * latent_step) {  // not all see all
      int seen[2];  // behind the lane's first position
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        seen[i] =
            (item.query + 16 * part.m + g + 8 * i) / args.heads + item.shift - step * latent_step - 2 * t;
      }
#pragma unroll
      for (int i = 0; i < step_scores; ++i) {
        if (i / 4 * 8 + i % 2 > seen[i / 2 % 2]) s[i] = latent_unseen;
      }
    }
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const float risen = ceilf(__fmul_rn(latent_largest(s, i), exponents));
      if (t == 0) shared.risen[part.step][16 * part.m + g + 8 * i] = risen;
    }
  }
  __device__ __forceinline__ void put_weights(const Part& part, float (&s)[step_scores],
                                              const float (&level)[2]) const {
    float sum[2] = {0, 0}, from[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) from[i] = level[i] == latent_unseen ? 0.0f : level[i];
#pragma unroll
    for (int i = 0; i < step_scores; ++i) {
      const int which = i / 2 % 2;
      s[i] = ptx::exp2_fast(fmaf(s[i], exponents, -from[which]));
      sum[which] = __fadd_rn(sum[which], s[i]);
    }
#pragma unroll
    for (int i = 0; i < 2; ++i) shared.weights[part.step][16 * part.m + g + 8 * i][t] = sum[i];
    // Where scores were that this warp alone has read, before the barrier behind take_scores.
    uint4* const to = reinterpret_cast<uint4*>(shared.scores[part.step][part.m]);
#pragma unroll
    for (int k = 0; k < step_sixteens; ++k) {
      const float* const eights = s + 8 * k;
      to[k * 32 + lane] =
          make_uint4(ptx::pack_bf16x2(eights[0], eights[1]), ptx::pack_bf16x2(eights[2], eights[3]),
                     ptx::pack_bf16x2(eights[4], eights[5]), ptx::pack_bf16x2(eights[6], eights[7]));
    }
  }

  // Levels behind each step of a round, and what sums before it are multiplied by.
  struct Levels {
    float behind[blocks][sixteens][2], factors[blocks][sixteens][2];
  };
  __device__ __forceinline__ void follow(Levels& levels, int count) {
#pragma unroll
    for (int i = 0; i < blocks; ++i) {
#pragma unroll
      for (int m = 0; m < sixteens; ++m) {
#pragma unroll
        for (int which = 0; which < 2; ++which) {
          float& level = total.level[m][which];
          const float before = level;
          if (i < count) {
            const float risen = shared.risen[i][16 * m + g + 8 * which];
            level = risen <= before ? before : risen;
          }
          levels.behind[i][m][which] = level;
          levels.factors[i][m][which] = latent_factor(before, level);
        }
      }
    }
  }

  // Step i of a round into the totals.
  __device__ __forceinline__ void take_in(int i, const float (&factors)[sixteens][2]) {
    const std::uint8_t* const values = shared.values[i][warp / 4];
#pragma unroll
    for (int m = 0; m < sixteens; ++m) {
#pragma unroll
      for (int which = 0; which < 2; ++which) {
        const float factor = factors[m][which];
        float &own = total.weight[i % sides][m][which], &other = total.weight[1 - i % sides][m][which];
        own = fmaf(own, factor, shared.weights[i][16 * m + g + 8 * which][t]);
        other = __fmul_rn(other, factor);
#pragma unroll
        for (int n = 0; n < 2; ++n) {
          total.o[m][n][2 * which] = __fmul_rn(total.o[m][n][2 * which], factor);
          total.o[m][n][2 * which + 1] = __fmul_rn(total.o[m][n][2 * which + 1], factor);
        }
      }
    }
#pragma unroll
    for (int k = 0; k < step_sixteens; ++k) {
      std::uint32_t columns[4];
      ptx::load_turned_matrices(
          columns[0], columns[1], columns[2], columns[3],
          values + latent_piece_at(16 * k + matrix_row(), warp % 4 * 2 + matrix_piece()));
#pragma unroll
      for (int m = 0; m < sixteens; ++m) {
        const uint4 w = reinterpret_cast<const uint4*>(shared.scores[i][m])[k * 32 + lane];
        ptx::mma_m16n8k16_bf16(total.o[m][0], w.x, w.y, w.z, w.w, columns[0], columns[1]);
        ptx::mma_m16n8k16_bf16(total.o[m][1], w.x, w.y, w.z, w.w, columns[2], columns[3]);
      }
    }
  }

  // A round of up to four steps. Its keys are the group of copies before the last, its values the last.
  __device__ __forceinline__ void take_round(int begin) {
    const int count = min(loads.steps.end - begin, blocks), next = begin + blocks;
    const bool follows = rounds > 0;  // upon a round whose scores lay where this one's will
    if (follows && threadIdx.x < blocks) ptx::mbarrier_arrive_at(freed, static_cast<int>(threadIdx.x));
    if (threadIdx.x == 0)
      ptx::mbarrier_arrive_expecting(arrived, static_cast<std::uint32_t>(count * sizeof(shared.scores[0])));
    ptx::await_copy_groups<1>();
    __syncthreads();  // keys are there
    float of_eights[2][4];
    const bool has_scores = rank < count && warp / blocks < sixteens;
    if (has_scores) score(of_eights);
    if (follows) ptx::mbarrier_wait(freed, (rounds - 1) & 1);
    if (has_scores) send(of_eights);
    __syncthreads();  // keys have been read
    loads.bring_keys(next, next, readable_end);
    ptx::end_copy_group();
    ptx::mbarrier_wait(arrived, rounds++ & 1);
    const Part part{warp % blocks, warp / blocks};
    const bool has_part = part.step < count && part.m < sixteens;
    float s[step_scores];
    if (has_part) take_scores(part, begin + part.step, s);
    __syncthreads();  // levels are there
    Levels levels;
    follow(levels, count);
    if (has_part) {
      float behind[2];
#pragma unroll
      for (int i = 0; i < blocks; ++i) {
#pragma unroll
        for (int m = 0; m < sixteens; ++m) {
          if (i != part.step || m != part.m) continue;
          behind[0] = levels.behind[i][m][0];
          behind[1] = levels.behind[i][m][1];
        }
      }
      put_weights(part, s, behind);
    }
    ptx::await_copy_groups<1>();
    __syncthreads();  // weights are there, and values
#pragma unroll
    for (int i = 0; i < blocks; ++i) {
      if (i < count) take_in(i, levels.factors[i]);
    }
    ptx::fence_shared_writes();  // weights lie where scores will come
    __syncthreads();             // weights and values have been read
    loads.bring_values(next, next, readable_end);
    ptx::end_copy_group();
  }

  // work(query, column, two sums) of what the lane has, columns counted from 0 on. Those past the latent's,
  // up to a whole group, are zeros.
  template <class Work>
  __device__ __forceinline__ void for_each_pair(const Work& work) const {
    const int first = (block_groups * rank + warp / 4) * group_columns + warp % 4 * 16 + 2 * t;
    const int own_rank = args.cache.rank, padded = latent_padded(own_rank);
#pragma unroll
    for (int m = 0; m < sixteens; ++m) {
#pragma unroll
      for (int which = 0; which < 2; ++which) {
        const int query = 16 * m + g + 8 * which;
        if (query >= item.count) continue;
#pragma unroll
        for (int n = 0; n < 2; ++n) {
          const int column = first + 8 * n;
          if (column >= padded) continue;
          const bool real = column < own_rank;
          work(m, which, column, real ? total.o[m][n][2 * which] : 0.0f,
               real ? total.o[m][n][2 * which + 1] : 0.0f);
        }
      }
    }
  }
  __device__ __forceinline__ void end() const {
    const int padded = latent_padded(args.cache.rank), floats_of = latent_partial_floats_of(args.cache.rank);
    float weights[sixteens][2];
#pragma unroll
    for (int m = 0; m < sixteens; ++m) {
#pragma unroll
      for (int which = 0; which < 2; ++which) {
        float sums[sides];
#pragma unroll
        for (int side = 0; side < sides; ++side) {
          sums[side] = total.weight[side][m][which];
#pragma unroll
          for (int apart = 1; apart <= 2; apart *= 2)
            sums[side] = __fadd_rn(sums[side], __shfl_xor_sync(0xffffffffu, sums[side], apart));
        }
        weights[m][which] = __fadd_rn(sums[0], sums[1]);
      }
    }
    const auto at = [&](auto* rows, int first, int m, int which, int of_row) {
      return rows +
             static_cast<std::size_t>(first + 16 * m + g + 8 * which) * static_cast<std::size_t>(of_row);
    };
    if (item.partial >= 0) {
      for_each_pair([&](int m, int which, int column, float low, float high) {
        *reinterpret_cast<float2*>(at(args.partials, item.partial, m, which, floats_of) + column) =
            make_float2(low, high);
      });
#pragma unroll
      for (int m = 0; m < sixteens; ++m) {
#pragma unroll
        for (int which = 0; which < 2; ++which) {
          if (rank == 0 && warp == 0 && t == 0 && 16 * m + g + 8 * which < item.count)
            *reinterpret_cast<float2*>(at(args.partials, item.partial, m, which, floats_of) + padded) =
                make_float2(total.level[m][which], weights[m][which]);
        }
      }
      return;
    }
    // As a query's total takes in its only split.
    for_each_pair([&](int m, int which, int column, float low, float high) {
      const float level = total.level[m][which], most = level <= latent_unseen ? latent_unseen : level;
      const float keeps = latent_factor(latent_unseen, most), adds = latent_factor(level, most);
      const float weight = latent_taken_in(0, keeps, weights[m][which], adds);
      *reinterpret_cast<std::uint32_t*>(at(args.out, item.query, m, which, padded) + column) =
          ptx::pack_bf16x2(latent_taken_in(0, keeps, low, adds) / weight,
                           latent_taken_in(0, keeps, high, adds) / weight);
    });
  }

  // waits: the grids ahead may still run, and only what is settled may be read. Then a round comes first with
  // what happens to lie in shared memory, of which no sum is kept.
  __device__ __forceinline__ void take(const LatentItem& next, bool waits) {
    item = next;
    loads.take(item);
    const int first = loads.steps.begin, settled_end = max(loads.settled_end(), first);
    readable_end = waits ? settled_end : loads.steps.end;
    total.clear();
#pragma unroll 1
    for (int begin = waits ? first - blocks : first; begin < loads.steps.end; begin += blocks) {
      if (begin == first) {
        if (waits) ptx::grid_dependency_wait();
        readable_end = loads.steps.end;
        const int from = waits ? settled_end : first;
        loads.bring_queries(item);
        loads.bring_keys(first, from, readable_end);
        ptx::end_copy_group();
        loads.bring_values(first, from, readable_end);
        ptx::end_copy_group();
        total.clear();
      }
      take_round(begin);
    }
    end();
  }

  __device__ __forceinline__ void run(bool waits) {
    const int items = reinterpret_cast<const LatentWorkHeader*>(args.work)->items;
    const auto* const listed = reinterpret_cast<const LatentItem*>(args.work + sizeof(LatentWorkHeader));
    const int clusters = static_cast<int>(gridDim.x) / blocks;
#pragma unroll 1
    for (int i = static_cast<int>(blockIdx.x) / blocks; i < items; i += clusters, waits = false)
      take(listed[i], waits);
    if (waits) ptx::grid_dependency_wait();  // who waits for this grid waits for those ahead
  }
};

template <class Element>
__global__ void __launch_bounds__(threads, 1)
    latent_attention_few(const __grid_constant__ LatentAttentionCudaArgs args, float exponents) {
  __shared__ std::uint64_t barriers[2];
  ptx::grid_launch_dependents();
  if (threadIdx.x == 0) {
    ptx::mbarrier_init(&barriers[0], 1);
    ptx::mbarrier_init(&barriers[1], blocks);
    ptx::fence_mbarrier_init();
  }
  ptx::cluster_barrier();  // the other blocks' barriers are ready
  if (!args.settled) ptx::grid_dependency_wait();
  const int tile = reinterpret_cast<const LatentWorkHeader*>(args.work)->tile;
  std::uint8_t* const bytes = ptx::dynamic_shared();
  if (tile == latent_few_tile) {
    FewQueries<Element, 1>(args, exponents, *reinterpret_cast<FewShared<1>*>(bytes), barriers)
        .run(args.settled);
  } else if (tile == most_sixteens * latent_few_tile) {
    FewQueries<Element, most_sixteens>(args, exponents, *reinterpret_cast<FewShared<most_sixteens>*>(bytes),
                                       barriers)
        .run(args.settled);
  } else if (args.settled) {
    ptx::grid_dependency_wait();
  }
}

}  // namespace

void launch_latent_attention_few(const LatentAttentionCudaArgs& args, float exponents, int processors,
                                 cudaStream_t stream) {
  const auto kernel =
      args.cache.dtype == DType::f8_e4m3 ? latent_attention_few<E4m3> : latent_attention_few<Bf16>;
  constexpr std::size_t bytes = sizeof(FewShared<most_sixteens>);
  cuda_check(
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes)));
  launch_kernel({.blocks = dim3(static_cast<unsigned>(latent_clusters(processors) * blocks)),
                 .threads = threads,
                 .shared_bytes = bytes,
                 .stream = stream,
                 .overlaps = true,
                 .cluster = blocks,
                 .share = shared_228_kb},
                kernel, args, exponents);
}

}  // namespace nibble
