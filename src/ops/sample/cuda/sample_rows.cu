// Three kernels, which read a row some three times without filters (the second-level cache has it from
// lm_head):
// 1. The likeliest id of each 1,024, a warp each.
// 2. Of each 1,024 ids their part of the softmax's sum, in the CPU's order, and of the mass to draw from; for
// top_p
//    the row's masses by weight.
// 3. A cluster of 1 to 16 blocks a row. A top_k or top_p that leaves many: the row's last token that stays,
// by
//    histograms that the blocks add together, until the ids in question are few enough to be sorted; then the
//    mass of what stays. The row's first block adds up the sum, lists the likeliest ids, draws and writes. Of
//    the n likeliest ids none is below the n-th largest of those that kernel 1 found, so that a list takes a
//    look at the few parts which have them.
// The first two are in sample_parts.cu, the third is here.
#include <string>

#include "ops/cuda/launch.cuh"
#include "ops/ptx/cluster.cuh"
#include "ops/ptx/grid.cuh"
#include "ops/ptx/load_ahead.cuh"
#include "ops/sample/cuda/sample_row.cuh"
#include "ops/sample/uniform_draw.h"

namespace nibble {
namespace {

using namespace sampling;

constexpr int most_sorted = 4096;

struct RowShared {
  union {
    Histogram histogram;
    std::uint64_t keys[most_sorted];
    struct {
      std::uint64_t keys[small_top_k];  // those of `keys`
      Mass masses[small_top_k];
    } drawn;
  };
  double exp_sums[most_parts];
  double log_sum_exp;
  SearchRoom search;
  std::uint16_t parts[most_parts];
  int count, token;
};

// A block of a row's cluster.
struct Row {
  const SampleCudaArgs& args;
  RowShared& shared;
  const RowWorkspace& workspace;
  const SampleCudaParams params;
  const Wishes wishes;
  const float* logits;
  const float* from;                 // what is chosen from
  int parts, first_part, past_part;  // the row's, this block's
  int first, past;                   // ids: this block's
  int thread = static_cast<int>(threadIdx.x), lane = thread % 32, warp = thread / 32;

  // `ahead`: loads on their way.
  template <int ahead, class Use>
  __device__ __forceinline__ void each(const float* row, const Use& use) const {
#pragma unroll 1
    for (int id = first + thread; id < past; id += ahead * row_threads) {
      float some[ahead];
#pragma unroll
      for (int i = 0; i < ahead; ++i) some[i] = ptx::load_ahead(row + min(id + i * row_threads, past - 1));
#pragma unroll
      for (int i = 0; i < ahead; ++i) {
        if (id + i * row_threads < past) use(id + i * row_threads, some[i]);
      }
    }
  }

  // The `wanted` likeliest ids of a row, and maybe some more, in falling order in shared.keys. Of each part,
  // likeliest has the likeliest.
  __device__ __noinline__ void list(const float* row, const std::uint64_t* likeliest, int wanted) const {
    std::uint32_t bound = 0;
    int chosen = parts;
    if (parts > wanted) {
      for (int part = thread; part < parts; part += row_threads) shared.keys[part] = __ldcg(likeliest + part);
      sort_keys(shared.keys, parts);
      bound = rank_of_key(shared.keys[wanted - 1]);
      int own = 0;
      for (int i = thread; i < parts; i += row_threads) {
        const std::uint64_t key = shared.keys[i];
        own += rank_of_key(key) >= bound;
        shared.parts[i] = static_cast<std::uint16_t>(id_of_key(key) / block_ids);
      }
      chosen = static_cast<int>(add_up(shared.search, own));
    } else {
      for (int i = thread; i < parts; i += row_threads) shared.parts[i] = static_cast<std::uint16_t>(i);
    }
    if (thread == 0) shared.count = 0;
    __syncthreads();  // the parts are chosen, and nothing is listed
    for (int i = warp; i < chosen; i += row_warps) list_part(row, shared.parts[i], bound);
    __syncthreads();  // all are listed
    if (shared.count > most_sorted) return list_many(row, wanted);
    sort_keys(shared.keys, shared.count);
  }
  __device__ void list_part(const float* row, int part, std::uint32_t bound) const {
    constexpr int ahead = 16;  // loads on their way
    const int end = min((part + 1) * block_ids, args.vocabulary);
#pragma unroll 1
    for (int id = part * block_ids + lane; id < end; id += ahead * 32) {
      float some[ahead];
#pragma unroll
      for (int i = 0; i < ahead; ++i) some[i] = ptx::load_ahead(row + min(id + i * 32, end - 1));
#pragma unroll
      for (int i = 0; i < ahead; ++i) {
        const std::uint32_t rank = rank_of(some[i]);
        if (rank < bound || id + i * 32 >= end) continue;
        const int at = add_to(&shared.count, 1);
        if (at < most_sorted) shared.keys[at] = key_of(rank, id + i * 32);
      }
    }
  }

  // The same digit by digit, for rows in which too many logits are alike.
  __device__ __noinline__ void list_many(const float* row, int wanted) const {
    Histogram& histogram = shared.histogram;
    Prefix prefix;
    Mass left = wanted - 1;
    int likelier = 0;  // than all that begin with the prefix
    int last_id = 0x7fffffff;
    for (;;) {
      histogram.clear<row_threads>();
      for (int id = thread; id < args.vocabulary; id += row_threads) {
        const std::uint32_t rank = rank_of(row[id]);
        if (prefix.has(rank)) add_to(&histogram.low[prefix.bin(rank)], 1u);
      }
      __syncthreads();  // the digits are counted
      const Found found = find_part(shared.search, prefix.bins(), left,
                                    [&](int bin) { return static_cast<Mass>(histogram.low[bin]); });
      likelier += static_cast<int>(left - found.left);
      left = found.left;
      const int inside = static_cast<int>(histogram.low[found.index]);
      prefix.narrow(found.index);
      __syncthreads();  // the bin has been read
      if (likelier + inside <= most_sorted) break;
      if (!prefix.whole()) continue;
      last_id = find_tie(shared.search, row, {}, prefix.value, 0, args.vocabulary, static_cast<int>(left));
      break;
    }
    if (thread == 0) shared.count = 0;
    __syncthreads();  // none are listed
    for (int id = thread; id < args.vocabulary; id += row_threads) {
      const std::uint32_t rank = rank_of(row[id]);
      if (prefix.under(rank) || (prefix.has(rank) && id <= last_id))
        shared.keys[add_to(&shared.count, 1)] = key_of(rank, id);
    }
    __syncthreads();  // all are listed
    sort_keys(shared.keys, shared.count);
  }

  __device__ Mass bin(int level, int i) const {
    return static_cast<Mass>(__ldcg(workspace.bins + level * Shares::bins + i));
  }

  // What all blocks do alike. A search's tokens: those kept so far, of one bucket of weights if there is one.
  struct Search {
    Kept kept;
    bool count;      // each token counts one; else its mass
    int bucket;      // -1: any
    int next_level;  // of the workspace's histograms
  };

  // The token at which the running sum of a search's values, in order of likelihood, first exceeds `left`.
  __device__ __noinline__ Kept last_of(const Search& search, const Weighing& weighing, Mass left) const {
    Prefix prefix;
    const auto value = [&](float logit) { return search.count ? Mass{1} : weighing.mass_of(logit); };
    const auto has = [&](int id, float logit) {
      const std::uint32_t rank = rank_of(logit);
      return prefix.has(rank) && search.kept.has(rank, id) &&
             (search.bucket < 0 ||
              static_cast<int>(Weighing::bucket(weighing.weight(logit))) == search.bucket);
    };
    int level = search.next_level;
#pragma unroll 1
    for (bool gathers = search.bucket >= 0;; gathers = true) {
      if (gathers) {
        const int count = gather(has, search.count ? level : level + 1);
        if (count <= Shares::gathered) {
          for (int i = thread; i < count; i += row_threads) shared.keys[i] = __ldcg(workspace.gathered + i);
          sort_keys(shared.keys, count);
          const Found found = find_part(shared.search, count, left,
                                        [&](int i) { return value(logit_of(rank_of_key(shared.keys[i]))); });
          const std::uint64_t key = shared.keys[found.index];
          __syncthreads();  // the key has been read
          return {rank_of_key(key), id_of_key(key), 0};
        }
      }
      if (prefix.whole()) break;
      shared.histogram.clear<row_threads>();
      each<8>(from, [&](int id, float logit) {
        if (has(id, logit)) shared.histogram.add(prefix.bin(rank_of(logit)), value(logit));
      });
      __syncthreads();  // all masses are in the histogram
      publish<row_threads>(shared.histogram, workspace, level);
      ptx::cluster_barrier();  // the row's sums are there
      const Found found = find_part(shared.search, prefix.bins(), left, [&](int i) { return bin(level, i); });
      left = found.left;
      prefix.narrow(found.index);
      ++level;
    }
    // Among equal logits the lower id is first.
    return {prefix.value, tie(search.kept, prefix.value, left / max(value(logit_of(prefix.value)), Mass{1})),
            0};
  }

  // Hands on the ids that `has` has if they are few enough; how many the row has (or too many).
  template <class Has>
  __device__ int gather(const Has& has, int counter) const {
    if (thread == 0) shared.count = 0;
    __syncthreads();  // none are gathered
    each<8>(from, [&](int id, float logit) {
      if (!has(id, logit)) return;
      const int at = add_to(&shared.count, 1);
      if (at < Shares::gathered) shared.keys[at] = key_of(rank_of(logit), id);
    });
    __syncthreads();  // this block's are gathered
    const int own = shared.count;
    if (thread == 0)
      shared.token = static_cast<int>(add_to(workspace.counts + counter, static_cast<unsigned>(own)));
    __syncthreads();  // their place among the row's is known
    for (int i = thread; i < own && shared.token + i < Shares::gathered && i < Shares::gathered;
         i += row_threads)
      workspace.gathered[shared.token + i] = shared.keys[i];
    ptx::cluster_barrier();  // all blocks' are there
    return static_cast<int>(__ldcg(workspace.counts + counter));
  }

  // The id of tie number `number` of this rank among the kept.
  __device__ __noinline__ int tie(const Kept& kept, std::uint32_t rank, Mass number) const {
    for (int part = first_part + warp; part < past_part; part += row_warps) {
      int ties = 0;
      for (int i = lane; i < block_ids; i += 32) {
        const int id = part * block_ids + i;
        ties += id < args.vocabulary && rank_of(from[id]) == rank && kept.has(rank, id);
      }
      const Mass all = mass_of_warp(ties);
      if (lane == 0) workspace.masses[part] = all;
    }
    ptx::cluster_barrier();  // all ties are counted
    const Found found =
        find_part(shared.search, parts, number, [&](int part) { return __ldcg(workspace.masses + part); });
    const int begin = found.index * block_ids;
    const int id = find_tie(shared.search, from, kept, rank, begin, min(begin + block_ids, args.vocabulary),
                            static_cast<int>(found.left));
    ptx::cluster_barrier();  // the counts have been read
    return id;
  }

  // The least running sum of masses that counts as the share top_p of all once it is rounded to a double,
  // less one.
  __device__ Mass mark(Mass total) const {
    const double needed = static_cast<double>(params.top_p) * static_cast<double>(total);
    Mass least = static_cast<Mass>(needed);
    while (static_cast<double>(least) < needed) ++least;
    while (least > 0 && static_cast<double>(least - 1) >= needed) --least;
    return least - 1;
  }

  // Filters that leave many; then the mass of what they leave, by block of ids.
  __device__ __noinline__ Kept search(const Weighing& weighing) const {
    Kept kept;
    int level = 1;
    if (wishes.few) {
      kept = last_of({kept, true, -1, level}, weighing, params.top_k - 1);
      level += 3;
    }
    if (wishes.mass) {
      if (wishes.few) {
        shared.histogram.clear<row_threads>();
        each<8>(from, [&](int id, float logit) {
          if (!kept.has(rank_of(logit), id)) return;
          const float weight = weighing.weight(logit);
          shared.histogram.add(static_cast<int>(Weighing::bucket(weight)), Weighing::mass(weight));
        });
        __syncthreads();  // all masses are in the histogram
        publish<row_threads>(shared.histogram, workspace, 0);
        ptx::cluster_barrier();  // the row's sums are there
      }
      constexpr int buckets = static_cast<int>(Weighing::buckets);
      Mass own = 0;
      for (int i = thread; i < buckets; i += row_threads) own += bin(0, i);
      const Mass total = add_up(shared.search, own);
      const Found found = find_part(shared.search, buckets, mark(total), [&](int i) { return bin(0, i); });
      kept = last_of({kept, false, found.index, level}, weighing, found.left);
    }
    kept.least_weight = params.min_p;
    for (int part = first_part + warp; part < past_part; part += row_warps) {
      Mass sum = 0;
      constexpr int ahead = 8;  // loads on their way
      const int begin = part * block_ids, last = args.vocabulary - 1;
#pragma unroll 1
      for (int id = begin + lane; id < min(begin + block_ids, args.vocabulary); id += ahead * 32) {
        float some[ahead];
#pragma unroll
        for (int i = 0; i < ahead; ++i) some[i] = ptx::load_ahead(from + min(id + i * 32, last));
#pragma unroll
        for (int i = 0; i < ahead; ++i) {
          if (id + i * 32 <= last) sum += mass_if_kept(weighing, kept, id + i * 32, some[i]);
        }
      }
      sum = mass_of_warp(sum);
      if (lane == 0) workspace.masses[part] = sum;
    }
    ptx::cluster_barrier();  // all masses are there
    return kept;
  }

  __device__ Mass mass_if_kept(const Weighing& weighing, const Kept& kept, int id, float logit) const {
    if (!kept.has(rank_of(logit), id)) return 0;
    const float weight = weighing.weight(logit);
    return weight >= kept.least_weight ? Weighing::mass(weight) : 0;
  }

  __device__ Mass drawn(Mass total) const {
    const double share = uniform_draw(params.seed, params.choice, params.position);
    return min(static_cast<Mass>(share * static_cast<double>(total)), total - 1);
  }

  // By the row's first block: a draw by the masses of the parts.
  __device__ __noinline__ int draw(const Weighing& weighing, const Kept& kept) const {
    Mass own = 0;
    for (int part = thread; part < parts; part += row_threads) own += __ldcg(workspace.masses + part);
    const Mass total = add_up(shared.search, own);
    const Found part =
        find_part(shared.search, parts, drawn(total), [&](int i) { return __ldcg(workspace.masses + i); });
    const int begin = part.index * block_ids;
    return begin + find_part(shared.search, block_ids, part.left, [&](int i) {
                     const int id = begin + i;
                     return id < args.vocabulary ? mass_if_kept(weighing, kept, id, from[id]) : 0;
                   }).index;
  }

  // A draw from the `top_k` first of the sorted keys.
  __device__ __noinline__ int draw_listed(const Weighing& weighing) const {
    int kept = params.top_k;
    const std::uint64_t key = thread < kept ? shared.keys[thread] : 0;
    const float weight = thread < kept ? weighing.weight(logit_of(rank_of_key(key))) : 0;
    Mass mass = thread < kept ? Weighing::mass(weight) : 0;
    Mass* const masses = shared.drawn.masses;
    if (wishes.mass) {
      if (thread < kept) masses[thread] = mass;
      const Mass total = add_up(shared.search, mass);
      kept = find_part(shared.search, kept, mark(total), [&](int i) { return masses[i]; }).index + 1;
    }
    if (thread >= kept || weight < params.min_p) mass = 0;
    if (thread < params.top_k) masses[thread] = mass;
    const Mass left = drawn(add_up(shared.search, mass));
    Mass before = 0;  // of the lower ids
    for (int i = 0; i < params.top_k; ++i)
      before += id_of_key(shared.keys[i]) < id_of_key(key) ? masses[i] : 0;
    if (mass > 0 && before <= left && left < before + mass) shared.token = id_of_key(key);
    __syncthreads();  // the token is there
    return shared.token;
  }

  // The softmax's sum, by one thread while the others go on; they have it after their next meeting.
  __device__ void add_exp_sums(float largest) const {
    for (int part = thread; part < parts; part += row_threads)
      shared.exp_sums[part] = __ldcg(workspace.exp_sums + part);
    __syncthreads();  // all blocks' sums are there
    if (thread == row_threads - 32) {
      double sum = 0;
#pragma unroll 8
      for (int part = 0; part < parts; ++part) sum += shared.exp_sums[part];
      shared.log_sum_exp = largest + fixed_log(sum);
    }
  }

  __device__ float logprob(int id) const { return static_cast<float>(logits[id] - shared.log_sum_exp); }

  __device__ void put_list(int row) const {
    if (thread >= args.likeliest) return;
    const int id = id_of_key(shared.keys[thread]);
    const std::size_t at = static_cast<std::size_t>(row) * static_cast<std::size_t>(args.likeliest) +
                           static_cast<std::size_t>(thread);
    args.likeliest_ids[at] = id;
    args.likeliest_logprobs[at] = logprob(id);
  }
};

__device__ __forceinline__ Row row_of(const SampleCudaArgs& args, RowShared& shared,
                                      const RowWorkspace& workspace, int row) {
  const RowLogits view(args, row);
  const int parts = sample_cuda_blocks(args.vocabulary), blocks = static_cast<int>(gridDim.x);
  const int first_part = parts * static_cast<int>(blockIdx.x) / blocks;
  const int past_part = parts * (static_cast<int>(blockIdx.x) + 1) / blocks;
  return {.args = args,
          .shared = shared,
          .workspace = workspace,
          .params = args.params[row],
          .wishes = Wishes(args, args.params[row]),
          .logits = view.logits,
          .from = view.from,
          .parts = parts,
          .first_part = first_part,
          .past_part = past_part,
          .first = first_part * block_ids,
          .past = min(past_part * block_ids, args.vocabulary)};
}

// The token, and the lists on the way to it.
__device__ __forceinline__ int choose(const Row& view, int row, int likeliest, const Weighing& weighing,
                                      const Kept& kept) {
  const Wishes& wishes = view.wishes;
  const std::uint64_t* const of_parts = view.workspace.likeliest;
  const bool changed = view.from != view.logits;
  const int top_k = wishes.small ? view.params.top_k : 0, listed = view.args.likeliest;
  if (listed > 0 && (changed || top_k == 0)) {
    view.list(view.logits, of_parts, listed);
    view.put_list(row);
    __syncthreads();  // the list has been read
  }
  if (top_k > 0) {
    view.list(view.from, of_parts + view.parts, changed ? top_k : max(top_k, listed));
    if (listed > 0 && !changed) view.put_list(row);
    return view.draw_listed(weighing);
  }
  if (wishes.draws) return view.draw(weighing, kept);
  __syncthreads();  // the softmax's sum is there
  return likeliest;
}

__device__ __forceinline__ void say(const SampleCudaArgs& args, int row, const SampledToken& token) {
  args.tokens[row] = token;
  if (args.host_tokens != nullptr) args.host_tokens[row] = token;
}

// Kernel 3.
__global__ void __launch_bounds__(row_threads, 2)
    sample_draw(const __grid_constant__ SampleCudaArgs args, int first_row) {
  __shared__ RowShared shared;
  ptx::grid_launch_dependents();
  ptx::grid_dependency_wait();
  const int row = first_row + static_cast<int>(blockIdx.y);
  const RowWorkspace workspace = workspace_of(args, static_cast<int>(blockIdx.y));
  const Row view = row_of(args, shared, workspace, row);
  const bool first = blockIdx.x == 0;
  if (!first && !view.wishes.searches()) return;
  const std::uint64_t likeliest =
      likeliest_of_row<row_threads>(shared.search.keys, workspace.likeliest, view.parts);
  if (rank_of_key(likeliest) == not_finite) {
    if (first && view.thread == 0) say(args, row, {0, 0, 0});
    return;
  }
  const std::uint64_t chosen =
      view.from == view.logits
          ? likeliest
          : likeliest_of_row<row_threads>(shared.search.keys, workspace.likeliest + view.parts, view.parts);
  if (first) view.add_exp_sums(logit_of(rank_of_key(likeliest)));
  const Weighing weighing{logit_of(rank_of_key(chosen)), view.params.temperature};
  Kept kept;
  kept.least_weight = view.params.min_p;
  if (view.wishes.searches()) kept = view.search(weighing);
  if (!first) return;
  const int token = choose(view, row, id_of_key(chosen), weighing, kept);
  if (view.thread != 0) return;
  say(args, row, {token, 1, view.logprob(token)});
  if (args.targets != nullptr && args.targets[row] >= 0)
    args.target_logprobs[row] = view.logprob(args.targets[row]);
}

}  // namespace

int sample_cuda_cluster() {
  cuda_check(cudaFuncSetAttribute(sample_draw, cudaFuncAttributeNonPortableClusterSizeAllowed, 1));
  int blocks = Shares::most_row_blocks;
  const auto runs = [](int cluster) {
    return clusters_at_once({.blocks = dim3(static_cast<unsigned>(cluster)),
                             .threads = row_threads,
                             .overlaps = true,
                             .cluster = cluster},
                            sample_draw) > 0;
  };
  while (blocks > 1 && !runs(blocks)) blocks /= 2;
  return blocks;
}

Status sample_cuda(const SampleCudaArgs& args, cudaStream_t stream) {
  if (args.vocabulary < 1 || args.vocabulary > sample_cuda_max_vocabulary) {
    return invalid_argument("sampling takes a vocabulary of up to " +
                            std::to_string(sample_cuda_max_vocabulary) + " tokens, not " +
                            std::to_string(args.vocabulary));
  }
  if (args.likeliest < 0 || args.likeliest > sample_cuda_max_likeliest || args.likeliest > args.vocabulary) {
    return invalid_argument("up to " + std::to_string(sample_cuda_max_likeliest) +
                            " of the likeliest tokens can be listed, not " + std::to_string(args.likeliest));
  }
  cuda_check(cudaFuncSetAttribute(sample_draw, cudaFuncAttributeNonPortableClusterSizeAllowed, 1));
  for (int row = 0; row < args.rows;) {
    const int blocks = Shares::blocks(args.rows - row, args.vocabulary, args.most_row_blocks);
    const int rows = std::min(args.rows - row, Shares::most_blocks / blocks);
    run_parts(args, row, rows, stream);
    launch_kernel({.blocks = dim3(static_cast<unsigned>(blocks), static_cast<unsigned>(rows)),
                   .threads = row_threads,
                   .stream = stream,
                   .overlaps = true,
                   .cluster = blocks,
                   .share = share_of(args.rows)},
                  sample_draw, args, row);
    row += rows;
  }
  return {};
}

}  // namespace nibble