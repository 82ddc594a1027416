// On a GPU, or on its emulation: latent attention from the products that lead to it to what its heads give,
// beside the CPU's, and a sequence's bits alone, in company and in any cut.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>

#include "formats/e4m3.h"
#include "ops/cuda/device_test_util.h"
#include "ops/cuda/launch.cuh"
#include "ops/latent_attention/cuda/latent_cuda.h"
#include "ops/latent_attention/latent_attention.h"
#include "ops/linear/cuda/dense_tiles.h"
#include "ops/op_test_util.h"
#include "ops/rms_norm/rms_norm.h"

namespace nibble {
namespace {

using LatentOnTheGpu = OnTheGpu;

constexpr float eps = 1e-6f, scale = 0.11f;
constexpr int page_size = 64;

std::size_t size_of(std::int64_t rows, std::int64_t width) { return static_cast<std::size_t>(rows * width); }

struct Layout {
  int heads, plain, rotated, value_dim, rank, query_rank;
  DType dtype = DType::bf16;
  int width() const { return rank + rotated; }
  int query_dim() const { return plain + rotated; }
  int stride() const { return query_rank + width(); }
};

struct Weights {
  Layout layout;
  std::vector<Bf16> query_norm, latent_norm, kv;
  DeviceBuffer device_query_norm, device_latent_norm, keys, values;

  Weights(const Layout& of, unsigned seed) : layout(of) {
    std::mt19937 random(seed);
    const int rows = of.heads * (of.plain + of.value_dim);
    query_norm = random_bf16(random, size_of(1, std::max(of.query_rank, 1)));
    latent_norm = random_bf16(random, size_of(1, of.rank));
    kv = random_bf16(random, size_of(rows, of.rank), 0.2f);
    device_query_norm = on_device(query_norm);
    device_latent_norm = on_device(latent_norm);
    keys = device_bytes(size_of(of.heads * of.rank, latent_padded(of.plain)) * 2, 0xff);
    values = device_bytes(size_of(of.heads * of.value_dim, latent_padded(of.rank)) * 2, 0xff);
    const DeviceBuffer codes = on_device(kv);
    repack_latent_heads_cuda({.codes = codes.data(),
                              .heads = of.heads,
                              .plain = of.plain,
                              .value_dim = of.value_dim,
                              .rank = of.rank,
                              .keys = keys.as<Bf16>(),
                              .values = values.as<Bf16>()},
                             nullptr);
  }
};

// What products give for the positions of one sequence.
struct Sequence {
  Layout layout;
  int length;
  std::vector<float> down, q, cos, sin;
  std::vector<std::int32_t> pages;

  Sequence(const Layout& of, int positions, int first_page, unsigned seed) : layout(of), length(positions) {
    std::mt19937 random(seed);
    down = random_floats(random, size_of(length, of.stride()), 2.0f);
    q = random_floats(random, size_of(length, of.heads * of.query_dim()));
    for (int i = 0; i < length * of.rotated / 2; ++i) {
      const float angle = static_cast<float>(random() % 1000) * 0.01f;
      cos.push_back(std::cos(angle));
      sin.push_back(std::sin(angle));
    }
    const int count = (length + page_size - 1) / page_size;
    for (int i = 0; i < count; ++i) pages.push_back(first_page + (i * 7 + 3) % count);
    if (count % 7 == 0) std::iota(pages.begin(), pages.end(), first_page);
  }
};

// Rows [first, first + count) of a sequence in a step.
struct Part {
  const Sequence* sequence;
  int first, count;
};

class Device {
 public:
  Device(Weights& weights, int pages)
      : weights_(weights),
        layout_(weights.layout),
        cache_(device_bytes(size_of(pages * page_size, layout_.width()) * dtype_bytes(layout_.dtype), 0xff)),
        slots_(pages * page_size) {}

  // Vectors of positions before `past`, as if rows had come before.
  void fill(const Sequence& sequence, int past) {
    std::mt19937 random(7);
    std::vector<std::uint8_t> bytes(cache_.size());
    cache_.copy_to(std::span(bytes));
    const std::size_t width = static_cast<std::size_t>(layout_.width());
    for (int position = 0; position < past; ++position) {
      const std::size_t slot = static_cast<std::size_t>(
          sequence.pages[static_cast<std::size_t>(position / page_size)] * page_size + position % page_size);
      const std::vector<float> vector = random_floats(random, width);
      for (std::size_t i = 0; i < width; ++i) {
        if (layout_.dtype == DType::f8_e4m3) {
          bytes[slot * width + i] = E4m3::from_float(vector[i]).bits;
        } else {
          const std::uint16_t bits = Bf16::from_float(vector[i]).bits;
          std::memcpy(&bytes[(slot * width + i) * 2], &bits, 2);
        }
      }
    }
    cache_ = on_device(bytes);
  }

  // What each row's heads give, [rows, heads, value_dim], of a step; launches have so many rows.
  std::vector<float> run(const std::vector<Part>& parts, int rows_at_once, int padding = 0) {
    std::vector<float> down, q, cos, sin;
    std::vector<std::int32_t> slots, table;
    std::vector<SequenceCuda> sequences;
    for (const Part& part : parts) {
      const Sequence& of = *part.sequence;
      sequences.push_back({.row_begin = static_cast<std::int32_t>(slots.size()),
                           .row_count = part.count,
                           .first_position = part.first,
                           .pages_at = static_cast<std::int32_t>(table.size())});
      table.insert(table.end(), of.pages.begin(), of.pages.end());
      const auto rows_of = [&](const std::vector<float>& from, std::vector<float>& to, int width) {
        to.insert(to.end(), from.begin() + std::int64_t{part.first} * width,
                  from.begin() + std::int64_t{part.first + part.count} * width);
      };
      rows_of(of.down, down, layout_.stride());
      rows_of(of.q, q, layout_.heads * layout_.query_dim());
      rows_of(of.cos, cos, layout_.rotated / 2);
      rows_of(of.sin, sin, layout_.rotated / 2);
      for (int position = part.first; position < part.first + part.count; ++position)
        slots.push_back(of.pages[static_cast<std::size_t>(position / page_size)] * page_size +
                        position % page_size);
    }
    const int real = static_cast<int>(slots.size()), rows = real + padding;
    for (int i = 0; i < padding; ++i) sequences.push_back({});
    slots.resize(static_cast<std::size_t>(rows), -1);
    down.resize(size_of(rows, layout_.stride()));
    q.resize(size_of(rows, layout_.heads * layout_.query_dim()));
    cos.resize(size_of(rows, layout_.rotated / 2));
    sin.resize(size_of(rows, layout_.rotated / 2));
    return run({down, q, cos, sin}, slots, table, sequences, rows_at_once, real);
  }

 private:
  struct Rows {
    const std::vector<float>&down, &q, &cos, &sin;
  };
  static void require(const Status& status) { NIBBLE_CHECK(status.ok(), status.message()); }

  std::vector<float> run(const Rows& from, const std::vector<std::int32_t>& slots,
                         const std::vector<std::int32_t>& table, const std::vector<SequenceCuda>& sequences,
                         int rows_at_once, int real) {
    const int rows = static_cast<int>(slots.size()), heads = layout_.heads,
              count = static_cast<int>(sequences.size());
    DeviceBuffer down = on_device(from.down), q = on_device(from.q), cos = on_device(from.cos),
                 sin = on_device(from.sin), kv_slots = on_device(slots), pages = on_device(table),
                 of_sequences = on_device(sequences);
    const auto work_bytes = static_cast<std::size_t>(latent_work_bytes(rows_at_once, count, heads));
    const int launches = (rows + rows_at_once - 1) / rows_at_once;
    DeviceBuffer work = device_bytes(static_cast<std::size_t>(launches) * work_bytes, 0xff);
    DeviceBuffer query_tiles =
        device_bytes(DenseShape{0, std::max(layout_.query_rank, 1)}.token_bytes(rows), 0);
    DeviceBuffer plain = device_bytes(size_of(rows_at_once * heads, latent_padded(layout_.plain)) * 2, 0xff),
                 absorbed = device_bytes(size_of(rows_at_once * heads, layout_.width()) * 2, 0),
                 sums = device_bytes(size_of(rows_at_once * heads, latent_padded(layout_.rank)) * 2, 0),
                 totals = device_bytes(size_of(latent_total_floats(processors_of_device()), 4), 0xff),
                 partials = device_bytes(size_of(latent_partial_floats(layout_.rank), 4), 0xff);
    const DenseShape out_shape{0, heads * layout_.value_dim};
    const LatentCudaLayer cache{cache_.data(), slots_, layout_.dtype, layout_.rank, layout_.rotated};
    latent_work_cuda({.sequences = of_sequences.as<SequenceCuda>(),
                      .sequence_count = count,
                      .heads = heads,
                      .rows = rows,
                      .rows_at_once = rows_at_once,
                      .work = work.as<std::uint8_t>()},
                     nullptr);
    std::vector<float> found;
    for (int first = 0; first < rows; first += rows_at_once) {
      const int now = std::min(rows_at_once, rows - first), pairs = layout_.rotated / 2;
      const float *const its_cos = cos.as<float>() + first * pairs, *const its_sin =
                                                                        sin.as<float>() + first * pairs;
      require(latent_rows_cuda({.down = down.as<float>() + size_of(first, layout_.stride()),
                                .stride = layout_.stride(),
                                .rows = now,
                                .eps = eps,
                                .query_rank = layout_.query_rank,
                                .query_norm = weights_.device_query_norm.as<Bf16>(),
                                .query_tiles = query_tiles.as<std::uint8_t>(),
                                .latent_at = layout_.query_rank,
                                .latent_norm = weights_.device_latent_norm.as<Bf16>(),
                                .cos = its_cos,
                                .sin = its_sin,
                                .kv_slots = kv_slots.as<std::int32_t>() + first,
                                .cache = cache},
                               nullptr));
      require(split_queries_cuda({.q = q.as<float>() + size_of(first, heads * layout_.query_dim()),
                                  .stride = heads * layout_.query_dim(),
                                  .rows = now,
                                  .heads = heads,
                                  .plain = layout_.plain,
                                  .rotated = layout_.rotated,
                                  .cos = its_cos,
                                  .sin = its_sin,
                                  .plain_rows = plain.as<Bf16>(),
                                  .rank = layout_.rank,
                                  .absorbed = absorbed.as<Bf16>()},
                                 nullptr));
      require(head_products_cuda({.weights = weights_.keys.as<Bf16>(),
                                  .heads = heads,
                                  .n = layout_.rank,
                                  .k = layout_.plain,
                                  .x = plain.as<Bf16>(),
                                  .rows = now,
                                  .y = absorbed.as<Bf16>(),
                                  .y_head = layout_.width()},
                                 nullptr));
      require(latent_attention_cuda(
          {.q = absorbed.as<Bf16>(),
           .rows = now,
           .heads = heads,
           .work = work.as<std::uint8_t>() + static_cast<std::size_t>(first / rows_at_once) * work_bytes,
           .sequence_count = count,
           .rows_at_once = rows_at_once,
           .page_table = pages.as<std::int32_t>(),
           .page_size = page_size,
           .cache = cache,
           .scale = scale,
           .out = sums.as<Bf16>(),
           .totals = totals.as<float>(),
           .partials = partials.as<float>()},
          nullptr));
      DeviceBuffer out = device_bytes(out_shape.token_bytes(now), 0);
      require(head_products_cuda({.weights = weights_.values.as<Bf16>(),
                                  .heads = heads,
                                  .n = layout_.value_dim,
                                  .k = layout_.rank,
                                  .x = sums.as<Bf16>(),
                                  .rows = now,
                                  .tiles = out.as<std::uint8_t>()},
                                 nullptr));
      std::vector<std::uint8_t> tiles(out_shape.token_bytes(now));
      out.copy_to(std::span(tiles));
      for (int row = 0; row < std::min(now, real - first); ++row) {
        for (int column = 0; column < out_shape.cols; ++column) {
          const std::size_t at = token_offset(out_shape.blocks(), row, column);
          found.push_back(Bf16{static_cast<std::uint16_t>(tiles[at] | tiles[at + 1] << 8)}.to_float());
        }
      }
    }
    return found;
  }

  Weights& weights_;
  Layout layout_;
  DeviceBuffer cache_;
  int slots_;
};

std::vector<float> on_cpu(const Weights& weights, const Sequence& sequence) {
  const Layout& layout = weights.layout;
  ThreadPool threads(1);
  OpContext context{.threads = threads, .activations = InputValues::bf16};
  const int rows = sequence.length, pages = 64;
  std::vector<std::byte> vectors(size_of(pages * page_size, layout.width()) * dtype_bytes(layout.dtype));
  std::vector<std::int32_t> table(sequence.pages.size());
  std::iota(table.begin(), table.end(), 0);
  const LatentLayer cache{vectors.data(), layout.dtype, pages, page_size, layout.rank, layout.rotated};
  const std::vector<SequenceRows> sequences{
      {.row_begin = 0, .row_count = rows, .first_position = 0, .pages = table}};
  std::vector<float> latents;
  for (int row = 0; row < rows; ++row) {
    const float* const from = sequence.down.data() + size_of(row, layout.stride()) + layout.query_rank;
    latents.insert(latents.end(), from, from + layout.width());
  }
  const LatentHeads heads{
      .kv = Bf16Matrix{weights.kv.data(), layout.heads * (layout.plain + layout.value_dim), layout.rank},
      .heads = layout.heads,
      .plain = layout.plain,
      .value_dim = layout.value_dim};
  std::vector<float> absorbed(size_of(rows * layout.heads, layout.width())),
      sums(size_of(rows * layout.heads, layout.rank)), out(size_of(rows * layout.heads, layout.value_dim)),
      room(static_cast<std::size_t>(latent_attention_room(1, layout.heads, layout.rank, rows)));
  absorb_queries(context, heads,
                 {.q = sequence.q.data(),
                  .rows = rows,
                  .rotated = layout.rotated,
                  .cos = sequence.cos.data(),
                  .sin = sequence.sin.data(),
                  .out = absorbed.data()});
  latent_append(context, {.latents = latents.data(),
                          .norm = weights.latent_norm.data(),
                          .eps = eps,
                          .cos = sequence.cos.data(),
                          .sin = sequence.sin.data(),
                          .sequences = sequences,
                          .cache = cache});
  latent_attention(context, {.q = absorbed.data(),
                             .heads = layout.heads,
                             .sequences = sequences,
                             .cache = cache,
                             .scale = scale,
                             .out = sums.data(),
                             .room = room});
  expand_values(context, heads, {.latents = sums.data(), .rows = rows, .out = out.data()});
  return out;
}

TEST_F(LatentOnTheGpu, IsNearTheCpus) {
  for (const Layout& layout :
       {Layout{3, 48, 16, 64, 48, 32},  // GLM's kind, small
        Layout{4, 24, 16, 32, 32, 48, DType::f8_e4m3}, Layout{34, 16, 32, 16, 144, 0}}) {
    SCOPED_TRACE(layout.rank);
    Weights weights(layout, 1);
    const Sequence sequence(layout, layout.heads > 32 ? 5 : small_cases ? 70 : 1100, 2, 2);
    Device device(weights, 20);
    const std::vector<float> found = device.run({{&sequence, 0, sequence.length}}, 1024),
                             expected = on_cpu(weights, sequence);
    ASSERT_EQ(found.size(), expected.size());
    double apart = 0, norm = 0;
    for (std::size_t i = 0; i < found.size(); ++i) {
      apart += (double{found[i]} - expected[i]) * (double{found[i]} - expected[i]);
      norm += double{expected[i]} * expected[i];
    }
    EXPECT_LT(std::sqrt(apart / norm), 0.01);
  }
}

// Rows behind a filled cache, past the end of a split. Many at once are tiles enough to leave whole; few are
// cut into splits.
TEST_F(LatentOnTheGpu, ASequencesBitsDependNeitherOnCutsNorOnCompany) {
  const int filled = 500, rows = small_cases ? 14 : 600, length = filled + rows;
  for (const Layout& layout :
       {Layout{32, 16, 16, 16, 32, 16}, Layout{40, 16, 32, 16, 144, 0, DType::f8_e4m3}}) {
    SCOPED_TRACE(layout.heads);
    Weights weights(layout, 3);
    const Sequence own(layout, length, 1, 4), other(layout, 9, 30, 5);
    Device alone(weights, 40), cut(weights, 40);
    alone.fill(own, filled);
    cut.fill(own, filled);
    const std::vector<float> expected = alone.run({{&own, filled, rows}}, 1024);
    const auto row_size = static_cast<std::ptrdiff_t>(size_of(layout.heads, layout.value_dim));
    const auto expect_rows = [&](const std::vector<float>& found, int at, int first, int count) {
      ASSERT_GE(std::ssize(found), (at + count) * row_size);
      EXPECT_TRUE(std::equal(found.begin() + at * row_size, found.begin() + (at + count) * row_size,
                             expected.begin() + (first - filled) * row_size))
          << first << ", " << count;
    };
    // In launches of eight rows, some of them begun by another's.
    expect_rows(cut.run({{&other, 0, 3}, {&own, filled, 7}}, 8), 3, filled, 7);
    expect_rows(cut.run({{&own, filled + 7, rows - 9}}, 1024), 0, filled + 7, rows - 9);
    // Decode, alone and beside the other, in a step that is filled up.
    expect_rows(cut.run({{&own, length - 2, 1}}, 8), 0, length - 2, 1);
    expect_rows(cut.run({{&other, 3, 1}, {&own, length - 1, 1}}, 8, 1), 1, length - 1, 1);
  }
}

void expect_heads_in_fp8_rounded_once(LatentHeadsRepack::Format format) {
  const bool by_row = format == LatentHeadsRepack::Format::e4m3_rows;
  const Layout layout{2, 24, 32, 16, 144, 0};
  std::mt19937 random(6);
  const int rows = layout.heads * (layout.plain + layout.value_dim), tiles = (layout.rank + 127) / 128;
  std::vector<std::uint8_t> codes;
  for (std::size_t i = 0; i < size_of(rows, layout.rank); ++i)
    codes.push_back(static_cast<std::uint8_t>(random() % 0x7f));
  const std::vector<float> scales =
      random_floats(random, by_row ? size_of(rows, 1) : size_of((rows + 127) / 128, tiles));
  DeviceBuffer device_codes = on_device(codes), device_scales = on_device(scales),
               keys = device_bytes(size_of(layout.heads * layout.rank, 64) * 2, 0xff),
               values = device_bytes(size_of(layout.heads * layout.value_dim, 192) * 2, 0xff);
  for (int head = 0; head < layout.heads; ++head) {  // one at a time
    repack_latent_heads_cuda({.format = format,
                              .codes = device_codes.data() + size_of(head * rows / layout.heads, layout.rank),
                              .scales = device_scales.data(),
                              .first_head = head,
                              .heads = 1,
                              .plain = layout.plain,
                              .value_dim = layout.value_dim,
                              .rank = layout.rank,
                              .keys = keys.as<Bf16>(),
                              .values = values.as<Bf16>()},
                             nullptr);
  }
  const auto expected = [&](int row, int column) {
    const std::size_t of_value = by_row ? static_cast<std::size_t>(row)
                                        : size_of(row / 128, tiles) + static_cast<std::size_t>(column / 128);
    return Bf16::from_float(
        E4m3{codes[size_of(row, layout.rank) + static_cast<std::size_t>(column)]}.to_float() *
        scales[of_value]);
  };
  std::vector<Bf16> found_keys(keys.size() / 2), found_values(values.size() / 2);
  keys.copy_to(std::span(found_keys));
  values.copy_to(std::span(found_values));
  for (int head = 0; head < layout.heads; ++head) {
    const int first = head * (layout.plain + layout.value_dim);
    for (int column = 0; column < layout.rank; ++column) {
      for (int i = 0; i < 64; ++i) {
        EXPECT_EQ(found_keys[size_of(head * layout.rank + column, 64) + static_cast<std::size_t>(i)],
                  i < layout.plain ? expected(first + i, column) : Bf16{});
      }
    }
    for (int i = 0; i < layout.value_dim; ++i) {
      for (int column = 0; column < 192; ++column) {
        EXPECT_EQ(found_values[size_of(head * layout.value_dim + i, 192) + static_cast<std::size_t>(column)],
                  column < layout.rank ? expected(first + layout.plain + i, column) : Bf16{});
      }
    }
  }
}

TEST_F(LatentOnTheGpu, HeadsMatricesInFp8AreRoundedOnce) {
  expect_heads_in_fp8_rounded_once(LatentHeadsRepack::Format::e4m3_tiles);
  expect_heads_in_fp8_rounded_once(LatentHeadsRepack::Format::e4m3_rows);
}

TEST_F(LatentOnTheGpu, TakesTheShapesOfTheFamilyAndRefusesOthersByName) {
  EXPECT_TRUE(latent_cuda_takes(512, 64));
  EXPECT_FALSE(latent_cuda_takes(528, 32));
  EXPECT_FALSE(latent_cuda_takes(512, 128));
  EXPECT_FALSE(latent_cuda_takes(40, 16));
  const LatentAttentionCudaArgs wide{
      .rows = 1, .heads = 1, .page_size = 64, .cache = {.rank = 528, .rotated = 32}},
      odd{.rows = 1, .heads = 1, .page_size = 96, .cache = {.rank = 512, .rotated = 64}};
  EXPECT_NE(latent_attention_cuda(wide, nullptr).message().find("latents of 528"), std::string::npos);
  EXPECT_NE(latent_attention_cuda(odd, nullptr).message().find("not 96"), std::string::npos);
  EXPECT_NE(head_products_cuda({.n = 24, .k = 8, .rows = 1}, nullptr).message().find("not 24 x 8"),
            std::string::npos);
}

}  // namespace
}  // namespace nibble
