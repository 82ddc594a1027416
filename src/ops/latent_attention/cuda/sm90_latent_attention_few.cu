// Latent attention of few queries (decode): a cluster of four blocks a split of 16 queries, neighbours of one
// sequence. For the order of additions see latent_cuda.h.
//
// What bounds it is latency: a chain of products for each score, one for each sum, and what blocks tell each
// other between the two. So in a round of four steps each block has one step's scores, which it sends to all;
// then each has all steps' weights, and of all steps' vectors 128 columns, whose sums it adds up in order. In
// the first product four warps have 16 positions each, and in the second eight have 16 columns each. In
// between a warp has a step's weights, as lanes of the first product left them: so they are operands of the
// second. Totals of splits are joined by a launch behind, or here, where there was no room to cut a tile.
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
static_assert(blocks * 2 == step_eights && blocks * block_groups == sides * side_groups);
static_assert(warps * 16 == block_groups * group_columns);
static_assert(latent_early_steps % blocks == 0 && latent_split_steps % blocks == 0);

// Of a lane's two queries, what a split comes to.
struct FewTotal {
  float level[2] = {latent_unseen, latent_unseen};
  float weight[sides][2] = {};  // of even and of odd steps
  float o[2][4] = {};           // of both eights of columns, as products have them
};
// And what the splits of an item that is not cut come to.
struct FewSplits {
  float level[2] = {latent_unseen, latent_unseen};
  float weight[2] = {};
  float o[2][4] = {};
};

template <class Element>
struct FewQueries {
  const LatentAttentionCudaArgs& args;
  float exponents;
  FewShared& shared;
  std::uint64_t *arrived, *freed;  // arrived: a round's scores; freed: their places, of all blocks
  int rank, warp, lane, g, t;
  FewLoads<Element> loads;
  LatentItem item;
  int readable_end = 0;  // steps before it may be brought
  unsigned rounds = 0;
  FewTotal total;
  FewSplits splits;

  __device__ __forceinline__ FewQueries(const LatentAttentionCudaArgs& args_, float exponents_,
                                        FewShared& shared_, std::uint64_t (&barriers)[2])
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

  // The block's step: scores of a warp's 16 positions, as two eights.
  struct Operands {
    std::uint32_t q[4][4], keys[4][4];  // of 16 columns; keys: of both eights
  };
  __device__ __forceinline__ void load_operands(Operands& of, int group) const {
    const std::uint8_t *const queries = shared.queries[group], *const keys = shared.keys[group];
    const int row_of_keys = 16 * warp + lane / 16 * 8 + lane % 8;
#pragma unroll
    for (int k = 0; k < group_columns / 16; ++k) {
      ptx::load_matrices(of.q[k][0], of.q[k][1], of.q[k][2], of.q[k][3],
                         queries + latent_piece_at(matrix_row(), 2 * k + matrix_piece()));
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
      float4* const to = &shared.scores[rank][2 * warp + n][lane];
#pragma unroll
      for (int block = 0; block < blocks; ++block)
        ptx::store_to_block(to, make_float4(s[n][0], s[n][1], s[n][2], s[n][3]), arrived, block);
    }
  }

  // Between the products each of the first warps has a step of the round, `step` of all.
  __device__ __forceinline__ void take_scores(int step, float (&s)[step_scores]) const {
#pragma unroll
    for (int j = 0; j < step_eights; ++j) {
      const float4 of_eight = shared.scores[warp][j][lane];
      s[4 * j] = of_eight.x;
      s[4 * j + 1] = of_eight.y;
      s[4 * j + 2] = of_eight.z;
      s[4 * j + 3] = of_eight.w;
    }
    if (item.query / args.heads + item.shift < (step + 1) * latent_step) {  // not all see all
      int seen[2];  // behind the lane's first position
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        seen[i] = (item.query + g + 8 * i) / args.heads + item.shift - step * latent_step - 2 * t;
      }
#pragma unroll
      for (int i = 0; i < step_scores; ++i) {
        if (i / 4 * 8 + i % 2 > seen[i / 2 % 2]) s[i] = latent_unseen;
      }
    }
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const float risen = ceilf(__fmul_rn(latent_largest(s, i), exponents));
      if (t == 0) shared.risen[warp][g + 8 * i] = risen;
    }
  }
  __device__ __forceinline__ void put_weights(float (&s)[step_scores], const float (&level)[2]) const {
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
    for (int i = 0; i < 2; ++i) shared.weights[warp][g + 8 * i][t] = sum[i];
    // Where scores were that this warp alone has read, before the barrier behind take_scores.
    uint4* const to = reinterpret_cast<uint4*>(shared.scores[warp]);
#pragma unroll
    for (int k = 0; k < step_sixteens; ++k) {
      const float* const eights = s + 8 * k;
      to[k * 32 + lane] =
          make_uint4(ptx::pack_bf16x2(eights[0], eights[1]), ptx::pack_bf16x2(eights[2], eights[3]),
                     ptx::pack_bf16x2(eights[4], eights[5]), ptx::pack_bf16x2(eights[6], eights[7]));
    }
  }

  // Of a round the level behind the warp's step, and what sums before each step are multiplied by.
  struct Levels {
    float behind[2], factors[blocks][2];
  };
  __device__ __forceinline__ void follow(Levels& levels, int count) {
#pragma unroll
    for (int i = 0; i < blocks; ++i) {
#pragma unroll
      for (int which = 0; which < 2; ++which) {
        float& level = total.level[which];
        const float before = level;
        if (i < count) {
          const float risen = shared.risen[i][g + 8 * which];
          level = risen <= before ? before : risen;
        }
        if (i == warp) levels.behind[which] = level;
        levels.factors[i][which] = latent_factor(before, level);
      }
    }
  }

  // Step i of a round into the totals.
  __device__ __forceinline__ void take_in(int i, const float (&factors)[2]) {
    const std::uint8_t* const values = shared.values[i][warp / 4];
#pragma unroll
    for (int which = 0; which < 2; ++which) {
      const float factor = factors[which];
      float &own = total.weight[i % sides][which], &other = total.weight[1 - i % sides][which];
      own = fmaf(own, factor, shared.weights[i][g + 8 * which][t]);
      other = __fmul_rn(other, factor);
#pragma unroll
      for (int n = 0; n < 2; ++n) {
        total.o[n][2 * which] = __fmul_rn(total.o[n][2 * which], factor);
        total.o[n][2 * which + 1] = __fmul_rn(total.o[n][2 * which + 1], factor);
      }
    }
#pragma unroll
    for (int k = 0; k < step_sixteens; ++k) {
      std::uint32_t columns[4];
      ptx::load_turned_matrices(
          columns[0], columns[1], columns[2], columns[3],
          values + latent_piece_at(16 * k + matrix_row(), warp % 4 * 2 + matrix_piece()));
      const uint4 w = reinterpret_cast<const uint4*>(shared.scores[i])[k * 32 + lane];
      ptx::mma_m16n8k16_bf16(total.o[0], w.x, w.y, w.z, w.w, columns[0], columns[1]);
      ptx::mma_m16n8k16_bf16(total.o[1], w.x, w.y, w.z, w.w, columns[2], columns[3]);
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
    const bool has_scores = rank < count && warp < blocks;
    if (has_scores) score(of_eights);
    if (follows) ptx::mbarrier_wait(freed, (rounds - 1) & 1);
    if (has_scores) send(of_eights);
    __syncthreads();  // keys have been read
    loads.bring_keys(next, next, readable_end);
    ptx::end_copy_group();
    ptx::mbarrier_wait(arrived, rounds++ & 1);
    const bool has_weights = warp < count;
    float s[step_scores];
    if (has_weights) take_scores(begin + warp, s);
    __syncthreads();  // levels are there
    Levels levels{};
    follow(levels, count);
    if (has_weights) put_weights(s, levels.behind);
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

  // The split's sums of weights.
  __device__ __forceinline__ void add_weights(float (&weights)[2]) const {
#pragma unroll
    for (int which = 0; which < 2; ++which) {
      float sums[sides];
#pragma unroll
      for (int side = 0; side < sides; ++side) {
        sums[side] = total.weight[side][which];
#pragma unroll
        for (int apart = 1; apart <= 2; apart *= 2)
          sums[side] = __fadd_rn(sums[side], __shfl_xor_sync(0xffffffffu, sums[side], apart));
      }
      weights[which] = __fadd_rn(sums[0], sums[1]);
    }
  }
  // Calls work(which, column, two sums) of what the lane has, columns counted from 0 on. Those past the
  // latent's, up to a whole group, are zeros.
  template <class Work>
  __device__ __forceinline__ void for_each_pair(const float (&o)[2][4], const Work& work) const {
    const int first = (block_groups * rank + warp / 4) * group_columns + warp % 4 * 16 + 2 * t;
    const int own_rank = args.cache.rank, padded = latent_padded(own_rank);
#pragma unroll
    for (int which = 0; which < 2; ++which) {
      if (g + 8 * which >= item.count) continue;
#pragma unroll
      for (int n = 0; n < 2; ++n) {
        const int column = first + 8 * n;
        if (column >= padded) continue;
        const bool real = column < own_rank;
        work(which, column, real ? o[n][2 * which] : 0.0f, real ? o[n][2 * which + 1] : 0.0f);
      }
    }
  }
  // A row of the lane's query `which`, of rows that begin with the tile's first.
  template <class Value>
  __device__ __forceinline__ Value* row_of(Value* rows, int first, int which, int width) const {
    return rows + static_cast<std::size_t>(first + g + 8 * which) * static_cast<std::size_t>(width);
  }
  // The split's total to where it is joined with the others'.
  __device__ __forceinline__ void leave_partial() const {
    const int padded = latent_padded(args.cache.rank), floats_of = latent_partial_floats_of(args.cache.rank);
    float weights[2];
    add_weights(weights);
    for_each_pair(total.o, [&](int which, int column, float low, float high) {
      *reinterpret_cast<float2*>(row_of(args.partials, item.partial, which, floats_of) + column) =
          make_float2(low, high);
    });
    if (rank > 0 || warp > 0 || t > 0) return;
#pragma unroll
    for (int which = 0; which < 2; ++which) {
      if (g + 8 * which < item.count)
        *reinterpret_cast<float2*>(row_of(args.partials, item.partial, which, floats_of) + padded) =
            make_float2(total.level[which], weights[which]);
    }
  }
  // Of an item that is not cut: the split's total into the queries'.
  __device__ __forceinline__ void end_split() {
    float weights[2];
    add_weights(weights);
#pragma unroll
    for (int which = 0; which < 2; ++which) {
      const float before = splits.level[which], its_level = total.level[which];
      const float most = its_level <= before ? before : its_level;
      const float keeps = latent_factor(before, most), adds = latent_factor(its_level, most);
      splits.level[which] = most;
      splits.weight[which] = latent_taken_in(splits.weight[which], keeps, weights[which], adds);
#pragma unroll
      for (int n = 0; n < 2; ++n) {
#pragma unroll
        for (int i = 2 * which; i < 2 * which + 2; ++i)
          splits.o[n][i] = latent_taken_in(splits.o[n][i], keeps, total.o[n][i], adds);
      }
    }
    total = FewTotal();
  }
  __device__ __forceinline__ void store() const {
    const int padded = latent_padded(args.cache.rank);
    for_each_pair(splits.o, [&](int which, int column, float low, float high) {
      *reinterpret_cast<std::uint32_t*>(row_of(args.out, item.query, which, padded) + column) =
          ptx::pack_bf16x2(low / splits.weight[which], high / splits.weight[which]);
    });
  }

  // Whether the round that ends at a step is the last of a split.
  __device__ __forceinline__ bool ends_split(int step) const {
    return step >= loads.steps.end || latent_split_begin(latent_split_of(step * latent_step)) == step;
  }

  // waits: the grids ahead may still run, and only what is settled may be read. Then a round comes first with
  // what happens to lie in shared memory, of which no sum is kept.
  __device__ __forceinline__ void take(const LatentItem& next, bool waits) {
    item = next;
    loads.take(item);
    const int first = loads.steps.begin, settled_end = max(loads.settled_end(), first);
    readable_end = waits ? settled_end : loads.steps.end;
    total = FewTotal();
    splits = FewSplits();
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
        total = FewTotal();
      }
      take_round(begin);
      if (begin >= first && item.partial < 0 && ends_split(begin + blocks)) end_split();
    }
    item.partial < 0 ? store() : leave_partial();
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
  FewQueries<Element>(args, exponents, *reinterpret_cast<FewShared*>(ptx::dynamic_shared()), barriers)
      .run(args.settled);
}

// As many clusters as run at once: multiprocessors come in groups of 16 or 18, which clusters do not leave.
int clusters_at_once(int processors) {
  constexpr int group = 16;
  return processors < group ? 1 : processors / group * (group / blocks);
}

}  // namespace

void launch_latent_attention_few(const LatentAttentionCudaArgs& args, float exponents, int processors,
                                 cudaStream_t stream) {
  const auto kernel =
      args.cache.dtype == DType::f8_e4m3 ? latent_attention_few<E4m3> : latent_attention_few<Bf16>;
  constexpr std::size_t bytes = sizeof(FewShared);
  cuda_check(
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes)));
  launch_kernel({.blocks = dim3(static_cast<unsigned>(clusters_at_once(processors) * blocks)),
                 .threads = threads,
                 .shared_bytes = bytes,
                 .stream = stream,
                 .overlaps = true,
                 .cluster = blocks,
                 .share = shared_228_kb},
                kernel, args, exponents);
}

}  // namespace nibble
