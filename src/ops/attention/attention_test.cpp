#include "ops/attention/attention.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "ops/attention/attention_kernels.h"
#include "ops/op_test_util.h"

namespace nibble {
namespace {

struct Layout {
  int heads, kv_heads, head_dim, page_size, window;
  bool sinks;
  DType dtype;
};

// One sequence's queries, keys and values, and a cache whose pages are handed out in a shuffled order.
struct Sequence {
  Layout layout;
  int length;
  std::vector<float> q, k, v, sinks;
  std::vector<std::byte> keys, values;
  std::vector<std::int32_t> pages;

  Sequence(const Layout& shape, int positions, unsigned seed) : layout(shape), length(positions) {
    std::mt19937 random(seed);
    const std::size_t n = static_cast<std::size_t>(length * shape.head_dim);
    q = random_floats(random, n * static_cast<std::size_t>(shape.heads));
    k = random_floats(random, n * static_cast<std::size_t>(shape.kv_heads));
    v = random_floats(random, n * static_cast<std::size_t>(shape.kv_heads));
    sinks = random_floats(random, static_cast<std::size_t>(shape.heads));
    const int page_count = (length + shape.page_size - 1) / shape.page_size;
    for (std::int32_t page = 0; page < page_count; ++page) pages.push_back(page + 3);
    std::shuffle(pages.begin(), pages.end(), random);
    const std::size_t bytes =
        static_cast<std::size_t>((page_count + 3) * shape.page_size * shape.kv_heads * shape.head_dim) *
        dtype_bytes(shape.dtype);
    keys.assign(bytes, std::byte{0xff});  // NaN wherever nothing was written
    values.assign(bytes, std::byte{0xff});
  }

  KvLayer cache() {
    return {keys.data(), values.data(), layout.dtype, layout.page_size, layout.kv_heads, layout.head_dim};
  }

  // Runs positions in chunks, each appended and then attended to, as a prefill does.
  std::vector<float> run(OpContext& context, int chunk) {
    std::vector<float> out(q.size(), NAN);
    for (int begin = 0; begin < length; begin += chunk) {
      const SequenceRows rows{.row_begin = 0,
                              .row_count = std::min(chunk, length - begin),
                              .first_position = begin,
                              .pages = pages};
      const std::int64_t kv_at = static_cast<std::int64_t>(begin) * layout.kv_heads * layout.head_dim;
      const std::int64_t q_at = static_cast<std::int64_t>(begin) * layout.heads * layout.head_dim;
      kv_append(
          context,
          {.keys = k.data() + kv_at, .values = v.data() + kv_at, .sequences = {&rows, 1}, .cache = cache()});
      paged_attention(context, {.q = q.data() + q_at,
                                .heads = layout.heads,
                                .sequences = {&rows, 1},
                                .cache = cache(),
                                .window = layout.window,
                                .sinks = layout.sinks ? sinks.data() : nullptr,
                                .scale = 0.125f,
                                .out = out.data() + q_at});
    }
    return out;
  }

  double exact(int position, int head, int dimension) const {
    const int kv_head = head / (layout.heads / layout.kv_heads);
    const int first = layout.window > 0 ? std::max(0, position - layout.window + 1) : 0;
    const auto stored = [&](float x) {
      return layout.dtype == DType::f32 ? x : Bf16::from_float(x).to_float();
    };
    double weights = layout.sinks ? std::exp(static_cast<double>(sinks[static_cast<std::size_t>(head)])) : 0,
           sum = 0;
    for (int j = first; j <= position; ++j) {
      double score = 0;
      for (int d = 0; d < layout.head_dim; ++d) {
        score += static_cast<double>(
                     q[static_cast<std::size_t>((position * layout.heads + head) * layout.head_dim + d)]) *
                 stored(k[static_cast<std::size_t>((j * layout.kv_heads + kv_head) * layout.head_dim + d)]);
      }
      const double weight = std::exp(score * 0.125);
      weights += weight;
      sum +=
          weight *
          stored(v[static_cast<std::size_t>((j * layout.kv_heads + kv_head) * layout.head_dim + dimension)]);
    }
    return sum / weights;
  }
};

const Layout layouts[] = {
    {4, 2, 64, 16, 0, true, DType::f32},  {8, 1, 32, 16, 0, false, DType::f32},
    {2, 2, 64, 16, 32, true, DType::f32}, {4, 1, 64, 7, 128, true, DType::bf16},
    {1, 1, 96, 64, 1, false, DType::f32}, {4, 4, 128, 16, 300, false, DType::bf16},
};

TEST(PagedAttention, AgreesWithDoublePrecision) {
  ThreadPool threads(2);
  OpContext context{threads};
  for (const Layout& layout : layouts) {
    Sequence sequence(layout, 600, 1);
    const std::vector<float> out = sequence.run(context, 600);
    for (int position : {0, 1, 31, 32, 127, 128, 255, 256, 257, 511, 512, 599}) {
      for (int head = 0; head < layout.heads; ++head) {
        for (int d = 0; d < layout.head_dim; d += 13) {
          ASSERT_NEAR(out[static_cast<std::size_t>((position * layout.heads + head) * layout.head_dim + d)],
                      sequence.exact(position, head, d), 2e-6)
              << "window " << layout.window << " position " << position;
        }
      }
    }
  }
}

TEST(PagedAttention, BitsDependOnNeitherChunksNorThreads) {
  ThreadPool one(1), two(2);
  OpContext single{one}, pair{two};
  for (const Layout& layout : layouts) {
    Sequence whole(layout, 400, 2);
    const std::vector<float> expected = whole.run(single, 400);
    for (int chunk : {1, 16, 64, 333}) {
      Sequence again(layout, 400, 2);
      ASSERT_EQ(again.run(pair, chunk), expected) << "chunk " << chunk << " window " << layout.window;
    }
  }
}

TEST(PagedAttention, EveryKernelGivesTheScalarBits) {
  ThreadPool threads(1);
  OpContext plain{.threads = threads, .attention = attention_kernels().back()};
  for (const AttentionKernels& kernel : attention_kernels()) {
    if (!kernel.supported()) continue;
    OpContext context{.threads = threads, .attention = kernel};
    for (const Layout& layout : layouts) {
      Sequence a(layout, 300, 6), b(layout, 300, 6);
      for (float& x : a.q) x *= 30;  // scores far enough apart that some weights vanish
      b.q = a.q;
      ASSERT_EQ(a.run(context, 300), b.run(plain, 300)) << kernel.name << " head_dim " << layout.head_dim;
    }
  }
}

TEST(PagedAttention, SequencesOfOneStepDoNotMeet) {
  ThreadPool threads(2);
  OpContext context{threads};
  const Layout layout{2, 1, 32, 16, 0, true, DType::f32};
  Sequence a(layout, 40, 3), b(layout, 25, 4);
  const std::vector<float> a_alone = a.run(context, 40);
  // Both in one cache: b's pages are put behind a's.
  std::vector<std::byte> keys(a.keys.size() + b.keys.size(), std::byte{0xff}),
      values(keys.size(), std::byte{0xff});
  std::vector<std::int32_t> b_pages = b.pages;
  for (std::int32_t& page : b_pages) page += 6;
  KvLayer cache = a.cache();
  cache.keys = keys.data();
  cache.values = values.data();
  std::vector<float> q = b.q, k = b.k, v = b.v, out(a.q.size() + b.q.size());
  q.insert(q.end(), a.q.begin(), a.q.end());
  k.insert(k.end(), a.k.begin(), a.k.end());
  v.insert(v.end(), a.v.begin(), a.v.end());
  const SequenceRows rows[] = {{0, 25, 0, b_pages}, {25, 40, 0, a.pages}};
  kv_append(context, {.keys = k.data(), .values = v.data(), .sequences = rows, .cache = cache});
  paged_attention(context, {.q = q.data(),
                            .heads = 2,
                            .sequences = rows,
                            .cache = cache,
                            .sinks = a.sinks.data(),
                            .scale = 0.125f,
                            .out = out.data()});
  EXPECT_TRUE(
      std::equal(a_alone.begin(), a_alone.end(), out.begin() + static_cast<std::ptrdiff_t>(b.q.size())));
}

TEST(PagedAttention, SaysWhichHeadSizesItTakes) {
  for (int head_dim : {32, 64, 96, 128, 256}) EXPECT_TRUE(attention_takes_head_dim(head_dim));
  for (int head_dim : {-32, 0, 16, 48, 80, 288}) EXPECT_FALSE(attention_takes_head_dim(head_dim));
}

TEST(PagedAttention, ANotANumberInAKeyReachesEveryQueryThatSeesIt) {
  ThreadPool threads(1);
  OpContext context{threads};
  const Layout layout{1, 1, 32, 16, 0, true, DType::f32};
  Sequence sequence(layout, 20, 5);
  sequence.k[10 * 32] = NAN;
  const std::vector<float> out = sequence.run(context, 20);
  EXPECT_TRUE(std::isfinite(out[9 * 32]));
  for (std::size_t position = 10; position < 20; ++position) EXPECT_TRUE(std::isnan(out[position * 32]));
}

}  // namespace
}  // namespace nibble
