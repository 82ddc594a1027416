// What an implementation of latent attention has to give: a run's vectors against some queries, and their sum
// by weights. The order of additions is latent_attention.h's.
#pragma once

#include <span>
#include <string_view>

#include "formats/bf16.h"
#include "ops/attention/split_attention.h"

namespace nibble {

// scores[i][at + n] = (q[i] . vector n) * scale, as RowKernels::dot adds.
struct LatentScores {
  const float* const* q = nullptr;  // [queries], each [width]
  int queries = 0;
  const float* vectors = nullptr;  // [positions, width]
  int positions = 0;               // of the run; at most kv_run
  int width = 0;                   // a multiple of kv_run
  float scale = 0;
  float (*scores)[kv_split] = nullptr;  // [queries]
  int at = 0;                           // the split's position of the first vector
};

// sums[i] += weights[i][at + n] * vector n, n ascending; fused, each dimension by itself.
struct LatentSums {
  const float (*weights)[kv_split] = nullptr;  // [queries]
  int queries = 0;
  const float* vectors = nullptr;  // [positions, width]
  int positions = 0;
  int width = 0;
  int rank = 0;  // dimensions that are summed; a multiple of kv_run
  float* sums = nullptr;
  int stride = 0;  // floats from a query's sums to the next one's
  int at = 0;
};

struct LatentKernels {
  std::string_view name;
  bool (*supported)();  // by this machine
  void (*score)(const LatentScores& args);
  void (*add)(const LatentSums& args);
  void (*widen)(const Bf16* from, int n, float* to);  // n: a multiple of 16
};

// In order of preference; the last one runs anywhere. All give the same bits.
std::span<const LatentKernels> latent_kernels();
// The first that this machine supports.
const LatentKernels& best_latent_kernels();

namespace avx2_latent {
bool supported();
void score(const LatentScores& args);
void add(const LatentSums& args);
void widen(const Bf16* from, int n, float* to);
}  // namespace avx2_latent

namespace avx512_latent {
bool supported();
void score(const LatentScores& args);
void add(const LatentSums& args);
void widen(const Bf16* from, int n, float* to);
}  // namespace avx512_latent

}  // namespace nibble
