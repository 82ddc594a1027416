#include "plan/kernel_check.h"

#include <cmath>
#include <cstdio>
#include <cstring>
#include <functional>

#include "ops/aligned_bytes.h"
#include "ops/attention/attention.h"
#include "ops/linear/linear.h"
#include "ops/moe/moe_with_room.h"
#include "ops/op_context.h"

namespace nibble {
namespace {

// The same numbers on every machine.
class Numbers {
 public:
  explicit Numbers(std::uint64_t seed) : state_(seed) {}
  std::uint32_t bits() {
    state_ = state_ * 6364136223846793005ull + 1442695040888963407ull;
    return static_cast<std::uint32_t>(state_ >> 32);
  }
  float value() { return static_cast<float>(static_cast<std::int32_t>(bits())) * 0x1p-31f; }
  std::vector<float> floats(std::size_t count) {
    std::vector<float> values(count);
    for (float& each : values) each = value();
    return values;
  }
  std::vector<Bf16> bf16s(std::size_t count) {
    std::vector<Bf16> values(count);
    for (Bf16& each : values) each = Bf16::from_float(value());
    return values;
  }
  // Scale bytes near 2^-6.
  std::vector<std::uint8_t> scales(std::size_t count) {
    std::vector<std::uint8_t> bytes(count);
    for (std::uint8_t& each : bytes) each = static_cast<std::uint8_t>(119 + bits() % 5);
    return bytes;
  }
  std::vector<std::uint8_t> codes(std::size_t count) {
    std::vector<std::uint8_t> bytes(count);
    for (std::uint8_t& each : bytes) each = static_cast<std::uint8_t>(bits());
    return bytes;
  }

 private:
  std::uint64_t state_;
};

std::size_t product(int a, int b) { return static_cast<std::size_t>(a) * static_cast<std::size_t>(b); }

// The first place where bits differ.
std::string difference(const std::vector<float>& found, const std::vector<float>& expected) {
  for (std::size_t i = 0; i < expected.size(); ++i) {
    if (std::memcmp(&found[i], &expected[i], sizeof(float)) == 0) continue;
    char text[128];
    std::snprintf(text, sizeof text, "value %zu of %zu is %.9g, by the scalar kernel %.9g", i,
                  expected.size(), static_cast<double>(found[i]), static_cast<double>(expected[i]));
    return text;
  }
  return {};
}

// Runs a family's op with each kernel of its list, and compares with the last.
template <class Kernels>
void compare(const std::string& family, std::span<const Kernels> list,
             const std::function<std::vector<float>(const Kernels&)>& run, std::vector<KernelCheck>& checks) {
  const std::vector<float> expected = run(list.back());
  for (const Kernels& kernels : list.first(list.size() - 1)) {
    KernelCheck check{
        .family = family, .kernel = "cpu_" + std::string(kernels.name), .supported = kernels.supported()};
    if (check.supported) {
      check.what = difference(run(kernels), expected);
      check.equal = check.what.empty();
    }
    checks.push_back(std::move(check));
  }
}

// One input alone and several together, float32, bfloat16 and eight-bit inputs.
void check_products(const std::string& family, ThreadPool& threads, const WeightMatrix& matrix,
                    std::span<const DotKernels> list, std::vector<KernelCheck>& checks) {
  constexpr int inputs = 19;
  const int cols = weight_cols(matrix), rows = weight_rows(matrix);
  const std::vector<float> x = Numbers(7).floats(product(inputs, cols));
  AlignedBytes room(linear_workspace_bytes(inputs, cols));
  const auto run = [&](const DotKernels& kernels) {
    std::vector<float> all;
    for (const InputValues values : {InputValues::any_float, InputValues::bf16, InputValues::int8}) {
      std::vector<float> given = x;
      if (values != InputValues::any_float) {
        for (float& each : given) each = Bf16::from_float(each).to_float();
      }
      for (const int count : {1, inputs}) {
        std::vector<float> y(product(count, rows));
        OpContext context{.threads = threads, .dots = kernels, .activations = values};
        linear(context,
               {.x = given.data(), .rows = count, .weight = matrix, .y = y.data(), .workspace = room.span()});
        all.insert(all.end(), y.begin(), y.end());
      }
    }
    return all;
  };
  compare<DotKernels>(family, list, run, checks);
}

void check_all_products(ThreadPool& threads, const CheckShapes& shapes, std::span<const DotKernels> list,
                        std::vector<KernelCheck>& checks) {
  const int rows = 80, cols = shapes.hidden;
  const std::size_t values = product(rows, cols), blocks = values / mxfp4_block;
  Numbers numbers(1);
  const std::vector<Bf16> dense = numbers.bf16s(values);
  check_products("products with bfloat16 weights", threads, Bf16Matrix{dense.data(), rows, cols}, list,
                 checks);
  if (cols % mxfp4_block != 0) return;
  const std::vector<std::uint8_t> scales = numbers.scales(blocks),
                                  codes = numbers.codes(blocks * mxfp4_block_bytes);
  check_products("products with mxfp4 weights", threads,
                 Mxfp4Checkpoint{codes.data(), scales.data(), rows, cols}, list, checks);
  std::vector<std::int8_t> bytes(values);
  for (std::int8_t& each : bytes)
    each = static_cast<std::int8_t>(static_cast<int>(numbers.bits() % 255) - 127);
  check_products("products with q8 weights", threads, Q8Matrix{bytes.data(), scales.data(), rows, cols}, list,
                 checks);
}

// An expert layer, from routed rows to their sum.
void check_experts(ThreadPool& threads, const CheckShapes& shapes, std::span<const DotKernels> list,
                   std::vector<KernelCheck>& checks) {
  constexpr int rows = 6;
  const int hidden = shapes.hidden, width = shapes.width, experts = shapes.experts, top_k = shapes.top_k;
  if (hidden % mxfp4_block != 0 || width % mxfp4_block != 0) return;
  Numbers numbers(2);
  const std::size_t up = product(2 * width, hidden), down = product(hidden, width),
                    count = static_cast<std::size_t>(experts);
  const std::vector<std::uint8_t> up_codes = numbers.codes(count * up / 2),
                                  down_codes = numbers.codes(count * down / 2);
  const std::vector<std::uint8_t> up_scales = numbers.scales(count * up / mxfp4_block),
                                  down_scales = numbers.scales(count * down / mxfp4_block);
  const std::vector<Bf16> up_bias = numbers.bf16s(count * static_cast<std::size_t>(2 * width)),
                          down_bias = numbers.bf16s(count * static_cast<std::size_t>(hidden));
  MoeWeights weights{
      .gate_up_bias = up_bias.data(), .down_bias = down_bias.data(), .unit = gpt_oss_unit(7.0f)};
  for (std::size_t e = 0; e < count; ++e) {
    weights.gate_up.emplace_back(Mxfp4Checkpoint{up_codes.data() + e * up / 2,
                                                 up_scales.data() + e * up / mxfp4_block, 2 * width, hidden});
    weights.down.emplace_back(Mxfp4Checkpoint{down_codes.data() + e * down / 2,
                                              down_scales.data() + e * down / mxfp4_block, hidden, width});
  }
  const int slots = rows * top_k;
  const std::vector<float> x = numbers.floats(product(rows, hidden));
  std::vector<std::int32_t> ids;
  for (int slot = 0; slot < slots; ++slot) ids.push_back((slot * 3 + slot / top_k) % experts);
  const std::vector<float> shares(static_cast<std::size_t>(slots), 0.5f);
  const auto run = [&](const DotKernels& kernels) {
    OpContext context{.threads = threads, .dots = kernels};
    return moe_with_room(context, weights, x, ids, shares);
  };
  compare<DotKernels>("expert layer in mxfp4", list, run, checks);
}

// A prompt's last rows over a cache, with a window and without.
void check_attention(ThreadPool& threads, const CheckShapes& shapes, DType dtype,
                     std::span<const AttentionKernels> list, std::vector<KernelCheck>& checks) {
  constexpr int page_size = 16, rows = 5;
  const int positions = shapes.positions, pages = (positions + page_size - 1) / page_size;
  if (!attention_takes_head_dim(shapes.head_dim)) return;
  Numbers numbers(3);
  const std::size_t of_head = product(positions, shapes.kv_heads * shapes.head_dim);
  const std::vector<float> k = numbers.floats(of_head), v = numbers.floats(of_head),
                           q = numbers.floats(product(rows, shapes.heads * shapes.head_dim)),
                           sinks = numbers.floats(static_cast<std::size_t>(shapes.heads));
  std::vector<std::int32_t> page_ids;
  for (int page = 0; page < pages; ++page) page_ids.push_back(pages - 1 - page);
  const std::size_t bytes =
      product(pages * page_size, shapes.kv_heads * shapes.head_dim) * dtype_bytes(dtype);
  AlignedBytes keys(bytes), values(bytes);
  const KvLayer cache{.keys = keys.span().data(),
                      .values = values.span().data(),
                      .dtype = dtype,
                      .pages = pages,
                      .page_size = page_size,
                      .kv_heads = shapes.kv_heads,
                      .head_dim = shapes.head_dim};
  const SequenceRows whole[] = {{0, positions, 0, page_ids}},
                     last[] = {{0, rows, positions - rows, page_ids}};
  OpContext filling{.threads = threads};
  kv_append(filling, {.keys = k.data(), .values = v.data(), .sequences = whole, .cache = cache});
  const auto run = [&](const AttentionKernels& kernels) {
    std::vector<float> all;
    for (const int window : {0, 100}) {
      std::vector<float> out(q.size());
      OpContext context{.threads = threads, .attention = kernels};
      paged_attention(context, {.q = q.data(),
                                .heads = shapes.heads,
                                .sequences = last,
                                .cache = cache,
                                .window = window,
                                .sinks = sinks.data(),
                                .scale = 1.0f / std::sqrt(static_cast<float>(shapes.head_dim)),
                                .out = out.data(),
                                .room = {}});
      all.insert(all.end(), out.begin(), out.end());
    }
    return all;
  };
  compare<AttentionKernels>("attention over " + std::string(dtype_name(dtype)) + " keys and values", list,
                            run, checks);
}

// Norms, rotations and what sampling asks of a row.
void check_rows(const CheckShapes& shapes, std::span<const RowKernels> list,
                std::vector<KernelCheck>& checks) {
  const int n = shapes.hidden;
  Numbers numbers(4);
  const std::size_t count = static_cast<std::size_t>(n);
  const std::vector<float> x = numbers.floats(count), delta = numbers.floats(count);
  const std::vector<Bf16> weight = numbers.bf16s(count);
  const auto run = [&](const RowKernels& kernels) {
    std::vector<float> sum = x, scaled(count), turned = x, weighed(count);
    const float squares = kernels.add_and_square(sum.data(), delta.data(), n);
    kernels.scale(x.data(), 0.37f, weight.data(), true, n, scaled.data());
    kernels.rotate(turned.data(), delta.data(), scaled.data(), n / 2);
    const RowScan scan = kernels.scan(x.data(), n);
    const double exponents = kernels.exp_sum(x.data(), scan.largest, n);
    kernels.weigh(x.data(), scan.largest, 0.7f, n, weighed.data());
    std::vector<float> all = {squares, scan.largest, static_cast<float>(exponents)};
    for (const std::vector<float>* each : {&sum, &scaled, &turned, &weighed})
      all.insert(all.end(), each->begin(), each->end());
    return all;
  };
  compare<RowKernels>("norms, rotations and sampling", list, run, checks);
}

}  // namespace

std::vector<KernelCheck> check_kernels(ThreadPool& threads, const CheckShapes& shapes,
                                       const KernelLists& lists) {
  std::vector<KernelCheck> checks;
  check_all_products(threads, shapes, lists.dots, checks);
  check_experts(threads, shapes, lists.dots, checks);
  for (const DType dtype : {DType::f32, DType::bf16, DType::f8_e4m3})
    check_attention(threads, shapes, dtype, lists.attention, checks);
  check_rows(shapes, lists.rows, checks);
  return checks;
}

}  // namespace nibble
