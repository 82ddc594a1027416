// Attention whose keys and values all come from one latent vector a position (DeepSeek's MLA), in the
// absorbed form: a query is brought into the latent's space, is compared with the latents as they lie in the
// cache, and the weighted sum of latents is brought back. Every row is computed so, of a prompt as of an
// answer, and so decode adds as prefill does.
//
// With heads h of kv_b = [K_h; V_h], K_h [plain, rank] and V_h [value_dim, rank], of a row at position p:
//
//   append   c = x / sqrt(mean(x^2) + eps) * norm;  r = rotated key               vector of p: [c | r]
//   absorb   q_h -> [K_h^T q_plain | rotate(q_rotated)]
//   attend   o_h = sum_j e^(s_j - m) c_j / sum_j e^(s_j - m),  s_j = scale * q_h . [c_j | r_j],  j <= p
//   expand   out_h = V_h o_h
//
// Rotation is of neighbours: (x[2i], x[2i + 1]) turn by angle i.
//
// Order, a contract. A value of K or V is its code times its scale, rounded once.
//   K_h^T q: for each dimension of the latent fused multiply-adds from 0 over the rows of K_h in order
//   q . vector, V_h o: as RowKernels::dot adds
//   splits, m, the sum of weights, the sum over positions and over splits: as attention.h has them
// What enters absorb's product, what it gives, and what attend and expand give, is rounded as
// context.activations says.
#pragma once

#include <cstdint>
#include <span>

#include "formats/bf16.h"
#include "ops/attention/paged_kv.h"
#include "ops/latent_attention/latent_cache.h"
#include "ops/linear/weight_matrix.h"
#include "ops/op_context.h"

namespace nibble {

// Latents of at most so many dimensions, beside rotated keys of at most so many; each a multiple of kv_run.
inline constexpr int max_latent_rank = 512, max_latent_rotated = 128;
bool latent_attention_takes(std::int64_t rank, std::int64_t rotated);

struct LatentAppendArgs {
  float* latents = nullptr;    // [rows, rank + rotated] as projected; normed and rotated in place
  const Bf16* norm = nullptr;  // [rank]
  float eps = 0;
  const float *cos = nullptr, *sin = nullptr;  // [rows, rotated / 2]
  std::span<const SequenceRows> sequences;
  LatentLayer cache;
};

// Rounds to the cache's dtype; e4m3 saturates at 448.
void latent_append(OpContext& context, const LatentAppendArgs& args);

// A head's plain keys and values as rows of one matrix, head after head.
struct LatentHeads {
  WeightMatrix kv;  // [heads * (plain + value_dim), rank]
  int heads = 0;
  int plain = 0;  // dimensions of a key that are not rotated
  int value_dim = 0;
};

struct AbsorbQueriesArgs {
  const float* q = nullptr;  // [rows, heads, plain + rotated]
  int rows = 0;
  int rotated = 0;
  const float *cos = nullptr, *sin = nullptr;  // [rows, rotated / 2]
  float* out = nullptr;                        // [rows, heads, rank + rotated]
};

void absorb_queries(OpContext& context, const LatentHeads& heads, const AbsorbQueriesArgs& args);

struct LatentAttentionArgs {
  const float* q = nullptr;  // [rows, heads, rank + rotated], absorbed
  int heads = 0;
  std::span<const SequenceRows> sequences;
  LatentLayer cache;
  float scale = 1.0f;
  float* out = nullptr;  // [rows, heads, rank]
  // As PagedAttentionArgs::room; latent_attention_room() floats.
  std::span<float> room;
};

std::int64_t latent_attention_room(int threads, int heads, int rank, int max_positions);
void latent_attention(OpContext& context, const LatentAttentionArgs& args);

struct ExpandValuesArgs {
  const float* latents = nullptr;  // [rows, heads, rank]
  int rows = 0;
  float* out = nullptr;  // [rows, heads, value_dim]
};

void expand_values(OpContext& context, const LatentHeads& heads, const ExpandValuesArgs& args);

}  // namespace nibble
