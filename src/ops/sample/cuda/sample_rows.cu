// Three kernels: the largest logit of each 1,024 ids; then their part of the softmax's sum and of the mass to
// draw from; then a block a row that adds the parts up, applies the filters and draws.
//
// Bytes: 4 a logit, twice, from the second-level cache where lm_head left them: 0.8 MB a row and pass for
// gpt-oss. Without top_k and top_p the last kernel looks at one block of ids only. Each of these filters is a
// search for the last token that stays, by 8 bits of its logit at a time: four passes over the row by one
// block, some 6 us each for gpt-oss, the first of top_p some 25 (an exponential an id).
#include <string>

#include "ops/cuda/launch.cuh"
#include "ops/fixed_math.h"
#include "ops/ptx/grid.cuh"
#include "ops/sample/cuda/sample_cuda.h"
#include "ops/sample/uniform_draw.h"

namespace nibble {
namespace {

using Mass = long long;

constexpr unsigned all_lanes = 0xffffffffu;
constexpr int block_ids = sample_cuda_block;
constexpr int scan_threads = 128;
constexpr int scan_warps = scan_threads / 32;
constexpr int draw_threads = 512;
constexpr int draw_warps = draw_threads / 32;
constexpr int sum_lanes = 16;
constexpr int most_blocks = sample_cuda_max_vocabulary / block_ids;
constexpr std::uint32_t not_finite = 0xffffffffu;  // no number's rank

// Ascending with the logit, both zeros alike.
__device__ __forceinline__ std::uint32_t rank_of(float logit) {
  const std::uint32_t bits = __float_as_uint(logit + 0.0f);
  return bits >> 31 ? ~bits : bits | 0x80000000u;
}
__device__ __forceinline__ float logit_of(std::uint32_t rank) {
  return __uint_as_float(rank >> 31 ? rank & 0x7fffffffu : ~rank);
}
__device__ __forceinline__ bool is_finite(float logit) {
  return (__float_as_uint(logit) & 0x7f800000u) != 0x7f800000u;
}

// The largest logit's rank, and the lowest id that has it.
struct Likeliest {
  std::uint32_t rank, id;

  __device__ std::uint64_t packed() const { return std::uint64_t{rank} << 32 | id; }
  __device__ static Likeliest unpacked(std::uint64_t from) {
    return {static_cast<std::uint32_t>(from >> 32), static_cast<std::uint32_t>(from)};
  }
  __device__ void take_in(const Likeliest& other) {
    if (other.rank > rank || (other.rank == rank && other.id < id)) *this = other;
  }
};
__device__ __forceinline__ Likeliest likeliest_of_warp(const Likeliest& own) {
  const std::uint32_t rank = __reduce_max_sync(all_lanes, own.rank);
  return {rank, ~__reduce_max_sync(all_lanes, own.rank == rank ? ~own.id : 0u)};
}
template <int warps>
__device__ __forceinline__ Likeliest likeliest_of_block(Likeliest own) {
  __shared__ Likeliest of_warp[warps];
  own = likeliest_of_warp(own);
  if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = own;
  __syncthreads();  // every warp's is there
  Likeliest found = of_warp[0];
  for (int warp = 1; warp < warps; ++warp) found.take_in(of_warp[warp]);
  __syncthreads();  // the place may be used again
  return found;
}

__device__ __forceinline__ const float* row_of(const SampleCudaArgs& args, int row) {
  return args.logits + static_cast<std::size_t>(row) * static_cast<std::size_t>(args.stride);
}
__device__ __forceinline__ std::size_t part_at(const SampleCudaArgs& args, int row, int block) {
  return static_cast<std::size_t>(row) * static_cast<std::size_t>(sample_cuda_blocks(args.vocabulary)) +
         static_cast<std::size_t>(block);
}

__global__ void __launch_bounds__(scan_threads) sample_scan(const __grid_constant__ SampleCudaArgs args) {
  ptx::grid_launch_dependents();
  ptx::grid_dependency_wait();
  const int row = static_cast<int>(blockIdx.y), first = static_cast<int>(blockIdx.x) * block_ids;
  const int past = min(first + block_ids, args.vocabulary);
  const float* const logits = row_of(args, row);
  Likeliest own{0, 0xffffffffu};
  for (int id = first + static_cast<int>(threadIdx.x); id < past; id += scan_threads) {
    const float logit = logits[id];
    own.take_in({is_finite(logit) ? rank_of(logit) : not_finite, static_cast<std::uint32_t>(id)});
  }
  const Likeliest found = likeliest_of_block<scan_warps>(own);
  if (threadIdx.x == 0)
    args.workspace.likeliest[part_at(args, row, static_cast<int>(blockIdx.x))] = found.packed();
}

template <int threads>
__device__ __forceinline__ Likeliest likeliest_of_row(const SampleCudaArgs& args, int row) {
  Likeliest own{0, 0xffffffffu};
  for (int block = static_cast<int>(threadIdx.x); block < sample_cuda_blocks(args.vocabulary);
       block += threads)
    own.take_in(Likeliest::unpacked(args.workspace.likeliest[part_at(args, row, block)]));
  return likeliest_of_block<threads / 32>(own);
}

// A token's weight at the temperature, relative to the likeliest one's 1, and what is drawn from.
struct Weighing {
  float largest, temperature;

  __device__ float weight(float logit) const { return fixed_exp(__fsub_rn(logit, largest) / temperature); }
  __device__ static Mass mass(float weight) { return static_cast<Mass>(__fmul_rn(weight, 0x1p40f)); }
};

__device__ __forceinline__ Mass mass_of_warp(Mass own) {
  for (int apart = 16; apart > 0; apart /= 2) own += __shfl_xor_sync(all_lanes, own, apart);
  return own;
}

__global__ void __launch_bounds__(scan_threads) sample_weigh(const __grid_constant__ SampleCudaArgs args) {
  __shared__ float powers[block_ids];
  __shared__ Mass of_warp[scan_warps];
  __shared__ double lanes[sum_lanes];
  ptx::grid_launch_dependents();
  ptx::grid_dependency_wait();
  const int row = static_cast<int>(blockIdx.y), block = static_cast<int>(blockIdx.x);
  const int first = block * block_ids, count = min(block_ids, args.vocabulary - first);
  const int thread = static_cast<int>(threadIdx.x);
  const Likeliest likeliest = likeliest_of_row<scan_threads>(args, row);
  if (likeliest.rank == not_finite) return;
  const SampleCudaParams params = args.params[row];
  const float* const logits = row_of(args, row) + first;
  const Weighing weighing{logit_of(likeliest.rank), params.temperature};
  Mass mass = 0;
  for (int i = thread; i < count; i += scan_threads) {
    const float logit = logits[i];
    powers[i] = fixed_exp(__fsub_rn(logit, weighing.largest));
    if (params.temperature > 0) {
      const float weight = weighing.weight(logit);
      if (weight >= params.min_p) mass += Weighing::mass(weight);
    }
  }
  mass = mass_of_warp(mass);
  if (thread % 32 == 0) of_warp[thread / 32] = mass;
  __syncthreads();  // all powers are there
  if (thread < sum_lanes) {
    double sum = 0;
    for (int i = thread; i < count; i += sum_lanes) sum += powers[i];
    lanes[thread] = sum;
  }
  __syncthreads();  // all lanes are there
  if (thread == 0) {
    for (int width = sum_lanes / 2; width > 0; width /= 2) {
      for (int lane = 0; lane < width; ++lane) lanes[lane] += lanes[lane + width];
    }
    args.workspace.exp_sums[part_at(args, row, block)] = lanes[0];
    for (int warp = 1; warp < scan_warps; ++warp) mass += of_warp[warp];
    args.workspace.masses[part_at(args, row, block)] = mass;
  }
}

// The part of `masses` in which their running sum first exceeds `left`, and how much of `left` is in it.
struct Found {
  int index;
  Mass left;
};
// By a whole warp; every lane gets the result.
__device__ __forceinline__ Found find_by_warp(const Mass* masses, int count, Mass left) {
  const int lane = static_cast<int>(threadIdx.x) % 32, each = (count + 31) / 32;
  const int begin = min(lane * each, count), end = min(begin + each, count);
  Mass own = 0;
  for (int i = begin; i < end; ++i) own += masses[i];
  Mass sum = own;
  for (int step = 1; step < 32; step *= 2) {
    const Mass before = __shfl_up_sync(all_lanes, sum, step);
    if (lane >= step) sum += before;
  }
  const unsigned past = __ballot_sync(all_lanes, sum > left);
  const int owner = past == 0 ? 31 : __ffs(static_cast<int>(past)) - 1;
  int index = begin;
  Mass rest = left - (sum - own);
  if (lane == owner) {
    while (index + 1 < end && rest >= masses[index]) rest -= masses[index++];
  }
  return {__shfl_sync(all_lanes, index, owner), __shfl_sync(all_lanes, rest, owner)};
}

// What is left of a row after some filters, as the CPU's Kept.
struct Kept {
  std::uint32_t last_rank = 0;
  int last_id = 0x7fffffff;
  float least_weight = 0;

  __device__ bool has(std::uint32_t rank, int id) const {
    return rank > last_rank || (rank == last_rank && id <= last_id);
  }
};

struct DrawShared {
  double exp_sums[most_blocks];
  Mass parts[most_blocks];  // of blocks of ids, or of shares of ranks in descending order
  Mass of_warp[draw_warps];
  std::int32_t ids[sample_cuda_max_likeliest];
  std::int32_t count;
  Found found;
};

// A row as the drawing block sees it.
struct Row {
  const SampleCudaArgs& args;
  DrawShared& shared;
  const float* logits;
  SampleCudaParams params;
  Weighing weighing;

  __device__ Mass mass(float logit) const { return Weighing::mass(weighing.weight(logit)); }

  __device__ Found find(int count, Mass left) const {
    if (threadIdx.x < 32) {
      const Found found = find_by_warp(shared.parts, count, left);
      if (threadIdx.x == 0) shared.found = found;
    }
    __syncthreads();  // the result is there, and the parts are free
    const Found found = shared.found;
    __syncthreads();  // it has been read
    return found;
  }

  // Of the tokens `kept`, in order of likelihood, the one at which the running sum of value(logit) first
  // exceeds `left`; value is the same for equal logits.
  template <class Value>
  __device__ Kept last_of(const Kept& kept, Mass left, const Value& value) const {
    constexpr int shares = 256;
    std::uint32_t rank = 0;
    for (int shift = 24; shift >= 0; shift -= 8) {
      for (int i = static_cast<int>(threadIdx.x); i < shares; i += draw_threads) shared.parts[i] = 0;
      __syncthreads();  // all shares are empty
      for (int id = static_cast<int>(threadIdx.x); id < args.vocabulary; id += draw_threads) {
        const float logit = logits[id];
        const std::uint32_t own = rank_of(logit);
        if (shift < 24 && own >> (shift + 8) != rank >> (shift + 8)) continue;
        if (!kept.has(own, id)) continue;
        const Mass more = value(logit);
        if (more > 0) {
          atomicAdd(reinterpret_cast<unsigned long long*>(&shared.parts[shares - 1 - (own >> shift & 255)]),
                    static_cast<unsigned long long>(more));
        }
      }
      __syncthreads();  // all tokens are in their shares
      const Found found = find(shares, left);
      rank |= static_cast<std::uint32_t>(shares - 1 - found.index) << shift;
      left = found.left;
    }
    // Among equal logits the lower id is first.
    return {rank, id_of_tie(kept, rank, left / max(value(logit_of(rank)), Mass{1})), kept.least_weight};
  }

  // The id of tie number `number` (from 0) of this rank among the kept.
  __device__ int id_of_tie(const Kept& kept, std::uint32_t rank, Mass number) const {
    const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
    const int blocks = sample_cuda_blocks(args.vocabulary);
    const auto ties_of = [&](int first) {  // among 32 ids
      const int id = first + lane;
      return __ballot_sync(all_lanes,
                           id < args.vocabulary && rank_of(logits[id]) == rank && kept.has(rank, id));
    };
    for (int block = warp; block < blocks; block += draw_warps) {
      int ties = 0;
      for (int first = 0; first < block_ids; first += 32) ties += __popc(ties_of(block * block_ids + first));
      if (lane == 0) shared.parts[block] = ties;
    }
    __syncthreads();  // all blocks are counted
    const Found found = find(blocks, number);
    if (warp == 0) {
      int left = static_cast<int>(found.left), first = found.index * block_ids;
      unsigned ties = ties_of(first);
      while (left >= __popc(ties) && first + 32 < (found.index + 1) * block_ids) {
        left -= __popc(ties);
        ties = ties_of(first += 32);
      }
      for (; left > 0; --left) ties &= ties - 1;
      if (lane == 0) shared.count = first + __ffs(static_cast<int>(ties)) - 1;
    }
    __syncthreads();  // the id is there
    const int id = shared.count;
    __syncthreads();  // it has been read
    return id;
  }

  __device__ Kept top_k(int count) const {
    return last_of({}, count - 1, [](float) { return Mass{1}; });
  }

  // The sum of what each thread has, to all threads.
  __device__ Mass add_up(Mass own) const {
    own = mass_of_warp(own);
    if (threadIdx.x % 32 == 0) shared.of_warp[threadIdx.x / 32] = own;
    __syncthreads();  // every warp's sum is there
    Mass sum = 0;
    for (int warp = 0; warp < draw_warps; ++warp) sum += shared.of_warp[warp];
    __syncthreads();  // the place may be used again
    return sum;
  }

  __device__ Kept top_p(const Kept& kept) const {
    Mass total = 0;
    for (int id = static_cast<int>(threadIdx.x); id < args.vocabulary; id += draw_threads) {
      if (kept.has(rank_of(logits[id]), id)) total += mass(logits[id]);
    }
    const double needed = static_cast<double>(params.top_p) * static_cast<double>(add_up(total));
    // The least whole number that counts as enough once it is rounded to a double.
    Mass least = static_cast<Mass>(needed);
    while (static_cast<double>(least) < needed) ++least;
    while (least > 0 && static_cast<double>(least - 1) >= needed) --least;
    return last_of(kept, least - 1, [this](float logit) { return mass(logit); });
  }

  // The mass of token `id` if it is kept.
  __device__ Mass mass_if_kept(const Kept& kept, int id) const {
    const float logit = logits[id];
    if (!kept.has(rank_of(logit), id)) return 0;
    const float weight = weighing.weight(logit);
    return weight >= kept.least_weight ? Weighing::mass(weight) : 0;
  }

  __device__ int draw(int row) const {
    const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
    const int blocks = sample_cuda_blocks(args.vocabulary);
    Kept kept;
    const bool few = params.top_k > 0 && params.top_k < args.vocabulary;
    if (few) kept = top_k(params.top_k);
    if (params.top_p < 1) kept = top_p(kept);
    kept.least_weight = params.min_p;
    const bool filtered = few || params.top_p < 1;
    for (int block = warp; block < blocks; block += draw_warps) {
      Mass sum = 0;
      if (filtered) {
        for (int i = lane; i < min(block_ids, args.vocabulary - block * block_ids); i += 32)
          sum += mass_if_kept(kept, block * block_ids + i);
        sum = mass_of_warp(sum);
      } else {
        sum = args.workspace.masses[part_at(args, row, block)];
      }
      if (lane == 0) shared.parts[block] = sum;
    }
    __syncthreads();  // all blocks' masses are there
    Mass total = 0;
    for (int block = static_cast<int>(threadIdx.x); block < blocks; block += draw_threads)
      total += shared.parts[block];
    total = add_up(total);
    const double share = uniform_draw(params.seed, params.choice, params.position);
    const Found block = find(blocks, min(static_cast<Mass>(share * static_cast<double>(total)), total - 1));
    const int first = block.index * block_ids, count = min(block_ids, args.vocabulary - first);
    for (int i = static_cast<int>(threadIdx.x); i < count; i += draw_threads)
      shared.parts[i] = mass_if_kept(kept, first + i);
    __syncthreads();  // all tokens' masses are there
    return first + find(count, block.left).index;
  }

  __device__ void put_likeliest(int row, double log_sum_exp) const {
    const Kept kept = top_k(args.likeliest);
    std::int32_t* const listed = &shared.count;
    if (threadIdx.x == 0) *listed = 0;
    __syncthreads();  // none are listed
    for (int id = static_cast<int>(threadIdx.x); id < args.vocabulary; id += draw_threads) {
      if (kept.has(rank_of(logits[id]), id)) shared.ids[atomicAdd(listed, 1)] = id;
    }
    __syncthreads();  // all of them are listed, in some order
    const int own = static_cast<int>(threadIdx.x);
    if (own < args.likeliest) {
      const int id = shared.ids[own];
      const std::uint32_t rank = rank_of(logits[id]);
      int place = 0;
      for (int i = 0; i < args.likeliest; ++i) {
        const std::uint32_t other = rank_of(logits[shared.ids[i]]);
        place += other > rank || (other == rank && shared.ids[i] < id);
      }
      const std::size_t at = static_cast<std::size_t>(row) * static_cast<std::size_t>(args.likeliest) +
                             static_cast<std::size_t>(place);
      args.likeliest_ids[at] = id;
      args.likeliest_logprobs[at] = static_cast<float>(logits[id] - log_sum_exp);
    }
  }
};

__global__ void __launch_bounds__(draw_threads) sample_draw(const __grid_constant__ SampleCudaArgs args) {
  __shared__ DrawShared shared;
  __shared__ double log_sum_exp;
  ptx::grid_launch_dependents();
  ptx::grid_dependency_wait();
  const int row = static_cast<int>(blockIdx.x), blocks = sample_cuda_blocks(args.vocabulary);
  const Likeliest likeliest = likeliest_of_row<draw_threads>(args, row);
  if (likeliest.rank == not_finite) {
    if (threadIdx.x == 0) args.tokens[row] = {0, 0, 0};
    return;
  }
  const Row view{args,
                 shared,
                 row_of(args, row),
                 args.params[row],
                 {logit_of(likeliest.rank), args.params[row].temperature}};
  for (int block = static_cast<int>(threadIdx.x); block < blocks; block += draw_threads)
    shared.exp_sums[block] = args.workspace.exp_sums[part_at(args, row, block)];
  __syncthreads();  // all blocks' sums are there
  if (threadIdx.x == 0) {
    double sum = 0;
    for (int block = 0; block < blocks; ++block) sum += shared.exp_sums[block];
    log_sum_exp = view.weighing.largest + fixed_log(sum);
  }
  __syncthreads();  // their sum too
  const int token = view.params.temperature > 0 ? view.draw(row) : static_cast<int>(likeliest.id);
  if (threadIdx.x == 0) args.tokens[row] = {token, 1, static_cast<float>(view.logits[token] - log_sum_exp)};
  if (args.likeliest > 0) view.put_likeliest(row, log_sum_exp);
}

}  // namespace

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
  if (args.rows == 0) return {};
  const dim3 parts(static_cast<unsigned>(sample_cuda_blocks(args.vocabulary)),
                   static_cast<unsigned>(args.rows));
  launch_kernel({.blocks = parts, .threads = scan_threads, .stream = stream, .overlaps = true}, sample_scan,
                args);
  launch_kernel({.blocks = parts, .threads = scan_threads, .stream = stream, .overlaps = true}, sample_weigh,
                args);
  launch_kernel({.blocks = dim3(static_cast<unsigned>(args.rows)),
                 .threads = draw_threads,
                 .stream = stream,
                 .overlaps = true},
                sample_draw, args);
  return {};
}

}  // namespace nibble
