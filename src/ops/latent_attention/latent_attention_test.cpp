#include "ops/latent_attention/latent_attention.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>

#include "formats/e4m3.h"
#include "formats/fp8_block.h"
#include "ops/latent_attention/latent_kernels.h"
#include "ops/op_test_util.h"
#include "ops/row/row_kernels.h"

namespace nibble {
namespace {

struct Layout {
  int heads, plain, rotated, value_dim, rank, page_size;
  DType dtype;

  int query_dim() const { return plain + rotated; }
  int width() const { return rank + rotated; }
  std::string name() const {
    return std::to_string(heads) + " heads " + std::to_string(plain) + "+" + std::to_string(rotated) +
           " rank " + std::to_string(rank) + " page " + std::to_string(page_size) + " " +
           std::string(dtype_name(dtype));
  }
};

const Layout layouts[] = {
    {4, 32, 16, 32, 48, 16, DType::f32},    {8, 32, 32, 48, 64, 16, DType::bf16},
    {3, 48, 64, 16, 96, 64, DType::bf16},   {1, 8, 16, 8, 16, 256, DType::f8_e4m3},
    {70, 16, 16, 16, 32, 32, DType::bf16},  // more heads than one job has
    {2, 128, 64, 128, 512, 16, DType::f32},
};

float stored(float x, DType dtype) {
  if (dtype == DType::bf16) return Bf16::from_float(x).to_float();
  return dtype == DType::f8_e4m3 ? E4m3::from_float(x).to_float() : x;
}

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

std::size_t size_of(std::int64_t rows, std::int64_t width) { return static_cast<std::size_t>(rows * width); }

constexpr float eps = 1e-6f, scale = 0.11f;

// One layer's weights.
struct Weights {
  std::vector<Bf16> norm, kv;
  LatentHeads heads;

  Weights(const Layout& layout, unsigned seed) {
    std::mt19937 random(seed);
    const int rows = layout.heads * (layout.plain + layout.value_dim);
    norm = random_bf16(random, size_of(1, layout.rank));
    kv = random_bf16(random, size_of(rows, layout.rank), 0.2f);
    heads = {.kv = Bf16Matrix{kv.data(), rows, layout.rank},
             .heads = layout.heads,
             .plain = layout.plain,
             .value_dim = layout.value_dim};
  }
};

// One sequence as projections leave it, and a cache whose pages are handed out in a shuffled order.
struct Sequence {
  Layout layout;
  const Weights& weights;
  int length;
  std::vector<float> q, latents, cos, sin, room;
  std::vector<std::byte> vectors;
  std::vector<std::int32_t> pages;

  Sequence(const Layout& shape, const Weights& of, int positions, unsigned seed)
      : layout(shape), weights(of), length(positions) {
    std::mt19937 random(seed);
    q = random_floats(random, size_of(length, shape.heads * shape.query_dim()));
    latents = random_floats(random, size_of(length, shape.width()), 2.0f);
    for (int i = 0; i < length * shape.rotated / 2; ++i) {
      const float angle = static_cast<float>(random() % 1000) * 0.01f;
      cos.push_back(std::cos(angle));
      sin.push_back(std::sin(angle));
    }
    const int page_count = (length + shape.page_size - 1) / shape.page_size;
    for (std::int32_t page = 0; page < page_count; ++page) pages.push_back(page + 2);
    std::shuffle(pages.begin(), pages.end(), random);
    vectors.assign(size_of((page_count + 2) * shape.page_size, shape.width()) * dtype_bytes(shape.dtype),
                   std::byte{0xff});  // NaN wherever nothing was written
  }

  LatentLayer cache() {
    return {.vectors = vectors.data(),
            .dtype = layout.dtype,
            .pages = static_cast<int>(pages.size()) + 2,
            .page_size = layout.page_size,
            .rank = layout.rank,
            .rotated = layout.rotated};
  }

  void append(OpContext& context, int begin, int count) {
    const SequenceRows rows{.row_count = count, .first_position = begin, .pages = pages};
    std::vector<float> projected(latents.begin() + begin * layout.width(),
                                 latents.begin() + (begin + count) * layout.width());
    latent_append(context, {.latents = projected.data(),
                            .norm = weights.norm.data(),
                            .eps = eps,
                            .cos = cos.data() + begin * layout.rotated / 2,
                            .sin = sin.data() + begin * layout.rotated / 2,
                            .sequences = {&rows, 1},
                            .cache = cache()});
  }

  // Rows [begin, begin + count) of what attention gives: [count, heads, value_dim].
  std::vector<float> attend(OpContext& context, int begin, int count) {
    const SequenceRows rows{.row_count = count, .first_position = begin, .pages = pages};
    std::vector<float> absorbed(size_of(count, layout.heads * layout.width()), NAN),
        sums(size_of(count, layout.heads * layout.rank), NAN),
        out(size_of(count, layout.heads * layout.value_dim), NAN);
    absorb_queries(context, weights.heads,
                   {.q = q.data() + std::int64_t{begin} * layout.heads * layout.query_dim(),
                    .rows = count,
                    .rotated = layout.rotated,
                    .cos = cos.data() + begin * layout.rotated / 2,
                    .sin = sin.data() + begin * layout.rotated / 2,
                    .out = absorbed.data()});
    latent_attention(context, {.q = absorbed.data(),
                               .heads = layout.heads,
                               .sequences = {&rows, 1},
                               .cache = cache(),
                               .scale = scale,
                               .out = sums.data(),
                               .room = room});
    expand_values(context, weights.heads, {.latents = sums.data(), .rows = count, .out = out.data()});
    return out;
  }

  // Runs positions in chunks, each appended and then attended to, as a prefill does.
  std::vector<float> run(OpContext& context, const std::vector<int>& chunks) {
    std::vector<float> out;
    int begin = 0;
    for (std::size_t i = 0; begin < length; ++i) {
      const int count = std::min(chunks[i % chunks.size()], length - begin);
      append(context, begin, count);
      const std::vector<float> rows = attend(context, begin, count);
      out.insert(out.end(), rows.begin(), rows.end());
      begin += count;
    }
    return out;
  }

  void take_room(int threads) {
    room.assign(static_cast<std::size_t>(latent_attention_room(threads, layout.heads, layout.rank, length)),
                NAN);
  }
};

// ---- the formula with keys and values of each head, in double precision
// -------------------------------------

class Unabsorbed {
 public:
  explicit Unabsorbed(const Sequence& of) : of_(of) {}

  // What attention gives for a head of the row at `position`.
  std::vector<double> out(int position, int head) const {
    const Layout& layout = of_.layout;
    const std::vector<double> q = query(position, head);
    std::vector<double> sum(size_of(1, layout.value_dim));
    double weights = 0;
    for (int j = 0; j <= position; ++j) {
      const std::vector<double> vector = vector_of(j);
      double score = 0;
      for (int i = 0; i < layout.plain; ++i) score += q[size_of(1, i)] * head_row(head, i, vector);
      for (int i = 0; i < layout.rotated; ++i)
        score += q[size_of(1, layout.plain + i)] * vector[size_of(1, layout.rank + i)];
      const double weight = std::exp(score * scale);
      weights += weight;
      for (int i = 0; i < layout.value_dim; ++i)
        sum[size_of(1, i)] += weight * head_row(head, layout.plain + i, vector);
    }
    for (double& value : sum) value /= weights;
    return sum;
  }

 private:
  double head_row(int head, int row, const std::vector<double>& vector) const {
    const Layout& layout = of_.layout;
    const std::size_t first = size_of(head * (layout.plain + layout.value_dim) + row, layout.rank);
    double sum = 0;
    for (std::size_t d = 0; d < size_of(1, layout.rank); ++d)
      sum += of_.weights.kv[first + d].to_float() * vector[d];
    return sum;
  }

  void rotate(int position, double* x) const {
    const int pairs = of_.layout.rotated / 2;
    for (int i = 0; i < pairs; ++i) {
      const std::size_t at = size_of(position, pairs) + size_of(1, i);
      const double a = x[2 * i], b = x[2 * i + 1];
      x[2 * i] = a * of_.cos[at] - b * of_.sin[at];
      x[2 * i + 1] = b * of_.cos[at] + a * of_.sin[at];
    }
  }

  std::vector<double> query(int position, int head) const {
    const Layout& layout = of_.layout;
    const float* from = of_.q.data() + (position * layout.heads + head) * layout.query_dim();
    std::vector<double> q(from, from + layout.query_dim());
    rotate(position, q.data() + layout.plain);
    return q;
  }

  std::vector<double> vector_of(int position) const {
    const Layout& layout = of_.layout;
    const float* from = of_.latents.data() + position * layout.width();
    std::vector<double> vector(from, from + layout.width());
    double squares = 0;
    for (int d = 0; d < layout.rank; ++d) squares += vector[size_of(1, d)] * vector[size_of(1, d)];
    for (int d = 0; d < layout.rank; ++d)
      vector[size_of(1, d)] *=
          of_.weights.norm[size_of(1, d)].to_float() / std::sqrt(squares / layout.rank + eps);
    rotate(position, vector.data() + layout.rank);
    for (double& value : vector) value = stored(static_cast<float>(value), layout.dtype);
    return vector;
  }

  const Sequence& of_;
};

TEST(LatentAttention, AgreesWithKeysAndValuesByHead) {
  ThreadPool threads(2);
  OpContext context{threads};
  for (const Layout& layout : layouts) {
    const Weights weights(layout, 3);
    Sequence sequence(layout, weights, 300, 1);
    const std::vector<float> out = sequence.run(context, {300});
    const Unabsorbed unabsorbed(sequence);
    // A rounding to the cache's type that falls the other way is one part in 2^4 of a value in e4m3.
    const double near = layout.dtype == DType::f32 ? 2e-5 : layout.dtype == DType::bf16 ? 2e-3 : 2e-2;
    for (int position : {0, 1, 15, 16, 255, 256, 299}) {
      for (int head = 0; head < layout.heads; head += 1 + layout.heads / 3) {
        const std::vector<double> expected = unabsorbed.out(position, head);
        for (int d = 0; d < layout.value_dim; d += 5) {
          ASSERT_NEAR(out[size_of(position * layout.heads + head, layout.value_dim) + size_of(1, d)],
                      expected[size_of(1, d)], near)
              << layout.name() << " position " << position << " head " << head;
        }
      }
    }
  }
}

TEST(LatentAttention, BitsDependOnNeitherCutsNorThreadsNorInstructionSets) {
  ThreadPool one(1);
  for (const InputValues activations : {InputValues::any_float, InputValues::bf16}) {
    for (const Layout& layout : {layouts[0], layouts[1], layouts[4]}) {
      const int length = layout.heads > 8 ? 90 : 280;
      const Weights weights(layout, 3);
      OpContext plain{.threads = one,
                      .rows = row_kernels().back(),
                      .latents = latent_kernels().back(),
                      .activations = activations};
      const std::vector<float> expected = Sequence(layout, weights, length, 2).run(plain, {length});
      for (int threads : {1, 2, 5}) {
        ThreadPool pool(threads);
        OpContext context{.threads = pool, .activations = activations};
        for (const std::vector<int>& chunks :
             std::vector<std::vector<int>>{{256}, {16, 1, 77}, {255, 1, 1, 1}}) {
          Sequence again(layout, weights, length, 2);
          if (threads != 2) again.take_room(threads);
          EXPECT_TRUE(same_bits(again.run(context, chunks), expected)) << layout.name() << ", " << threads;
        }
      }
    }
  }
}

RC_GTEST_PROP(LatentAttention, AnyCutsGiveEqualBits, ()) {
  const int length = *rc::gen::inRange(1, 300);
  const auto chunks = *rc::gen::nonEmpty(rc::gen::container<std::vector<int>>(rc::gen::inRange(1, 90)));
  const Layout layout{3, 16, 16, 16, 32, 16, DType::bf16};
  const Weights weights(layout, 5);
  ThreadPool pool(2);
  OpContext context{pool};
  RC_ASSERT(same_bits(Sequence(layout, weights, length, 9).run(context, chunks),
                      Sequence(layout, weights, length, 9).run(context, {length})));
}

TEST(LatentAttention, ALongRowMayBeSpreadOverAnyNumberOfThreads) {
  const Layout layout{8, 16, 16, 16, 32, 16, DType::bf16};
  const Weights weights(layout, 4);
  ThreadPool one(1);
  OpContext single{one};
  Sequence sequence(layout, weights, 3000, 7);
  sequence.append(single, 0, 3000);
  const std::vector<float> expected = sequence.attend(single, 2999, 1);
  for (int threads : {2, 3, 7, 20}) {
    ThreadPool pool(threads);
    OpContext context{pool};
    sequence.room.clear();
    EXPECT_TRUE(same_bits(sequence.attend(context, 2999, 1), expected)) << "without room, " << threads;
    sequence.take_room(threads);
    EXPECT_TRUE(same_bits(sequence.attend(context, 2999, 1), expected)) << threads << " threads";
  }
}

// A decode row and a chunk of two sequences, whose pages lie in one cache.
TEST(LatentAttention, ARowsBitsDoNotDependOnItsBatchMates) {
  const Layout layout{5, 16, 16, 16, 32, 16, DType::bf16};
  const Weights weights(layout, 4);
  ThreadPool pool(3);
  OpContext context{pool};
  Sequence first(layout, weights, 600, 1), second(layout, weights, 300, 2);
  first.append(context, 0, 600);
  second.append(context, 0, 300);
  const std::vector<float> alone = first.attend(context, 599, 1), chunk = second.attend(context, 280, 20);

  Sequence both = first;
  both.vectors.insert(both.vectors.end(), second.vectors.begin(), second.vectors.end());
  for (std::int32_t& page : second.pages) page += static_cast<std::int32_t>(first.pages.size()) + 2;
  const SequenceRows rows[] = {{0, 1, 599, first.pages}, {1, 20, 280, second.pages}};
  std::vector<float> q(first.q.end() - layout.heads * layout.query_dim(), first.q.end());
  q.insert(q.end(), second.q.end() - 20 * layout.heads * layout.query_dim(), second.q.end());
  std::vector<float> cos(first.cos.end() - layout.rotated / 2, first.cos.end()),
      sin(first.sin.end() - layout.rotated / 2, first.sin.end());
  cos.insert(cos.end(), second.cos.end() - 20 * layout.rotated / 2, second.cos.end());
  sin.insert(sin.end(), second.sin.end() - 20 * layout.rotated / 2, second.sin.end());
  std::vector<float> absorbed(size_of(21, layout.heads * layout.width())),
      sums(size_of(21, layout.heads * layout.rank)), out(size_of(21, layout.heads * layout.value_dim));
  absorb_queries(context, weights.heads,
                 {.q = q.data(),
                  .rows = 21,
                  .rotated = layout.rotated,
                  .cos = cos.data(),
                  .sin = sin.data(),
                  .out = absorbed.data()});
  LatentLayer cache = both.cache();
  cache.pages = static_cast<int>(first.pages.size() + second.pages.size()) + 4;
  latent_attention(context, {.q = absorbed.data(),
                             .heads = layout.heads,
                             .sequences = rows,
                             .cache = cache,
                             .scale = scale,
                             .out = sums.data()});
  expand_values(context, weights.heads, {.latents = sums.data(), .rows = 21, .out = out.data()});
  std::vector<float> expected = alone;
  expected.insert(expected.end(), chunk.begin(), chunk.end());
  EXPECT_TRUE(same_bits(out, expected));
}

TEST(LatentAttention, ANotANumberReachesWhoSeesItAndNoOther) {
  const Layout layout{3, 16, 16, 16, 32, 16, DType::bf16};
  const Weights weights(layout, 4);
  ThreadPool pool(1);
  OpContext context{pool};
  const std::vector<float> clean = Sequence(layout, weights, 60, 5).run(context, {60});
  Sequence sequence(layout, weights, 60, 5);
  sequence.latents[size_of(25, layout.width()) + 40] = NAN;  // of the rotated key
  const std::vector<float> out = sequence.run(context, {60});
  const std::size_t width = size_of(layout.heads, layout.value_dim);
  for (std::size_t i = 0; i < out.size(); ++i) {
    if (i / width >= 25) {
      ASSERT_TRUE(std::isnan(out[i])) << i;
    } else {
      ASSERT_EQ(out[i], clean[i]) << i;
    }
  }
}

// Rows of a head begin within a tile of scales, as those of heads of 192 + 256 rows do.
TEST(LatentAttention, HeadsInFp8BlocksAreThoseOfTheirValues) {
  const Layout layout{3, 96, 16, 64, 144, 16, DType::f32};
  std::mt19937 random(8);
  const int rows = layout.heads * (layout.plain + layout.value_dim);
  std::vector<E4m3> codes;
  for (float value : random_floats(random, size_of(rows, layout.rank), 20.0f))
    codes.push_back(E4m3::from_float(value));
  std::vector<float> scales;
  for (std::int64_t i = 0; i < fp8_tiles(rows) * fp8_tiles(layout.rank); ++i)
    scales.push_back(0.01f * static_cast<float>(1 + random() % 4));
  Weights fp8(layout, 3), plain(layout, 3);
  fp8.heads.kv = Fp8BlockMatrix{codes.data(), {.floats = scales.data()}, rows, layout.rank};
  // Powers of two times codes are bfloat16 values.
  for (float& value : scales) value = std::exp2(std::floor(std::log2(value)));
  for (int row = 0; row < rows; ++row) {
    for (int d = 0; d < layout.rank; ++d) {
      const std::size_t tile = static_cast<std::size_t>(row / 128 * fp8_tiles(layout.rank) + d / 128);
      plain.kv[size_of(row, layout.rank) + size_of(1, d)] =
          Bf16::from_float(codes[size_of(row, layout.rank) + size_of(1, d)].to_float() * scales[tile]);
    }
  }
  ThreadPool pool(2);
  OpContext context{pool};
  EXPECT_TRUE(same_bits(Sequence(layout, fp8, 40, 1).run(context, {40}),
                        Sequence(layout, plain, 40, 1).run(context, {40})));
}

TEST(LatentAttention, SaysWhichShapesItTakes) {
  for (int rank : {16, 48, 512}) EXPECT_TRUE(latent_attention_takes(rank, 64)) << rank;
  for (int rank : {-16, 0, 8, 40, 528}) EXPECT_FALSE(latent_attention_takes(rank, 64)) << rank;
  for (int rotated : {-16, 0, 8, 144}) EXPECT_FALSE(latent_attention_takes(512, rotated)) << rotated;
}

}  // namespace
}  // namespace nibble
