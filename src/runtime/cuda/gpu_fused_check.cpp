// Kernels that do in one launch what others do one after the other, beside those; and q, k and v, which are
// turned and put in their places in the same launch as their product.
#include <cmath>

#include "ops/cuda/absent.h"
#include "ops/linear/cuda/linear_cuda.h"
#include "ops/linear/cuda/norm_linear_cuda.h"
#include "ops/rms_norm/cuda/rms_norm_cuda.h"
#include "ops/rope/cuda/rope_cuda.h"
#include "ops/rope/rope.h"
#include "ops/router/cuda/norm_router_cuda.h"
#include "ops/router/cuda/router_cuda.h"
#include "runtime/cuda/gpu_check_util.h"

namespace nibble {
namespace {

// What norm and router leave for a layer's experts.
struct Routed {
  DeviceBuffer residual, norm, ids, weights;

  bool has_bits_of(const Routed& other) const {
    return bytes_of(residual) == bytes_of(other.residual) && bytes_of(norm) == bytes_of(other.norm) &&
           bytes_of(ids) == bytes_of(other.ids) && bytes_of(weights) == bytes_of(other.weights);
  }
};

}  // namespace

Result<std::string> check_norm_router() {
  constexpr int rows = 11, hidden = 2880, experts = 128, top_k = 4;
  constexpr float eps = 1e-5f;
  constexpr DenseShape shape{experts, hidden};
  constexpr int stride = shape.padded_cols();
  Numbers numbers;
  std::vector<float> values(2 * rows * hidden);
  for (float& value : values) value = numbers.bf16(3.0f).to_float();
  NIBBLE_ASSIGN(DeviceBuffer before,
                on_device(std::vector<float>(values.begin(), values.begin() + rows * hidden)));
  NIBBLE_ASSIGN(DeviceBuffer delta,
                on_device(std::vector<float>(values.begin() + rows * hidden, values.end())));
  NIBBLE_ASSIGN(DeviceBuffer norm_weight, on_device(numbers.list(hidden)));
  NIBBLE_ASSIGN(DeviceBuffer plain, on_device(numbers.list(experts * hidden, 0.1f)));
  NIBBLE_ASSIGN(DeviceBuffer bias, on_device(numbers.list(experts, 0.1f)));
  NIBBLE_ASSIGN(DeviceBuffer router, zeroed(shape.bytes()));
  NIBBLE_RETURN_IF_ERROR(repack_dense_cuda(plain.as<Bf16>(), shape, router.as<std::uint8_t>(), nullptr));
  Routed in_one, in_three;
  for (Routed* const routed : {&in_one, &in_three}) {
    NIBBLE_ASSIGN(routed->residual, zeroed(before.size()));
    NIBBLE_ASSIGN(routed->norm, zeroed(rows * stride * sizeof(Bf16)));
    NIBBLE_ASSIGN(routed->ids, zeroed(rows * top_k * sizeof(std::int32_t)));
    NIBBLE_ASSIGN(routed->weights, zeroed(rows * top_k * sizeof(float)));
  }
  NIBBLE_ASSIGN(DeviceBuffer sums, zeroed(norm_router_sums(experts) * sizeof(float)));
  make_absent(sums.as<float>(), norm_router_sums(experts), nullptr);
  NIBBLE_RETURN_IF_ERROR(norm_router_cuda({.residual = before.as<float>(),
                                           .delta = delta.as<float>(),
                                           .norm_weight = norm_weight.as<Bf16>(),
                                           .eps = eps,
                                           .residual_out = in_one.residual.as<float>(),
                                           .norm = in_one.norm.as<Bf16>(),
                                           .norm_stride = stride,
                                           .router = {router.as<std::uint8_t>(), shape},
                                           .router_bias = bias.as<Bf16>(),
                                           .rows = rows,
                                           .top_k = top_k,
                                           .expert_ids = in_one.ids.as<std::int32_t>(),
                                           .expert_weights = in_one.weights.as<float>(),
                                           .workspace = {sums.as<float>()}},
                                          nullptr));
  NIBBLE_ASSIGN(DeviceBuffer tiles, zeroed(shape.token_bytes(rows)));
  NIBBLE_ASSIGN(DeviceBuffer logits, zeroed(rows * experts * sizeof(float)));
  NIBBLE_ASSIGN(LinearRoom room, linear_room(rows));
  NIBBLE_RETURN_IF_ERROR(add_rms_norm_cuda({.residual = before.as<float>(),
                                            .residual_out = in_three.residual.as<float>(),
                                            .delta = delta.as<float>(),
                                            .weight = norm_weight.as<Bf16>(),
                                            .out = in_three.norm.as<Bf16>(),
                                            .out_stride = stride,
                                            .out_tiles = tiles.as<std::uint8_t>(),
                                            .rows = rows,
                                            .hidden = hidden,
                                            .eps = eps},
                                           nullptr));
  NIBBLE_RETURN_IF_ERROR(linear_cuda({.x = {tiles.as<std::uint8_t>(), rows},
                                      .weight = {router.as<std::uint8_t>(), shape},
                                      .bias = bias.as<Bf16>(),
                                      .y = logits.as<float>(),
                                      .y_stride = experts,
                                      .workspace = room.workspace()},
                                     nullptr));
  NIBBLE_RETURN_IF_ERROR(route_top_k_cuda({.logits = logits.as<float>(),
                                           .rows = rows,
                                           .experts = experts,
                                           .top_k = top_k,
                                           .expert_ids = in_three.ids.as<std::int32_t>(),
                                           .expert_weights = in_three.weights.as<float>()},
                                          nullptr));
  return in_one.has_bits_of(in_three) ? std::string()
                                      : std::string("other bits than of a norm, a product and a choice");
}

Result<std::string> check_norm_linear() {
  constexpr int rows = 512, hidden = 2880, top_k = 4;
  constexpr DenseShape shape{rows, hidden};
  Numbers numbers;
  const auto floats = [&numbers](int count, float most) {
    std::vector<float> values(static_cast<std::size_t>(count));
    for (float& value : values) value = numbers.bf16(most).to_float();
    return values;
  };
  NIBBLE_ASSIGN(DeviceBuffer before, on_device(floats(hidden, 3.0f)));
  NIBBLE_ASSIGN(DeviceBuffer products, on_device(floats(top_k * hidden, 3.0f)));
  NIBBLE_ASSIGN(DeviceBuffer ids, on_device(std::vector<std::int32_t>{7, 0, 99, 31}));
  NIBBLE_ASSIGN(DeviceBuffer expert_weights, on_device(floats(top_k, 1.0f)));
  NIBBLE_ASSIGN(DeviceBuffer norm_weight, on_device(numbers.list(hidden)));
  NIBBLE_ASSIGN(DeviceBuffer plain, on_device(numbers.list(rows * hidden, 0.1f)));
  NIBBLE_ASSIGN(DeviceBuffer weight, zeroed(shape.bytes()));
  NIBBLE_RETURN_IF_ERROR(repack_dense_cuda(plain.as<Bf16>(), shape, weight.as<std::uint8_t>(), nullptr));
  NIBBLE_ASSIGN(DeviceBuffer tiles, zeroed(shape.token_bytes(1)));
  NIBBLE_ASSIGN(LinearRoom room, linear_room(1));
  DeviceBuffer residual[2], y[2];
  for (int i = 0; i < 2; ++i) {
    NIBBLE_ASSIGN(residual[i], zeroed(before.size()));
    NIBBLE_ASSIGN(y[i], zeroed(rows * sizeof(float)));
    const AddRmsNormCudaArgs norm{.residual = before.as<float>(),
                                  .residual_out = residual[i].as<float>(),
                                  .experts = {.products = products.as<float>(),
                                              .expert_ids = ids.as<std::int32_t>(),
                                              .expert_weights = expert_weights.as<float>(),
                                              .top_k = top_k},
                                  .weight = norm_weight.as<Bf16>(),
                                  .out_tiles = tiles.as<std::uint8_t>(),
                                  .rows = 1,
                                  .hidden = hidden,
                                  .eps = 1e-5f};
    const LinearCudaArgs product{.x = {tiles.as<std::uint8_t>(), 1},
                                 .weight = {weight.as<std::uint8_t>(), shape},
                                 .y = y[i].as<float>(),
                                 .y_stride = rows,
                                 .workspace = room.workspace()};
    if (i == 0) {
      NIBBLE_RETURN_IF_ERROR(norm_linear_cuda(norm, product, nullptr));
    } else {
      NIBBLE_RETURN_IF_ERROR(add_rms_norm_cuda(norm, nullptr));
      NIBBLE_RETURN_IF_ERROR(linear_cuda(product, nullptr));
    }
  }
  const bool same = bytes_of(residual[0]) == bytes_of(residual[1]) && bytes_of(y[0]) == bytes_of(y[1]);
  return same ? std::string() : std::string("other bits than of a norm and a product");
}

// Two heads of queries and one each of keys and values, whose positions go to slots in falling order.
Result<std::string> check_qkv() {
  constexpr int tokens = 72, heads = 2, head_dim = kv_head_dim, half = head_dim / 2, cols = 512;
  constexpr int rows = (heads + 2) * head_dim, slots = 2 * kv_chunk_slots;
  constexpr DenseShape shape{rows, cols};
  Numbers numbers;
  const std::vector<Bf16> x = numbers.list(tokens * cols), w = numbers.list(rows * cols);
  std::vector<std::int32_t> positions, places;
  for (int token = 0; token < tokens; ++token) {
    positions.push_back(token * 911);
    places.push_back(tokens - 1 - token);
  }
  const RopeFrequencies frequencies = yarn_rope(head_dim, {});
  NIBBLE_ASSIGN(DeviceBuffer inv_freq, on_device(frequencies.inv_freq));
  NIBBLE_ASSIGN(DeviceBuffer device_positions, on_device(positions));
  NIBBLE_ASSIGN(DeviceBuffer kv_slots, on_device(places));
  NIBBLE_ASSIGN(DeviceBuffer plain_x, on_device(x));
  NIBBLE_ASSIGN(DeviceBuffer plain_w, on_device(w));
  NIBBLE_ASSIGN(DeviceBuffer tiles, zeroed(shape.bytes()));
  NIBBLE_ASSIGN(DeviceBuffer packed, zeroed(shape.token_bytes(tokens)));
  NIBBLE_ASSIGN(DeviceBuffer device_cos, zeroed(tokens * half * sizeof(float)));
  NIBBLE_ASSIGN(DeviceBuffer device_sin, zeroed(tokens * half * sizeof(float)));
  NIBBLE_RETURN_IF_ERROR(repack_dense_cuda(plain_w.as<Bf16>(), shape, tiles.as<std::uint8_t>(), nullptr));
  NIBBLE_RETURN_IF_ERROR(
      pack_tokens_cuda(plain_x.as<Bf16>(), tokens, cols, cols, packed.as<std::uint8_t>(), nullptr));
  rope_angles_cuda({.inv_freq = inv_freq.as<float>(),
                    .concentration = frequencies.concentration,
                    .positions = device_positions.as<std::int32_t>(),
                    .rows = tokens,
                    .half = half,
                    .cos = device_cos.as<float>(),
                    .sin = device_sin.as<float>()},
                   nullptr);
  NIBBLE_ASSIGN(LinearRoom room, linear_room(tokens));
  constexpr LinearPath paths[] = {LinearPath::few, LinearPath::many};
  DeviceBuffer q[2], keys[2], values[2];
  for (int i = 0; i < 2; ++i) {
    NIBBLE_ASSIGN(q[i], zeroed(tokens * heads * head_dim * sizeof(Bf16)));
    NIBBLE_ASSIGN(keys[i], zeroed(slots * head_dim * sizeof(Bf16)));
    NIBBLE_ASSIGN(values[i], zeroed(slots * head_dim * sizeof(Bf16)));
    NIBBLE_RETURN_IF_ERROR(qkv_cuda({.x = {packed.as<std::uint8_t>(), tokens},
                                     .weight = {tiles.as<std::uint8_t>(), shape},
                                     .heads = heads,
                                     .cos = device_cos.as<float>(),
                                     .sin = device_sin.as<float>(),
                                     .kv_slots = kv_slots.as<std::int32_t>(),
                                     .q = q[i].as<Bf16>(),
                                     .cache = {keys[i].data(), values[i].data(), 1, slots},
                                     .workspace = room.workspace(),
                                     .path = paths[i]},
                                    nullptr));
  }
  ThreadPool threads(1);
  OpContext context{.threads = threads};
  std::vector<float> cos(tokens * half), sin(tokens * half);
  rope_angles(context, frequencies, positions, cos.data(), sin.data());
  std::vector<Bf16> found_q(tokens * heads * head_dim), found_keys(slots * head_dim),
      found_values(slots * head_dim);
  q[0].copy_to(std::span(found_q));
  keys[0].copy_to(std::span(found_keys));
  values[0].copy_to(std::span(found_values));
  const auto product = [&](int token, int row) {
    double sum = 0;
    for (int k = 0; k < cols; ++k)
      sum += double{x[static_cast<std::size_t>(token * cols + k)].to_float()} *
             double{w[static_cast<std::size_t>(row * cols + k)].to_float()};
    return sum;
  };
  for (int token = 0; token < tokens; token += 13) {
    for (int row = 0; row < rows; ++row) {
      const int head = row / head_dim, dimension = row % head_dim,
                slot = places[static_cast<std::size_t>(token)];
      double expected = product(token, row);
      if (head <= heads) {
        const std::size_t angle = static_cast<std::size_t>(token * half + dimension % half);
        const double other = product(token, head * head_dim + (dimension + half) % head_dim);
        expected = expected * double{cos[angle]} + (dimension < half ? -other : other) * double{sin[angle]};
      }
      const Bf16 found =
          head < heads ? found_q[static_cast<std::size_t>((token * heads + head) * head_dim + dimension)]
          : head == heads
              ? found_keys[static_cast<std::size_t>(slot / kv_chunk_slots * kv_chunk_elements +
                                                    KvBf16::key_at(slot % kv_chunk_slots, dimension))]
              : found_values[static_cast<std::size_t>(slot / kv_chunk_slots * kv_chunk_elements +
                                                      KvBf16::value_at(slot % kv_chunk_slots, dimension))];
      // Rounded to bfloat16; products of some 500 numbers are about 13 long.
      if (!(std::fabs(double{found.to_float()} - expected) <= std::fabs(expected) / 128 + 1e-3))
        return std::string("far from double precision");
    }
  }
  const bool same = bytes_of(q[0]) == bytes_of(q[1]) && bytes_of(keys[0]) == bytes_of(keys[1]) &&
                    bytes_of(values[0]) == bytes_of(values[1]);
  return same ? std::string() : std::string("other bits for few rows than for many");
}

}  // namespace nibble
