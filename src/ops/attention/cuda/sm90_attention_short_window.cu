// paged_attention for few sequences of few rows (decode) with windows of up to a step, of heads of 64
// dimensions. For the order of additions see attention_cuda.h.
//
// A block has a sequence's KV head, and takes its window, which lies in two steps, for eight queries at a
// time (attention_two_steps.cuh). Bytes: 256 a position and KV head in bfloat16, whole chunks.
#include "ops/attention/cuda/attention_two_steps.cuh"

namespace nibble {
namespace {

using namespace few_steps;

// A total of query g of heads of 64: lane t's part of l, and dimensions 8 * warp + 2t and + 1.
using Total = QueryTotal<1>;

// To `out` in the lanes that have a query, unless it is a rehearsal.
__device__ __forceinline__ void put_out(std::uint8_t* out, const Total& total, bool stores) {
  float l = total.l;
  l = __fadd_rn(l, __shfl_xor_sync(0xffffffffu, l, 1));
  l = __fadd_rn(l, __shfl_xor_sync(0xffffffffu, l, 2));
  const float factor = 1.0f / l;
  const std::uint32_t words =
      ptx::pack_bf16x2(__fmul_rn(total.o[0][0], factor), __fmul_rn(total.o[0][1], factor));
  if (stores) *reinterpret_cast<std::uint32_t*>(out) = words;
}

// A tile's window for eight queries, from `from` on.
template <class Kv>
__device__ __forceinline__ void read_window(const Tile& tile, int from, ShortShared<kv_head_dim>& shared,
                                            const Reader& reader) {
  const int query = from + reader.g, begin = tile.first_step(), past = tile.past_step();
  const Bf16* const of_query = tile.queries(from + reader.warp);
  std::uint8_t* const out = tile.out(query, 8 * reader.warp + 2 * reader.t);
  const Total nothing{attention_nothing, 0, {}};
  const Total sink{tile.sink_exponent(query), reader.t == 0 ? tile.sink_weight(query) : 0.0f, {}};
  TwoSteps<Kv, kv_head_dim> two(shared, reader, tile, query);
#pragma unroll 1
  for (int rehearsal = 1; rehearsal >= 0; --rehearsal) {
    Total total = sink, split = nothing;
#pragma unroll 1
    for (int step = begin; step < past; step += abreast) {
      if (step > begin && attention_split_of(step) != attention_split_of(step - 1)) {
        total.take_in_all(split);
        split = nothing;
      }
      two.enter(step);
      const EightQueries<kv_head_dim> q = two.await_queries(of_query, rehearsal != 0);
      two.score(q);
      const bool has_high = step + 1 < past;
      const bool apart = has_high && attention_split_of(step) != attention_split_of(step + 1);
      const Weighed low = two.weigh(split.m, 0), high = two.weigh(apart ? nothing.m : low.m, 1);
      __syncthreads();  // weights and their sums are there
      const float l = fmaf(split.l, low.scale, two.sum_of(0, reader.t)), l_high = two.sum_of(1, reader.t);
      float o[1][4] = {{__fmul_rn(split.o[0][0], low.scale), __fmul_rn(split.o[0][1], low.scale)}};
      if (apart) {
        float o_high[1][4] = {};
        two.multiply_both(o, o_high);
        total.take_in_all({low.m, l, {{o[0][0], o[0][1]}}});
        split = {high.m, l_high, {{o_high[0][0], o_high[0][1]}}};
        continue;
      }
#pragma unroll
      for (int k = 0; k < warps; ++k) two.low.multiply_values(o, shared.weights[0], k);
      split = {low.m, l, {{o[0][0], o[0][1]}}};
      if (!has_high) continue;
      o[0][0] = __fmul_rn(o[0][0], high.scale);
      o[0][1] = __fmul_rn(o[0][1], high.scale);
#pragma unroll
      for (int k = 0; k < warps; ++k) two.high.multiply_values(o, shared.weights[1], k);
      split = {high.m, fmaf(l, high.scale, l_high), {{o[0][0], o[0][1]}}};
    }
    total.take_in_all(split);
    put_out(out, total, rehearsal == 0 && query < tile.count);
  }
}

template <class Kv>
__global__ void __launch_bounds__(short_threads, 2)
    sm90_attention_short_window(const __grid_constant__ AttentionCudaArgs args) {
  __shared__ ShortShared<kv_head_dim> shared;
  ptx::grid_launch_dependents();
  if (!args.settled) ptx::grid_dependency_wait();
  const Tile tile = tile_of<kv_head_dim>(args, static_cast<int>(blockIdx.x));
  // Who waits for this grid waits for the one before it.
  if (tile.count == 0 && blockIdx.x == 0) ptx::grid_dependency_wait();
  const Reader reader;
#pragma unroll 1
  for (int from = 0; from < tile.count; from += queries_once) read_window<Kv>(tile, from, shared, reader);
}

template <class Kv>
void launch(const AttentionCudaArgs& args, cudaStream_t stream) {
  launch_kernel({.blocks = dim3(static_cast<unsigned>(args.sequence_count * args.cache.kv_heads)),
                 .threads = short_threads,
                 .stream = stream,
                 .overlaps = true,
                 .share = share_of_attention(args)},
                sm90_attention_short_window<Kv>, args);
}

}  // namespace

int shared_of_attention_short() { return sizeof(ShortShared<kv_head_dim>); }

void launch_attention_short(const AttentionCudaArgs& args, cudaStream_t stream) {
  args.cache.dtype == KvE4m3::dtype ? launch<KvE4m3>(args, stream) : launch<KvBf16>(args, stream);
}

}  // namespace nibble
