// kv_b re-laid for products of heads, once at the start: a thread a value.
#include "formats/e2m1.h"
#include "formats/e4m3.h"
#include "ops/cuda/launch.cuh"
#include "ops/latent_attention/cuda/latent_cuda.h"

namespace nibble {
namespace {

constexpr int repack_threads = 256, scale_tile = 128, scale_block = 16;

// Row `row` of the heads at hand, as its codes and scales say.
__device__ __forceinline__ Bf16 value_at(const LatentHeadsRepack& from, int row, int column) {
  const std::size_t at =
      static_cast<std::size_t>(row) * static_cast<std::size_t>(from.rank) + static_cast<std::size_t>(column);
  float value;
  if (from.format == LatentHeadsRepack::Format::bf16) return static_cast<const Bf16*>(from.codes)[at];
  if (from.format != LatentHeadsRepack::Format::nvfp4) {
    const int all_rows_row = from.first_head * (from.plain + from.value_dim) + row;
    const int scale =
        from.format == LatentHeadsRepack::Format::e4m3_rows
            ? all_rows_row
            : all_rows_row / scale_tile * ((from.rank + scale_tile - 1) / scale_tile) + column / scale_tile;
    const float of_code = from.narrow ? static_cast<const Bf16*>(from.scales)[scale].to_float()
                                      : static_cast<const float*>(from.scales)[scale];
    value = __fmul_rn(static_cast<const E4m3*>(from.codes)[at].to_float(), of_code);
  } else {
    const std::uint8_t two = static_cast<const std::uint8_t*>(from.codes)[at / 2];
    const E2m1 code{static_cast<std::uint8_t>(column % 2 == 0 ? two & 15 : two >> 4)};
    const float scale = static_cast<const E4m3*>(from.scales)[at / scale_block].to_float();
    value = __fmul_rn(code.to_float(), __fmul_rn(scale, from.factor));
  }
  return Bf16::from_float(value);
}

__global__ void __launch_bounds__(repack_threads)
    repack_latent_heads(const __grid_constant__ LatentHeadsRepack repack) {
  const int padded_plain = latent_padded(repack.plain), padded_rank = latent_padded(repack.rank);
  const int head = static_cast<int>(blockIdx.y), first_row = head * (repack.plain + repack.value_dim);
  const std::size_t kept_head = static_cast<std::size_t>(repack.first_head - repack.first_kept + head);
  const int keys = repack.rank * padded_plain, values = repack.value_dim * padded_rank;
  const int at = static_cast<int>(blockIdx.x) * repack_threads + static_cast<int>(threadIdx.x);
  if (at < keys) {
    const int column = at / padded_plain, row = at - column * padded_plain;
    repack.keys[kept_head * static_cast<std::size_t>(keys) + static_cast<std::size_t>(at)] =
        row < repack.plain ? value_at(repack, first_row + row, column) : Bf16{};
  } else if (at < keys + values) {
    const int of_values = at - keys, row = of_values / padded_rank, column = of_values - row * padded_rank;
    repack.values[kept_head * static_cast<std::size_t>(values) + static_cast<std::size_t>(of_values)] =
        column < repack.rank ? value_at(repack, first_row + repack.plain + row, column) : Bf16{};
  }
}

}  // namespace

void repack_latent_heads_cuda(const LatentHeadsRepack& repack, cudaStream_t stream) {
  const int values =
      repack.rank * latent_padded(repack.plain) + repack.value_dim * latent_padded(repack.rank);
  launch_kernel({.blocks = dim3(static_cast<unsigned>((values + repack_threads - 1) / repack_threads),
                                static_cast<unsigned>(repack.heads)),
                 .threads = repack_threads,
                 .stream = stream},
                repack_latent_heads, repack);
}

}  // namespace nibble
