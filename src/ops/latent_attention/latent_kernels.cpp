// The loops of latent attention in plain C++, the oracle of the others, and the list of all.
#include "ops/latent_attention/latent_kernels.h"

#include <cmath>

#include "base/check.h"

namespace nibble {
namespace {

void score(const LatentScores& args) {
  for (int i = 0; i < args.queries; ++i) {
    for (int n = 0; n < args.positions; ++n) {
      const float* vector = args.vectors + n * args.width;
      float lanes[kv_run] = {};
      for (int d = 0; d < args.width; ++d)
        lanes[d % kv_run] = std::fma(args.q[i][d], vector[d], lanes[d % kv_run]);
      for (int width = kv_run / 2; width > 0; width /= 2) {
        for (int lane = 0; lane < width; ++lane) lanes[lane] += lanes[lane + width];
      }
      args.scores[i][args.at + n] = lanes[0] * args.scale;
    }
  }
}

void add(const LatentSums& args) {
  for (int i = 0; i < args.queries; ++i) {
    float* sums = args.sums + i * args.stride;
    for (int n = 0; n < args.positions; ++n) {
      for (int d = 0; d < args.rank; ++d)
        sums[d] = std::fma(args.weights[i][args.at + n], args.vectors[n * args.width + d], sums[d]);
    }
  }
}

void widen(const Bf16* from, int n, float* to) {
  for (int i = 0; i < n; ++i) to[i] = from[i].to_float();
}

bool always_supported() { return true; }

constexpr LatentKernels kernels[] = {
    {"avx512", avx512_latent::supported, avx512_latent::score, avx512_latent::add, avx512_latent::widen},
    {"avx2", avx2_latent::supported, avx2_latent::score, avx2_latent::add, avx2_latent::widen},
    {"scalar", always_supported, score, add, widen},
};

}  // namespace

std::span<const LatentKernels> latent_kernels() { return kernels; }

const LatentKernels& best_latent_kernels() {
  for (const LatentKernels& each : kernels) {
    if (each.supported()) return each;
  }
  NIBBLE_CHECK(false, "the scalar kernels run anywhere");
  return kernels[0];
}

}  // namespace nibble
