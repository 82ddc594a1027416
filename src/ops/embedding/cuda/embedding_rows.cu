// A block a row, eight columns a thread at a time. Bytes: 6 x hidden a row; latency is all that counts.
#include <string>

#include "ops/cuda/launch.cuh"
#include "ops/embedding/cuda/embedding_cuda.h"
#include "ops/ptx/grid.cuh"

namespace nibble {
namespace {

constexpr int embedding_threads = 128;

__device__ __forceinline__ float2 pair_of(std::uint32_t bits) {
  return make_float2(__uint_as_float(bits << 16), __uint_as_float(bits & 0xffff0000u));
}

__global__ void __launch_bounds__(embedding_threads)
    embedding_rows(const __grid_constant__ EmbeddingCudaArgs args) {
  ptx::grid_launch_dependents();
  ptx::grid_dependency_wait();
  const std::size_t row = blockIdx.x, hidden = static_cast<std::size_t>(args.hidden);
  const int known = args.ids[row], id = known < 0 ? args.chosen[-1 - known].token : known;
  const Bf16* const from = args.table + static_cast<std::size_t>(id) * hidden;
  float* const to = args.out + row * hidden;
  for (int column = static_cast<int>(threadIdx.x) * 8; column < args.hidden;
       column += embedding_threads * 8) {
    const uint4 words = *reinterpret_cast<const uint4*>(from + column);
    const float2 a = pair_of(words.x), b = pair_of(words.y), c = pair_of(words.z), d = pair_of(words.w);
    *reinterpret_cast<float4*>(to + column) = make_float4(a.x, a.y, b.x, b.y);
    *reinterpret_cast<float4*>(to + column + 4) = make_float4(c.x, c.y, d.x, d.y);
  }
}

}  // namespace

Status embedding_cuda(const EmbeddingCudaArgs& args, cudaStream_t stream) {
  if (args.hidden < 8 || args.hidden % 8 != 0) {
    return invalid_argument("an embedding has a multiple of 8 columns, not " + std::to_string(args.hidden));
  }
  if (args.rows == 0) return {};
  launch_kernel({.blocks = dim3(static_cast<unsigned>(args.rows)),
                 .threads = embedding_threads,
                 .stream = stream,
                 .overlaps = true,
                 .share = share_of(args.rows)},
                embedding_rows, args);
  return {};
}

}  // namespace nibble
