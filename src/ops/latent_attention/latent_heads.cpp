#include <algorithm>

#include "base/check.h"
#include "ops/latent_attention/latent_attention.h"
#include "ops/latent_attention/turn_pairs.h"
#include "ops/row/row_kernels.h"

namespace nibble {
namespace {

// Rows that share each decoded row of a head's matrix.
constexpr int block_rows = 32;

// work(head, begin, end) for each head and block of rows, on the threads; so many products a row.
template <class Work>
void for_each_block(OpContext& context, int heads, int rows, std::int64_t products, const Work& work) {
  const int blocks = (rows + block_rows - 1) / block_rows;
  context.threads.parallel_for(heads * blocks, [&](int begin, int end) {
    WorkMeter meter(context.threads);
    for (int item = begin; item < end; ++item) {
      const int first = item % blocks * block_rows;
      work(item / blocks, first, std::min(first + block_rows, rows));
      meter.add(products * block_rows);
    }
  });
}

}  // namespace

void absorb_queries(OpContext& context, const LatentHeads& heads, const AbsorbQueriesArgs& args) {
  const int rank = weight_cols(heads.kv), in = heads.plain + args.rotated, out = rank + args.rotated;
  NIBBLE_CHECK(latent_attention_takes(rank, args.rotated) &&
               weight_rows(heads.kv) == heads.heads * (heads.plain + heads.value_dim));
  for_each_block(
      context, heads.heads, args.rows, std::int64_t{heads.plain} * rank, [&](int head, int begin, int end) {
        const auto query = [&](int row) { return args.q + (std::int64_t{row} * heads.heads + head) * in; };
        const auto absorbed = [&](int row) {
          return args.out + (std::int64_t{row} * heads.heads + head) * out;
        };
        alignas(64) float weights[max_latent_rank];
        for (int row = begin; row < end; ++row) std::fill_n(absorbed(row), rank, 0.0f);
        for (int i = 0; i < heads.plain; ++i) {
          decode_weight_row(heads.kv, std::int64_t{head} * (heads.plain + heads.value_dim) + i, weights);
          for (int row = begin; row < end; ++row)
            context.rows.add_scaled(absorbed(row), context.activation(query(row)[i]), weights, rank);
        }
        const int pairs = args.rotated / 2;
        for (int row = begin; row < end; ++row) {
          float* to = absorbed(row);
          turn_pairs(query(row) + heads.plain, args.cos + std::int64_t{row} * pairs,
                     args.sin + std::int64_t{row} * pairs, pairs, to + rank);
          for (int d = 0; d < out; ++d) to[d] = context.activation(to[d]);
        }
      });
}

void expand_values(OpContext& context, const LatentHeads& heads, const ExpandValuesArgs& args) {
  const int rank = weight_cols(heads.kv);
  NIBBLE_CHECK(rank <= max_latent_rank &&
               weight_rows(heads.kv) == heads.heads * (heads.plain + heads.value_dim));
  for_each_block(context, heads.heads, args.rows, std::int64_t{heads.value_dim} * rank,
                 [&](int head, int begin, int end) {
                   alignas(64) float weights[max_latent_rank];
                   const std::int64_t first =
                       std::int64_t{head} * (heads.plain + heads.value_dim) + heads.plain;
                   for (int i = 0; i < heads.value_dim; ++i) {
                     decode_weight_row(heads.kv, first + i, weights);
                     for (int row = begin; row < end; ++row) {
                       const std::int64_t of_row = std::int64_t{row} * heads.heads + head;
                       args.out[of_row * heads.value_dim + i] =
                           context.activation(context.rows.dot(weights, args.latents + of_row * rank, rank));
                     }
                   }
                 });
}

}  // namespace nibble
