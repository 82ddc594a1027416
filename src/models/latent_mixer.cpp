#include "models/latent_mixer.h"

#include <cmath>

#include "ops/linear/linear.h"
#include "ops/rms_norm/rms_norm.h"

namespace nibble {
namespace {

// Whatever rms_norm_eps says: the models' own code leaves it at its default in these two norms.
constexpr float latent_norm_eps = 1e-6f;

void project_queries(OpContext& context, const LatentMixerWeights& weights, const LatentMixerArgs& args) {
  const float* from = args.x;
  if (const int rank = weight_rows(weights.query_down); rank > 0) {
    linear(context, {.x = args.x,
                     .rows = args.rows,
                     .weight = weights.query_down,
                     .y = args.room.query_latent,
                     .workspace = args.workspace});
    add_rms_norm(context, {.residual = args.room.query_latent,
                           .weight = weights.query_norm,
                           .out = args.room.query_latent,
                           .rows = args.rows,
                           .hidden = rank,
                           .eps = latent_norm_eps});
    from = args.room.query_latent;
  }
  linear(context,
         {.x = from, .rows = args.rows, .weight = weights.query, .y = args.q, .workspace = args.workspace});
}

}  // namespace

float latent_score_scale(const ModelConfig& config) {
  const double factor = config.yarn ? config.yarn->score_factor : 1.0;
  return static_cast<float>(factor / std::sqrt(static_cast<double>(config.head_dim)));
}

void mix_by_latents(OpContext& context, const LatentMixerWeights& weights, const LatentMixerArgs& args) {
  {
    const TimedScope scope(context.times, "q, latent");
    project_queries(context, weights, args);
    linear(context, {.x = args.x,
                     .rows = args.rows,
                     .weight = weights.latent_down,
                     .y = args.room.latents,
                     .workspace = args.workspace});
    absorb_queries(context, weights.heads,
                   {.q = args.q,
                    .rows = args.rows,
                    .rotated = args.cache.rotated,
                    .cos = args.cos,
                    .sin = args.sin,
                    .out = args.room.absorbed});
  }
  {
    const TimedScope scope(context.times, "attention");
    latent_append(context, {.latents = args.room.latents,
                            .norm = weights.latent_norm,
                            .eps = latent_norm_eps,
                            .cos = args.cos,
                            .sin = args.sin,
                            .sequences = args.sequences,
                            .cache = args.cache});
    latent_attention(context, {.q = args.room.absorbed,
                               .heads = weights.heads.heads,
                               .sequences = args.sequences,
                               .cache = args.cache,
                               .scale = weights.scale,
                               .out = args.room.sums,
                               .room = args.attention});
  }
  const TimedScope scope(context.times, "values");
  expand_values(context, weights.heads, {.latents = args.room.sums, .rows = args.rows, .out = args.out});
}

}  // namespace nibble
