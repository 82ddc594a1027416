#include "models/delta_mixer.h"

#include <algorithm>

#include "ops/linear/linear.h"

namespace nibble {
namespace {

// Rows of `width` values to their columns of a matrix.
struct PlacedColumns {
  const float* from = nullptr;  // [rows, width]
  float* to = nullptr;          // its first row's
  int rows = 0, width = 0, all_columns = 0;
};
void place_columns(OpContext& context, const PlacedColumns& columns) {
  context.threads.parallel_for(columns.rows, [&](int begin, int end) {
    for (int row = begin; row < end; ++row) {
      std::copy_n(columns.from + std::int64_t{row} * columns.width, columns.width,
                  columns.to + std::int64_t{row} * columns.all_columns);
    }
  });
}

// x -> qkv, z, b, a
void project(OpContext& context, const DeltaMixerWeights& weights, const DeltaMixerArgs& args) {
  const TimedScope scope(context.times, "q, k, v");
  const auto product = [&](const WeightMatrix& weight, float* y) {
    linear(context, {.x = args.x, .rows = args.rows, .weight = weight, .y = y, .workspace = args.workspace});
  };
  const DeltaRoom& room = args.room;
  if (!weights.by_key_head) {
    const bool whole = weights.qkv.size() == 1;
    float* to = room.qkv;
    for (const WeightMatrix& rows : weights.qkv) {
      product(rows, whole ? room.qkv : room.projected);
      if (whole) break;
      place_columns(context, {.from = room.projected,
                              .to = to,
                              .rows = args.rows,
                              .width = weight_rows(rows),
                              .all_columns = weights.shape.channels()});
      to += weight_rows(rows);
    }
    product(weights.z, room.z);
    product(weights.b, room.b);
    product(weights.a, room.a);
    return;
  }
  product(weights.qkv_z, room.projected);
  product(weights.b_a, room.b_a);
  split_by_key_head(context, {.shape = weights.shape,
                              .rows = args.rows,
                              .qkv_z = room.projected,
                              .b_a = room.b_a,
                              .qkv = room.qkv,
                              .z = room.z,
                              .b = room.b,
                              .a = room.a});
}

// qkv, z, b, a -> mixed
void mix(OpContext& context, const DeltaMixerWeights& weights, const DeltaMixerArgs& args) {
  const TimedScope scope(context.times, "delta rule");
  const DeltaRoom& room = args.room;
  float* convolved = room.projected;
  short_convolution(context, {.x = room.qkv,
                              .weight = weights.convolution.data(),
                              .sequences = args.sequences,
                              .layer = args.layer,
                              .out = convolved});
  gated_delta(context, {.qkv = convolved,
                        .b = room.b,
                        .a = room.a,
                        .gates = {.rate = weights.rate.data(), .bias = weights.bias.data()},
                        .sequences = args.sequences,
                        .layer = args.layer,
                        .out = room.mixed});
  gated_head_norm(context, {.x = room.mixed,
                            .z = room.z,
                            .weight = weights.norm.data(),
                            .rows = args.rows,
                            .heads = weights.shape.value_heads,
                            .head_dim = weights.shape.value_dim,
                            .eps = args.eps});
}

}  // namespace

DeltaShape delta_shape(const ModelConfig& config) {
  const DeltaNumbers& delta = config.delta;
  return {.key_heads = static_cast<int>(delta.key_heads),
          .value_heads = static_cast<int>(delta.value_heads),
          .key_dim = static_cast<int>(delta.key_dim),
          .value_dim = static_cast<int>(delta.value_dim),
          .taps = static_cast<int>(delta.taps)};
}

void mix_by_delta(OpContext& context, const DeltaMixerWeights& weights, const DeltaMixerArgs& args) {
  project(context, weights, args);
  mix(context, weights, args);
}

}  // namespace nibble
