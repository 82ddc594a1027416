#include "ops/attention/attention.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <string>

#include "formats/e4m3.h"
#include "ops/attention/attention_kernels.h"
#include "ops/op_test_util.h"

namespace nibble {
namespace {

struct Layout {
  int heads, kv_heads, head_dim, page_size, window;
  bool sinks;
  DType dtype;

  std::string name() const {
    return std::to_string(heads) + "/" + std::to_string(kv_heads) + "/" + std::to_string(head_dim) +
           " page " + std::to_string(page_size) + " window " + std::to_string(window) + " " +
           std::string(dtype_name(dtype));
  }
};

float stored(float x, DType dtype) {
  if (dtype == DType::bf16) return Bf16::from_float(x).to_float();
  return dtype == DType::f8_e4m3 ? E4m3::from_float(x).to_float() : x;
}

// Bits, so that a NaN equals itself and -0 differs from 0.
bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

// One sequence's queries, keys and values, and a cache whose pages are handed out in a shuffled order.
struct Sequence {
  Layout layout;
  int length;
  std::vector<float> q, k, v, sinks;
  std::vector<std::byte> keys, values;
  std::vector<std::int32_t> pages;
  std::vector<float> room;

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

  // Every row may then be spread over the threads.
  void take_room(int threads) {
    room.assign(static_cast<std::size_t>(
                    attention_room(threads, layout.heads, layout.kv_heads, layout.head_dim, length)),
                NAN);
  }

  KvLayer cache() {
    return {.keys = keys.data(),
            .values = values.data(),
            .dtype = layout.dtype,
            .pages = static_cast<int>(pages.size()) + 3,
            .page_size = layout.page_size,
            .kv_heads = layout.kv_heads,
            .head_dim = layout.head_dim};
  }

  void append(OpContext& context, int begin, int count) {
    const SequenceRows rows{.row_count = count, .first_position = begin, .pages = pages};
    const std::int64_t at = static_cast<std::int64_t>(begin) * layout.kv_heads * layout.head_dim;
    kv_append(context,
              {.keys = k.data() + at, .values = v.data() + at, .sequences = {&rows, 1}, .cache = cache()});
  }

  // out: [count, heads, head_dim]
  void attend(OpContext& context, int begin, int count, float* out) {
    const SequenceRows rows{.row_count = count, .first_position = begin, .pages = pages};
    paged_attention(context,
                    {.q = q.data() + static_cast<std::int64_t>(begin) * layout.heads * layout.head_dim,
                     .heads = layout.heads,
                     .sequences = {&rows, 1},
                     .cache = cache(),
                     .window = layout.window,
                     .sinks = layout.sinks ? sinks.data() : nullptr,
                     .scale = 0.125f,
                     .out = out,
                     .room = room});
  }

  // Runs positions in chunks, each appended and then attended to, as a prefill does.
  std::vector<float> run(OpContext& context, int chunk) {
    std::vector<float> out(q.size(), NAN);
    for (int begin = 0; begin < length; begin += chunk) {
      const int count = std::min(chunk, length - begin);
      append(context, begin, count);
      attend(context, begin, count,
             out.data() + static_cast<std::int64_t>(begin) * layout.heads * layout.head_dim);
    }
    return out;
  }

  // The last position alone, as a decode step after a prefill.
  std::vector<float> run_last(OpContext& context) {
    append(context, 0, length);
    std::vector<float> out(static_cast<std::size_t>(layout.heads * layout.head_dim), NAN);
    attend(context, length - 1, 1, out.data());
    return out;
  }

  double exact(int position, int head, int dimension) const {
    const int kv_head = head / (layout.heads / layout.kv_heads);
    const int first = layout.window > 0 ? std::max(0, position - layout.window + 1) : 0;
    const auto kv_at = [&](int j, int d) {
      return static_cast<std::size_t>((j * layout.kv_heads + kv_head) * layout.head_dim + d);
    };
    double weights = layout.sinks ? std::exp(static_cast<double>(sinks[static_cast<std::size_t>(head)])) : 0,
           sum = 0;
    for (int j = first; j <= position; ++j) {
      double score = 0;
      for (int d = 0; d < layout.head_dim; ++d) {
        score += static_cast<double>(
                     q[static_cast<std::size_t>((position * layout.heads + head) * layout.head_dim + d)]) *
                 stored(k[kv_at(j, d)], layout.dtype);
      }
      const double weight = std::exp(score * 0.125);
      weights += weight;
      sum += weight * stored(v[kv_at(j, dimension)], layout.dtype);
    }
    return sum / weights;
  }
};

const Layout layouts[] = {
    {4, 2, 64, 16, 0, true, DType::f32},         {8, 1, 64, 16, 0, true, DType::bf16},
    {8, 1, 32, 16, 0, false, DType::f32},        {2, 2, 64, 16, 32, true, DType::f32},
    {4, 1, 64, 32, 128, true, DType::bf16},      {1, 1, 96, 64, 1, false, DType::f32},
    {4, 4, 128, 16, 300, false, DType::bf16},    {16, 1, 32, 16, 0, true, DType::bf16},
    {10, 2, 64, 256, 128, true, DType::bf16},    {3, 1, 256, 16, 0, true, DType::f8_e4m3},
    {14, 2, 64, 16, 100, false, DType::f8_e4m3}, {72, 1, 32, 16, 0, true, DType::f32},
};

std::vector<AttentionKernels> runnable_kernels() {
  std::vector<AttentionKernels> found;
  for (const AttentionKernels& kernel : attention_kernels()) {
    if (kernel.supported()) found.push_back(kernel);
  }
  return found;
}

TEST(PagedAttention, AgreesWithDoublePrecision) {
  ThreadPool threads(2);
  OpContext context{threads};
  for (const Layout& layout : layouts) {
    Sequence sequence(layout, 600, 1);
    const std::vector<float> out = sequence.run(context, 600);
    for (int position : {0, 1, 31, 32, 127, 128, 255, 256, 257, 511, 512, 599}) {
      for (int head = 0; head < layout.heads; head += 1 + layout.heads / 8) {
        for (int d = 0; d < layout.head_dim; d += 13) {
          ASSERT_NEAR(out[static_cast<std::size_t>((position * layout.heads + head) * layout.head_dim + d)],
                      sequence.exact(position, head, d), 2e-6)
              << layout.name() << " position " << position;
        }
      }
    }
  }
}

// Whether a kernel's rows come out the same whole, in chunks and on any number of threads.
bool bits_stand(const AttentionKernels& kernel, const Layout& layout, int length) {
  ThreadPool one(1);
  OpContext single{.threads = one, .attention = kernel};
  Sequence whole(layout, length, 2);
  const std::vector<float> expected = whole.run(single, length);
  for (int threads : {1, 2, 3, 4}) {
    ThreadPool pool(threads);
    OpContext context{.threads = pool, .attention = kernel};
    for (int chunk : {1, 16, 64, 333}) {
      if (chunk == 1 && threads % 2 == 1) continue;
      Sequence again(layout, length, 2);
      again.take_room(threads);
      if (!same_bits(again.run(context, chunk), expected)) return false;
    }
  }
  return true;
}

TEST(PagedAttention, BitsDependOnNeitherChunksNorThreads) {
  for (const Layout& layout : layouts)
    EXPECT_TRUE(bits_stand(best_attention_kernels(), layout, 400)) << layout.name();
}

// Adds a split's last query in another order when the tile is not full: what batches decide.
void dependent_attend_split(const QueryTile& tile, const SplitView& split, float* partials) {
  scalar_attend_split(tile, split, partials);
  if (tile.count == max_tile_queries) return;
  const int last = tile.count - 1;
  for (int d = 0; d < split.head_dim && tile.end[last] - tile.begin[last] > 2; ++d) {
    float* sum = partials + last * partial_floats(split.head_dim) + d;
    *sum = std::nextafter(*sum, 0.0f);
  }
}

TEST(PagedAttention, TheCheckOfBitsCatchesAKernelThatMindsItsCompany) {
  const AttentionKernels dependent{"dependent", [] { return true; }, dependent_attend_split};
  EXPECT_FALSE(bits_stand(dependent, {4, 2, 64, 16, 0, true, DType::f32}, 40));
  EXPECT_TRUE(bits_stand(attention_kernels().back(), {4, 2, 64, 16, 0, true, DType::f32}, 40));
}

class PagedAttentionKernel : public testing::TestWithParam<AttentionKernels> {};

TEST_P(PagedAttentionKernel, GivesTheScalarBits) {
  if (!GetParam().supported()) GTEST_SKIP() << "this machine lacks " << GetParam().name;
  ThreadPool threads(1);
  OpContext context{.threads = threads, .attention = GetParam()};
  OpContext plain{.threads = threads, .attention = attention_kernels().back()};
  for (Layout layout : layouts) {
    for (DType dtype : {DType::f32, DType::bf16, DType::f8_e4m3}) {
      layout.dtype = dtype;
      Sequence sequence(layout, 290, 6);
      for (float& x : sequence.q) x *= 30;  // scores far enough apart that some weights vanish
      sequence.append(context, 0, 290);
      for (const auto& [begin, count] : {std::pair{0, 19}, {250, 13}, {289, 1}}) {
        std::vector<float> out(static_cast<std::size_t>(count * layout.heads * layout.head_dim), NAN);
        std::vector<float> expected = out;
        sequence.attend(context, begin, count, out.data());
        sequence.attend(plain, begin, count, expected.data());
        EXPECT_TRUE(same_bits(out, expected)) << layout.name() << " from " << begin;
      }
    }
  }
}

// All but the scalar kernel itself.
INSTANTIATE_TEST_SUITE_P(All, PagedAttentionKernel,
                         testing::ValuesIn(attention_kernels().first(attention_kernels().size() - 1)),
                         [](const auto& kernel) { return std::string(kernel.param.name); });

TEST(PagedAttention, ALongRowMayBeSpreadOverAnyNumberOfThreads) {
  for (const Layout& layout : {Layout{8, 1, 64, 16, 0, true, DType::bf16},
                               {6, 3, 32, 16, 0, false, DType::bf16},
                               {8, 1, 64, 16, 700, true, DType::bf16}}) {
    ThreadPool one(1);
    OpContext single{one};
    const std::vector<float> expected = Sequence(layout, 5000, 7).run_last(single);
    for (int threads : {2, 3, 4, 7, 40}) {
      ThreadPool pool(threads);
      OpContext context{pool};
      Sequence spread(layout, 5000, 7);
      EXPECT_TRUE(same_bits(spread.run_last(context), expected)) << "without room, " << threads << " threads";
      spread.take_room(threads);
      EXPECT_TRUE(same_bits(spread.run_last(context), expected)) << threads << " threads " << layout.name();
    }
  }
}

// Several sequences in one cache and one step: decode rows, chunks, and lengths that fit no split.
struct Mix {
  std::vector<Sequence> parts;
  std::vector<std::byte> keys, values;
  std::vector<std::vector<std::int32_t>> pages;
  std::vector<SequenceRows> rows;
  std::vector<float> q;
  int page_count = 0;

  Mix(const Layout& layout, std::span<const std::pair<int, int>> length_and_rows) {
    int row = 0;
    for (const auto& [length, count] : length_and_rows) {
      Sequence& part = parts.emplace_back(layout, length, 10u + static_cast<unsigned>(parts.size()));
      std::vector<std::int32_t>& moved = pages.emplace_back(part.pages);
      for (std::int32_t& page : moved) page += page_count;
      page_count += static_cast<int>(part.pages.size()) + 3;
      const std::ptrdiff_t q_at =
          static_cast<std::ptrdiff_t>(length - count) * layout.heads * layout.head_dim;
      q.insert(q.end(), part.q.begin() + q_at, part.q.end());
      rows.push_back({row, count, length - count, {}});
      row += count;
    }
    for (std::size_t i = 0; i < rows.size(); ++i) rows[i].pages = pages[i];
  }

  std::vector<float> run(OpContext& context) {
    Sequence& first = parts.front();
    KvLayer cache = first.cache();
    cache.pages = page_count;
    const std::size_t elements =
        static_cast<std::size_t>(page_count * cache.page_size * cache.kv_heads * cache.head_dim);
    keys.assign(elements * dtype_bytes(cache.dtype), std::byte{0xff});
    values = keys;
    cache.keys = keys.data();
    cache.values = values.data();
    for (std::size_t i = 0; i < parts.size(); ++i) {
      const SequenceRows all{.row_count = parts[i].length, .pages = pages[i]};
      kv_append(
          context,
          {.keys = parts[i].k.data(), .values = parts[i].v.data(), .sequences = {&all, 1}, .cache = cache});
      parts[i].append(context, 0, parts[i].length);  // for a run of its own
    }
    std::vector<float> out(q.size(), NAN);
    std::vector<float> room(static_cast<std::size_t>(attention_room(
        context.threads.size(), first.layout.heads, first.layout.kv_heads, first.layout.head_dim, 4000)));
    paged_attention(context, {.q = q.data(),
                              .heads = first.layout.heads,
                              .sequences = rows,
                              .cache = cache,
                              .window = first.layout.window,
                              .sinks = first.sinks.data(),
                              .scale = 0.125f,
                              .out = out.data(),
                              .room = room});
    return out;
  }
};

TEST(PagedAttention, ARowsBitsDoNotDependOnItsBatchMates) {
  constexpr std::pair<int, int> shapes[] = {{900, 1},  {40, 40}, {3000, 1}, {1, 1},
                                            {513, 77}, {256, 1}, {700, 1}};
  for (int window : {0, 128}) {
    const Layout layout{8, 2, 64, 16, window, true, DType::bf16};
    for (int threads : {1, 2, 3, 4, 9}) {
      ThreadPool pool(threads);
      OpContext context{pool};
      Mix mix(layout, shapes);
      // All heads share the first sequence's sinks here.
      for (Sequence& part : mix.parts) part.sinks = mix.parts.front().sinks;
      const std::vector<float> together = mix.run(context);
      std::size_t at = 0;
      for (std::size_t i = 0; i < mix.parts.size(); ++i) {
        const int count = shapes[i].second;
        const std::size_t width = static_cast<std::size_t>(count * layout.heads * layout.head_dim);
        std::vector<float> alone(width, NAN);
        mix.parts[i].attend(context, shapes[i].first - count, count, alone.data());
        EXPECT_EQ(std::memcmp(alone.data(), together.data() + at, width * sizeof(float)), 0)
            << "sequence " << i << " window " << window << " threads " << threads;
        at += width;
      }
    }
  }
}

TEST(PagedAttention, SaysWhichShapesItTakes) {
  for (int head_dim : {32, 64, 96, 128, 256}) EXPECT_TRUE(attention_takes_head_dim(head_dim));
  for (int head_dim : {-32, 0, 16, 48, 80, 288}) EXPECT_FALSE(attention_takes_head_dim(head_dim));
  for (int page_size : {16, 32, 64, 128, 256}) EXPECT_TRUE(attention_takes_page_size(page_size));
  for (int page_size : {0, 7, 8, 24, 48, 512}) EXPECT_FALSE(attention_takes_page_size(page_size));
}

TEST(PagedAttention, ANotANumberReachesEveryQueryThatSeesItAndNoOther) {
  constexpr int length = 60, planted = 25;
  for (const AttentionKernels& kernel : runnable_kernels()) {
    ThreadPool threads(1);
    OpContext context{.threads = threads, .attention = kernel};
    for (int window : {0, 10}) {
      for (DType dtype : {DType::f32, DType::bf16, DType::f8_e4m3}) {
        for (int heads : {1, 3, 8}) {
          const Layout layout{heads, 1, 32, 16, window, true, dtype};
          Sequence clean(layout, length, 5);
          const std::vector<float> expected = clean.run(context, length);
          for (const bool in_key : {true, false}) {
            Sequence sequence(layout, length, 5);
            (in_key ? sequence.k : sequence.v)[planted * 32 + 7] = NAN;
            const std::vector<float> out = sequence.run(context, length);
            for (int position = 0; position < length; ++position) {
              const std::size_t at = static_cast<std::size_t>(position * heads * 32 + 7);
              if (position >= planted && (window == 0 || position < planted + window)) {
                EXPECT_TRUE(std::isnan(out[at])) << kernel.name << " " << layout.name() << " " << position;
              } else {
                EXPECT_EQ(out[at], expected[at]) << kernel.name << " " << layout.name() << " " << position;
              }
            }
          }
        }
      }
    }
  }
}

TEST(PagedAttention, EveryE4m3CodeIsReadAsTheFormatSays) {
  for (const AttentionKernels& kernel : runnable_kernels()) {
    ThreadPool threads(1);
    OpContext context{.threads = threads, .attention = kernel};
    // One position a sequence: its weight is 1 and the value comes out as it is stored.
    const Layout layout{1, 1, 256, 16, 1, false, DType::f8_e4m3};
    Sequence values(layout, 1, 1);
    for (std::size_t code = 0; code < 256; ++code)
      values.v[code] = E4m3{static_cast<std::uint8_t>(code)}.to_float();
    const std::vector<float> out = values.run(context, 1);
    for (std::size_t code = 0; code < 256; ++code) {
      const float expected = E4m3{static_cast<std::uint8_t>(code)}.to_float();
      if (std::isnan(expected)) {
        EXPECT_TRUE(std::isnan(out[code])) << kernel.name << " code " << code;
      } else {
        EXPECT_EQ(out[code], expected) << kernel.name << " code " << code;
      }
    }
  }
}

TEST(PagedAttention, KeysInE4m3SaturateAndKeepTheirSubnormals) {
  for (const AttentionKernels& kernel : runnable_kernels()) {
    ThreadPool threads(1);
    OpContext context{.threads = threads, .attention = kernel};
    // Two positions; the second key is tried, the first is zero. Values tell their weights apart.
    for (float key : {0.0f, 0x1p-9f, 0x1.8p-8f, 1.0f, -1.1f, 448.0f, 1000.0f}) {
      Sequence pair({1, 1, 32, 16, 0, false, DType::f8_e4m3}, 2, 1);
      std::fill(pair.k.begin(), pair.k.end(), 0.0f);
      std::fill(pair.q.begin(), pair.q.end(), 0.0f);
      std::fill(pair.v.begin(), pair.v.end(), 0.0f);
      pair.k[32 + 13] = key;
      pair.q[32 + 13] = 8.0f / 448;
      pair.v[32] = 1.0f;
      const std::vector<float> out = pair.run(context, 2);
      const double score = E4m3::from_float(key).to_float() / 448.0;
      EXPECT_NEAR(out[32], std::exp(score) / (1 + std::exp(score)), 1e-6) << kernel.name << " " << key;
    }
  }
}

}  // namespace
}  // namespace nibble
