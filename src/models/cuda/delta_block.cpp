#include "models/cuda/delta_block.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <string>
#include <vector>

#include "base/check.h"
#include "models/delta_mixer.h"
#include "ops/fixed_math.h"
#include "tensor/cuda_check.h"

namespace nibble {
namespace {

std::size_t size(std::int64_t count) { return static_cast<std::size_t>(count); }

struct DeltaFormats {
  TensorFormat projections = TensorFormat::bf16, gates = TensorFormat::bf16, output = TensorFormat::bf16;
};
DeltaFormats formats_of(const ModelConfig& config, std::int64_t layer) {
  DeltaFormats formats;
  visit_weights(config, [&](const Weight& weight) {
    if (weight.layer != layer) return;
    switch (weight.role) {
      case WeightRole::delta_qkv_z:
      case WeightRole::delta_qkv: formats.projections = weight.format; break;
      case WeightRole::delta_b_a:
      case WeightRole::delta_b: formats.gates = weight.format; break;
      case WeightRole::delta_output: formats.output = weight.format; break;
      default: break;
    }
  });
  return formats;
}

DeltaShape shape_of(const DeltaHeads& heads) {
  DeltaShape shape = heads.all;
  shape.key_heads = static_cast<int>(heads.keys.count);
  shape.value_heads = static_cast<int>(heads.values.count);
  return shape;
}

// Rows of heads of so many dimensions, which begin at row `first` of a weight.
Run rows_of_heads(const Run& heads, std::int64_t dimensions, std::int64_t first = 0) {
  return {first + heads.begin * dimensions, heads.count * dimensions};
}

// Of the channels that are convolved, the rank's: its queries, keys and values.
std::array<Run, 3> channels_of(const DeltaHeads& heads) {
  const DeltaShape& all = heads.all;
  return {rows_of_heads(heads.keys, all.key_dim), rows_of_heads(heads.keys, all.key_dim, all.keys()),
          rows_of_heads(heads.values, all.value_dim, 2 * all.keys())};
}

// Rows of the projections, each part from a row on where a matrix of its format may begin.
struct ProjectionRows {
  bool together = false;  // in one matrix
  std::int64_t k = 0, v = 0, z = 0, b = 0, a = 0, of_projections = 0, of_gates = 0;
};
ProjectionRows rows_of(const DeltaHeads& heads, const DeltaFormats& formats) {
  const DeltaShape shape = shape_of(heads);
  ProjectionRows rows{.together = formats.projections == formats.gates};
  const auto whole = [&](std::int64_t count) { return stacked_row(formats.projections, count); };
  if (heads.by_key_head) {  // they come as one matrix each
    rows.z = shape.channels();
  } else {
    rows.k = whole(shape.keys());
    rows.v = rows.k + rows.k;
    rows.z = rows.v + whole(shape.values());
  }
  const std::int64_t first = rows.together ? whole(rows.z + shape.values()) : 0;
  rows.b = first;
  rows.a = first + (heads.by_key_head ? 0 : stacked_row(formats.gates, heads.all.value_heads));
  const std::int64_t past = rows.a + (heads.by_key_head ? 2 : 1) * heads.all.value_heads;
  rows.of_projections = rows.together ? past : rows.z + shape.values();
  rows.of_gates = rows.together ? 0 : past;
  return rows;
}

Status check_format(const Weight& weight, TensorFormat beside) {
  const auto refuse = [&](const std::string& what) {
    return invalid_argument(weight.name + " is in " + std::string(tensor_format_name(weight.format)) +
                            ", and " + what);
  };
  if (!device_matrix_takes(weight.format))
    return refuse(std::string("its kernels take ") + device_matrix_formats);
  if (weight.format != beside)
    return refuse("the matrix beside it in " + std::string(tensor_format_name(beside)));
  const std::int64_t rows = weight.shape[0], cols = weight.shape[1];
  if (weight.format == TensorFormat::bf16 ||
      (rows % block_granule_rows == 0 && cols % block_granule_rows == 0))
    return {};
  return refuse("of " + std::to_string(rows) + " x " + std::to_string(cols) +
                ", which are not multiples of " + std::to_string(block_granule_rows));
}

void upload(const std::vector<float>& values, float* to) {
  cuda_check(cudaMemcpy(to, values.data(), values.size() * sizeof(float), cudaMemcpyHostToDevice));
}

// Some of a list.
void upload(const std::vector<float>& values, const Run& some, float* to) {
  const auto first = values.begin() + some.begin;
  upload({first, first + some.count}, to);
}

Status place_projections(WeightPlacing& placing, const Weight& weight, const DeltaHeads& heads,
                         const DeltaBlockWeights& to) {
  const DeltaShape& all = heads.all;
  if (weight.role == WeightRole::delta_z)
    return place_rows(placing, weight, rows_of_heads(heads.values, all.value_dim), to.projections, to.z_row);
  if (weight.role == WeightRole::delta_qkv_z) {
    const std::int64_t of_key_head = weight.shape[0] / all.key_heads;
    return place_rows(placing, weight, rows_of_heads(heads.keys, of_key_head), to.projections);
  }
  const std::array<Run, 3> channels = channels_of(heads);
  const int to_rows[] = {0, to.k_row, to.v_row};
  for (std::size_t part = 0; part < channels.size(); ++part)
    NIBBLE_RETURN_IF_ERROR(place_rows(placing, weight, channels[part], to.projections, to_rows[part]));
  return {};
}

// [channels, 1, taps] -> [taps, the rank's channels]
std::vector<float> filters_by_tap(const std::vector<float>& values, std::size_t taps,
                                  const DeltaHeads& heads) {
  std::vector<float> by_tap;
  for (std::size_t tap = 0; tap < taps; ++tap) {
    for (const Run& part : channels_of(heads)) {
      for (std::int64_t channel = part.begin; channel < part.end(); ++channel)
        by_tap.push_back(values[size(channel) * taps + tap]);
    }
  }
  return by_tap;
}

}  // namespace

DeltaHeads delta_heads(const ModelConfig& config, const CudaPart& part) {
  DeltaHeads heads{.all = delta_shape(config),
                   .keys = part.state_heads,
                   .values = {},
                   .by_key_head = config.delta.by_key_head};
  if (heads.all.key_heads > 0)
    heads.values = rows_of_heads(heads.keys, heads.all.value_heads / heads.all.key_heads);
  return heads;
}

DeltaBlockWeights lay_out_delta_weights(const ModelConfig& config, const CudaPart& part, std::int64_t layer,
                                        DeviceArena& arena) {
  const DeltaHeads heads = delta_heads(config, part);
  const DeltaShape shape = shape_of(heads);
  const DeltaFormats formats = formats_of(config, layer);
  const ProjectionRows rows = rows_of(heads, formats);
  DeltaBlockWeights weights{.norm = arena.take<Bf16>(size(config.hidden_size)),
                            .k_row = static_cast<int>(rows.k),
                            .v_row = static_cast<int>(rows.v),
                            .z_row = static_cast<int>(rows.z),
                            .b_row = static_cast<int>(rows.b),
                            .a_row = static_cast<int>(rows.a)};
  weights.projections =
      DeviceMatrix::lay_out(arena, formats.projections, rows.of_projections, config.hidden_size);
  if (!rows.together)
    weights.gates = DeviceMatrix::lay_out(arena, formats.gates, rows.of_gates, config.hidden_size);
  weights.convolution = arena.take<float>(size(std::int64_t{shape.taps} * shape.channels()));
  weights.rate = arena.take<float>(size(shape.value_heads));
  weights.bias = arena.take<float>(size(shape.value_heads));
  weights.head_norm = arena.take<float>(size(shape.value_dim));
  weights.output = DeviceMatrix::lay_out(arena, formats.output, config.hidden_size, heads.all.values());
  return weights;
}

Status place_delta(WeightPlacing& placing, const Weight& weight, const DeltaHeads& heads,
                   const DeltaBlockWeights& to) {
  const DeviceMatrix& of_gates = to.gates ? *to.gates : to.projections;
  switch (weight.role) {
    case WeightRole::delta_qkv_z:
    case WeightRole::delta_qkv:
    case WeightRole::delta_z: return place_projections(placing, weight, heads, to);
    case WeightRole::delta_b_a:
    case WeightRole::delta_b: return place(placing, weight, of_gates, to.b_row);
    case WeightRole::delta_a: return place(placing, weight, of_gates, to.a_row);
    case WeightRole::delta_output: return place(placing, weight, to.output);
    default: break;
  }
  NIBBLE_ASSIGN(std::vector<float> values, placing.floats(placed_tensor(weight)));
  switch (weight.role) {
    case WeightRole::delta_convolution:
      upload(filters_by_tap(values, size(weight.shape[2]), heads), to.convolution);
      return {};
    case WeightRole::delta_log_rate:
      for (float& value : values)
        value = static_cast<float>(fixed_exp_double(std::clamp(double{value}, -80.0, 80.0)));
      upload(values, heads.values, to.rate);
      return {};
    case WeightRole::delta_bias: upload(values, heads.values, to.bias); return {};
    case WeightRole::delta_norm: upload(values, to.head_norm); return {};
    default: NIBBLE_CHECK(false, weight.name);
  }
  return {};
}

Status check_delta_block(const ModelConfig& config) {
  const DeltaNumbers& delta = config.delta;
  if (delta.value_heads == 0) return {};
  if (!delta_cuda_takes(delta.key_dim, delta.value_dim)) {
    return invalid_argument("its gated delta rule has heads of " + std::to_string(delta.key_dim) +
                            " dimensions for keys and " + std::to_string(delta.value_dim) +
                            " for values, and the kernels take 128");
  }
  const int taps = delta_shape(config).taps;
  if (taps > delta_cuda_taps) {
    return invalid_argument("its gated delta rule has a convolution of " + std::to_string(taps) +
                            " taps, and the kernels take at most " + std::to_string(delta_cuda_taps));
  }
  DeltaFormats formats;
  Status status;
  visit_weights(config, [&](const Weight& weight) {
    if (!status.ok() || weight.part != WeightPart::linear_attention || !weight.is_matrix()) return;
    if (weight.role == WeightRole::delta_qkv || weight.role == WeightRole::delta_qkv_z)
      formats = formats_of(config, weight.layer);
    const bool of_gates = weight.role == WeightRole::delta_b_a || weight.role == WeightRole::delta_b ||
                          weight.role == WeightRole::delta_a;
    status = check_format(weight, of_gates                                  ? formats.gates
                                  : weight.role == WeightRole::delta_output ? formats.output
                                                                            : formats.projections);
  });
  return status;
}

DeltaBlock::DeltaBlock(const ModelConfig& config, const CudaForwardLimits& limits,
                       const DecoderStream& stream, CudaPlace& place, DeviceArena& arena)
    : stream_(stream),
      heads_(delta_heads(config, place.part)),
      shape_(shape_of(heads_)),
      output_({.rows = limits.rows,
               .columns = rows_of_heads(heads_.values, shape_.value_dim),
               .all_columns = heads_.all.values()},
              stream, place, arena) {
  // Of whatever formats layers have.
  const ProjectionRows together = rows_of(heads_, {}),
                       apart = rows_of(heads_, {.projections = TensorFormat::fp8_block});
  const std::size_t rows = size(limits.rows);
  projected_ = arena.take<float>(rows * size(together.of_projections));
  gates_ = arena.take<float>(rows * size(apart.of_gates));
  qkv_ = arena.take<float>(rows * size(shape_.channels()));
  decays_ = arena.take<double>(rows * size(shape_.value_heads));
  betas_ = arena.take<float>(rows * size(shape_.value_heads));
  products_ = arena.take<float>(size(delta_product_floats(shape_, limits.rows)));
  of_heads_ = arena.take<float>(rows * size(shape_.values()));
}

DeltaColumns DeltaBlock::columns(const DeltaBlockWeights& weights) const {
  const int key_dim = shape_.key_dim, value_dim = shape_.value_dim,
            served = shape_.value_heads / shape_.key_heads, of_key_head = served * value_dim,
            first_value = static_cast<int>(heads_.values.begin);
  if (heads_.by_key_head) {
    const int all = 2 * key_dim + 2 * of_key_head, b = weights.b_row + 2 * first_value;
    return {.q = {0, all, 0},
            .k = {key_dim, all, 0},
            .v = {2 * key_dim, all, value_dim},
            .z = {2 * key_dim + of_key_head, all, value_dim},
            .b = {b, 2 * served, 1},
            .a = {b + served, 2 * served, 1}};
  }
  return {.q = {0, key_dim, 0},
          .k = {weights.k_row, key_dim, 0},
          .v = {weights.v_row, of_key_head, value_dim},
          .z = {weights.z_row, of_key_head, value_dim},
          .b = {weights.b_row + first_value, served, 1},
          .a = {weights.a_row + first_value, served, 1}};
}

bool DeltaBlock::has_one_row_each(const CudaForwardInput& input) {
  return input.one_row_each && input.settled;
}

Status DeltaBlock::run(const DeltaBlockWeights& weights, const DeltaLayer& states, const PendingSum& pending,
                       const CudaForwardInput& input, cudaStream_t stream) const {
  const RankRows own = stream_.rows_of_rank(input);
  NIBBLE_RETURN_IF_ERROR(stream_.norm_tiles(stream_.norm(weights.norm, pending, nullptr, own), own, stream));
  const TokenTiles x{stream_.normed_tiles, input.rows};
  if (weights.gates) {
    NIBBLE_RETURN_IF_ERROR(
        multiply_both(stream_, {weights.projections, projected_}, {*weights.gates, gates_}, x, stream));
  } else {
    NIBBLE_RETURN_IF_ERROR(multiply(stream_, weights.projections, x, projected_, stream));
  }
  DeltaStepCuda step = input.states;
  step.rows = input.rows;
  step.sequences = input.sequences;
  step.one_row_each = has_one_row_each(input);
  NIBBLE_RETURN_IF_ERROR(
      gated_delta_cuda({.layer = states,
                        .step = step,
                        .columns = columns(weights),
                        .projected = projected_,
                        .gates = weights.gates ? gates_ : projected_,
                        .projected_stride = weights.projections.rows(),
                        .gates_stride = weights.gates ? weights.gates->rows() : weights.projections.rows(),
                        .convolution = weights.convolution,
                        .rate = weights.rate,
                        .bias = weights.bias,
                        .norm = weights.head_norm,
                        .eps = stream_.eps,
                        .qkv = qkv_,
                        .decays = decays_,
                        .betas = betas_,
                        .products = products_,
                        .mixed = of_heads_,
                        .out = output_.input(),
                        .stuck = stream_.linear.stuck},
                       stream));
  return output_.multiply({.weight = weights.output}, input.rows, own, stream_.delta, stream);
}

}  // namespace nibble
