// Kernels of what stands in attention's place in some models: attention to latents, beside double precision,
// and the gated delta rule, beside the CPU's. Each of rows one by one and of all at once.
#include <cmath>
#include <cstring>
#include <numeric>
#include <span>
#include <string>
#include <vector>

#include "base/thread_pool.h"
#include "ops/aligned_bytes.h"
#include "ops/gated_delta/cuda/gated_delta_cuda.h"
#include "ops/gated_delta/gated_delta.h"
#include "ops/latent_attention/cuda/latent_cuda.h"
#include "ops/linear/cuda/dense_tiles.h"
#include "runtime/cuda/gpu_check_util.h"
#include "tensor/cuda_check.h"
#include "tensor/device_buffer.h"

namespace nibble {
namespace {

std::vector<float> floats(Numbers& numbers, int count, float most = 1.0f) {
  std::vector<float> values;
  for (const Bf16 value : numbers.list(static_cast<std::size_t>(count), most))
    values.push_back(value.to_float());
  return values;
}
std::vector<float> as_floats(std::span<const Bf16> values) {
  std::vector<float> all;
  for (const Bf16 value : values) all.push_back(value.to_float());
  return all;
}

// Queries of `rows` positions of one sequence, from `first` on; vectors of all positions lie in the cache.
class Latents {
 public:
  static constexpr int rows = 24, heads = 4, first = 200, rank = 512, rotated = 64, width = rank + rotated,
                       page_size = 64, slots = 256;
  static constexpr float scale = 0.07f;

  Status make(Numbers& numbers) {
    queries_ = numbers.list(rows * heads * width);
    vectors_ = numbers.list(slots * width);
    std::vector<std::int32_t> pages(slots / page_size);
    std::iota(pages.begin(), pages.end(), 0);
    NIBBLE_ASSIGN(q_, on_device(queries_));
    NIBBLE_ASSIGN(cache_, on_device(vectors_));
    NIBBLE_ASSIGN(table_, on_device(pages));
    NIBBLE_ASSIGN(totals_, zeroed(static_cast<std::size_t>(latent_total_floats(processors_of_device())) * 4));
    NIBBLE_ASSIGN(partials_, zeroed(static_cast<std::size_t>(latent_partial_floats(rank)) * 4));
    return {};
  }

  // What rows from `from` on attend to, [rows, heads, rank], of these sequences.
  Result<std::vector<Bf16>> attend(int from, const std::vector<SequenceCuda>& sequences, LatentPath path) {
    const int count =
        std::accumulate(sequences.begin(), sequences.end(), 0,
                        [](int sum, const SequenceCuda& sequence) { return sum + sequence.row_count; });
    const int of_sequences = static_cast<int>(sequences.size());
    NIBBLE_ASSIGN(DeviceBuffer on_sequences, on_device(sequences));
    NIBBLE_ASSIGN(DeviceBuffer work,
                  zeroed(static_cast<std::size_t>(latent_work_bytes(count, of_sequences, heads))));
    NIBBLE_ASSIGN(DeviceBuffer out,
                  zeroed(static_cast<std::size_t>(count * heads * latent_padded(rank)) * sizeof(Bf16)));
    latent_work_cuda({.kernels = {.path = path},
                      .sequences = on_sequences.as<SequenceCuda>(),
                      .sequence_count = of_sequences,
                      .heads = heads,
                      .rows = count,
                      .rows_at_once = count,
                      .work = work.as<std::uint8_t>()},
                     nullptr);
    NIBBLE_RETURN_IF_ERROR(latent_attention_cuda({.kernels = {.path = path},
                                                  .q = q_.as<Bf16>() + from * heads * width,
                                                  .rows = count,
                                                  .heads = heads,
                                                  .work = work.as<std::uint8_t>(),
                                                  .sequence_count = of_sequences,
                                                  .rows_at_once = count,
                                                  .page_table = table_.as<std::int32_t>(),
                                                  .page_size = page_size,
                                                  .cache = {cache_.data(), slots, DType::bf16, rank, rotated},
                                                  .scale = scale,
                                                  .out = out.as<Bf16>(),
                                                  .totals = totals_.as<float>(),
                                                  .partials = partials_.as<float>()},
                                                 nullptr));
    static_assert(latent_padded(rank) == rank);
    std::vector<Bf16> found(static_cast<std::size_t>(count * heads * rank));
    out.copy_to(std::span(found));
    return found;
  }

  // Of a query, numbered row * heads + head, in double precision.
  std::vector<double> exact(int query) const {
    const std::vector<float> q =
        as_floats(std::span(queries_).subspan(static_cast<std::size_t>(query * width), width));
    std::vector<double> out(rank);
    double weights = 0;
    for (int position = 0; position <= first + query / heads; ++position) {
      const std::vector<float> vector =
          as_floats(std::span(vectors_).subspan(static_cast<std::size_t>(position * width), width));
      const double score = std::inner_product(q.begin(), q.end(), vector.begin(), 0.0);
      const double weight = std::exp(score * double{scale});
      weights += weight;
      for (std::size_t i = 0; i < out.size(); ++i) out[i] += weight * double{vector[i]};
    }
    for (double& each : out) each /= weights;
    return out;
  }

 private:
  std::vector<Bf16> queries_, vectors_;
  DeviceBuffer q_, cache_, table_, totals_, partials_;
};

// A layer with one head of keys and two of values, and a text of some rows.
class DeltaRule {
 public:
  static constexpr DeltaShape shape{
      .key_heads = 1, .value_heads = 2, .key_dim = 128, .value_dim = 128, .taps = 4};
  static constexpr int rows = 140, channels = 512, values = 256, stride = channels + values, gates = 4;
  static constexpr float eps = 1e-6f;

  Status make(Numbers& numbers) {
    projected_ = floats(numbers, rows * stride);
    gates_ = floats(numbers, rows * gates, 2.0f);
    convolution_ = floats(numbers, shape.taps * channels, 0.5f);
    rate_ = {0.5f, 2.0f};
    bias_ = floats(numbers, shape.value_heads);
    norm_ = floats(numbers, shape.value_dim);
    NIBBLE_ASSIGN(device_projected_, on_device(projected_));
    NIBBLE_ASSIGN(device_gates_, on_device(gates_));
    NIBBLE_ASSIGN(device_convolution_, on_device(convolution_));
    NIBBLE_ASSIGN(device_rate_, on_device(rate_));
    NIBBLE_ASSIGN(device_bias_, on_device(bias_));
    NIBBLE_ASSIGN(device_norm_, on_device(norm_));
    NIBBLE_ASSIGN(state_, zeroed(static_cast<std::size_t>(delta_state_bytes(shape))));
    NIBBLE_ASSIGN(snapshot_, zeroed(static_cast<std::size_t>(delta_snapshot_bytes(shape))));
    return {};
  }

  // Rows [first, first + count), [rows, values]; those before them have been given.
  Result<std::vector<Bf16>> step(int first, int count) {
    const DenseShape tiles{0, values};
    NIBBLE_ASSIGN(DeviceBuffer sequence, on_device(std::vector<StateRowsCuda>{{0, count, first, 0, 0, 0}}));
    NIBBLE_ASSIGN(DeviceBuffer of_rows, zeroed(static_cast<std::size_t>(count) * sizeof(std::int32_t)));
    NIBBLE_ASSIGN(DeviceBuffer borders, zeroed(sizeof(BorderState)));
    const auto room = [&](std::int64_t elements, std::size_t bytes) {
      return zeroed(static_cast<std::size_t>(elements) * bytes);
    };
    NIBBLE_ASSIGN(DeviceBuffer qkv, room(count * channels, sizeof(float)));
    NIBBLE_ASSIGN(DeviceBuffer decays, room(count * shape.value_heads, sizeof(double)));
    NIBBLE_ASSIGN(DeviceBuffer betas, room(count * shape.value_heads, sizeof(float)));
    NIBBLE_ASSIGN(DeviceBuffer products, room(delta_product_floats(shape, count), sizeof(float)));
    NIBBLE_ASSIGN(DeviceBuffer mixed, room(count * values, sizeof(float)));
    NIBBLE_ASSIGN(DeviceBuffer out, zeroed(tiles.token_bytes(count)));
    NIBBLE_RETURN_IF_ERROR(
        gated_delta_cuda({.layer = {.shape = shape, .memory = state_.data(), .snapshots = snapshot_.data()},
                          .step = {.rows = count,
                                   .sequences = 1,
                                   .one_row_each = count == 1,
                                   .of_sequence = sequence.as<StateRowsCuda>(),
                                   .sequence_of_row = of_rows.as<std::int32_t>(),
                                   .borders = borders.as<BorderState>()},
                          .columns = {.q = {0, 128, 0},
                                      .k = {128, 128, 0},
                                      .v = {256, values, 128},
                                      .z = {channels, values, 128},
                                      .b = {0, 2, 1},
                                      .a = {2, 2, 1}},
                          .projected = device_projected_.as<float>() + first * stride,
                          .gates = device_gates_.as<float>() + first * gates,
                          .projected_stride = stride,
                          .gates_stride = gates,
                          .convolution = device_convolution_.as<float>(),
                          .rate = device_rate_.as<float>(),
                          .bias = device_bias_.as<float>(),
                          .norm = device_norm_.as<float>(),
                          .eps = eps,
                          .qkv = qkv.as<float>(),
                          .decays = decays.as<double>(),
                          .betas = betas.as<float>(),
                          .products = products.as<float>(),
                          .mixed = mixed.as<float>(),
                          .out = out.as<std::uint8_t>()},
                         nullptr));
    const std::vector<std::byte> bytes = bytes_of(out);
    std::vector<Bf16> found;
    for (int row = 0; row < count; ++row) {
      for (int column = 0; column < values; ++column) {
        Bf16& value = found.emplace_back();
        std::memcpy(&value, bytes.data() + token_offset(tiles.blocks(), row, column), sizeof value);
      }
    }
    return found;
  }

  // All rows by the CPU's ops.
  std::vector<double> on_the_cpu() const {
    const auto part = [](const std::vector<float>& from, int width, int begin, int count) {
      std::vector<float> columns;
      for (int row = 0; row < rows; ++row) {
        const auto at = from.begin() + row * width + begin;
        columns.insert(columns.end(), at, at + count);
      }
      return columns;
    };
    ThreadPool threads(1);
    OpContext context{threads};
    AlignedBytes state(static_cast<std::size_t>(delta_state_bytes(shape)));
    const DeltaLayer layer{.shape = shape, .memory = state.data()};
    const StateRows all{.row_begin = 0, .row_count = rows, .first_position = 0, .slot = 0};
    const std::vector<float> qkv = part(projected_, stride, 0, channels),
                             z = part(projected_, stride, channels, values), b = part(gates_, gates, 0, 2),
                             a = part(gates_, gates, 2, 2);
    std::vector<float> convolved(qkv.size()), out(static_cast<std::size_t>(rows * values));
    short_convolution(context, {.x = qkv.data(),
                                .weight = convolution_.data(),
                                .sequences = std::span(&all, 1),
                                .layer = layer,
                                .out = convolved.data()});
    gated_delta(context, {.qkv = convolved.data(),
                          .b = b.data(),
                          .a = a.data(),
                          .gates = {.rate = rate_.data(), .bias = bias_.data()},
                          .sequences = std::span(&all, 1),
                          .layer = layer,
                          .out = out.data()});
    gated_head_norm(context, {.x = out.data(),
                              .z = z.data(),
                              .weight = norm_.data(),
                              .rows = rows,
                              .heads = shape.value_heads,
                              .head_dim = shape.value_dim,
                              .eps = eps});
    return {out.begin(), out.end()};
  }

 private:
  std::vector<float> projected_, gates_, convolution_, rate_, bias_, norm_;
  DeviceBuffer device_projected_, device_gates_, device_convolution_, device_rate_, device_bias_,
      device_norm_;
  DeviceBuffer state_, snapshot_;
};

bool have_equal_bits(std::span<const Bf16> a, std::span<const Bf16> b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size_bytes()) == 0;
}

}  // namespace

Result<std::string> check_latent_attention() {
  constexpr int rows = Latents::rows, heads = Latents::heads, first = Latents::first, rank = Latents::rank;
  Numbers numbers;
  Latents latents;
  NIBBLE_RETURN_IF_ERROR(latents.make(numbers));
  NIBBLE_ASSIGN(const std::vector<Bf16> all, latents.attend(0, {{0, rows, first, 0}}, LatentPath::tiles));
  std::vector<SequenceCuda> one_by_one;
  for (int row = 0; row < rows; ++row) one_by_one.push_back({row, 1, first + row, 0});
  NIBBLE_ASSIGN(const std::vector<Bf16> decoded, latents.attend(0, one_by_one, LatentPath::tiles));
  if (!have_equal_bits(decoded, all)) return std::string("other bits in a decode than in a prefill");
  NIBBLE_ASSIGN(const std::vector<Bf16> alone,
                latents.attend(rows - 1, {{0, 1, first + rows - 1, 0}}, LatentPath::clusters));
  if (!have_equal_bits(alone, std::span(all).last(alone.size())))
    return std::string("other bits alone than among others");
  std::vector<double> expected;
  std::vector<float> found;
  for (const int query : {0, 5, rows * heads / 2 + 2, rows * heads - 1}) {
    const std::vector<double> exact = latents.exact(query);
    expected.insert(expected.end(), exact.begin(), exact.end());
    const std::vector<float> attended =
        as_floats(std::span(all).subspan(static_cast<std::size_t>(query * rank), rank));
    found.insert(found.end(), attended.begin(), attended.end());
  }
  // Weights and outputs are rounded to bfloat16.
  return is_near(expected, found, 4e-3) ? std::string() : std::string("far from double precision");
}

Result<std::string> check_gated_delta() {
  Numbers numbers;
  DeltaRule rule;
  NIBBLE_RETURN_IF_ERROR(rule.make(numbers));
  NIBBLE_ASSIGN(const std::vector<Bf16> all, rule.step(0, DeltaRule::rows));
  std::vector<Bf16> one_by_one;
  for (int row = 0; row < DeltaRule::rows; ++row) {
    NIBBLE_ASSIGN(const std::vector<Bf16> one, rule.step(row, 1));
    one_by_one.insert(one_by_one.end(), one.begin(), one.end());
  }
  if (!have_equal_bits(one_by_one, all))
    return std::string("other bits of rows one by one than of all at once");
  // Outputs are rounded to bfloat16.
  return is_near(rule.on_the_cpu(), as_floats(all), 4e-3) ? std::string() : std::string("far from the CPU's");
}

}  // namespace nibble
