#include "ops/gated_delta/gated_delta.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "ops/gated_delta/delta_recurrence.h"
#include "ops/gated_delta/delta_test_util.h"
#include "ops/op_test_util.h"

namespace nibble {
namespace {

// What a sequence is made of: inputs of the rule, before the convolution.
struct Text {
  std::vector<float> qkv, b, a;
  int rows = 0;

  Text(std::mt19937& random, const DeltaShape& shape, int rows_)
      : qkv(random_floats(random, static_cast<std::size_t>(rows_ * shape.channels()))),
        b(random_floats(random, static_cast<std::size_t>(rows_ * shape.value_heads), 2.0f)),
        a(random_floats(random, static_cast<std::size_t>(rows_ * shape.value_heads), 2.0f)),
        rows(rows_) {}
};

struct Layer {
  DeltaShape shape;
  std::vector<float> convolution, rate, bias;

  Layer(std::mt19937& random, const DeltaShape& of)
      : shape(of),
        convolution(random_floats(random, static_cast<std::size_t>(of.taps * of.channels()), 0.5f)),
        bias(random_floats(random, static_cast<std::size_t>(of.value_heads))) {
    for (int i = 0; i < of.value_heads; ++i) rate.push_back(std::exp(random_floats(random, 1)[0]));
  }
  DeltaGates gates() const { return {.rate = rate.data(), .bias = bias.data()}; }
};

constexpr DeltaShape small{.key_heads = 2, .value_heads = 4, .key_dim = 24, .value_dim = 40, .taps = 4};

// Runs sequences through convolution and rule, `rows_of(sequence, rows left)` of each in a step, until all
// are done; outputs by sequence. Slots hold garbage before.
template <class RowsOf>
std::vector<std::vector<float>> run(ThreadPool& threads, const Layer& layer, const std::vector<Text>& texts,
                                    const RowsOf& rows_of) {
  const DeltaShape& shape = layer.shape;
  const std::size_t channels = static_cast<std::size_t>(shape.channels()),
                    heads = static_cast<std::size_t>(shape.value_heads),
                    values = static_cast<std::size_t>(shape.values());
  DeltaSlots slots(shape, static_cast<int>(texts.size()));
  OpContext context{threads};
  std::vector<std::vector<float>> outputs(texts.size());
  std::vector<int> done(texts.size());
  const auto any_left = [&] {
    for (std::size_t i = 0; i < texts.size(); ++i) {
      if (done[i] < texts[i].rows) return true;
    }
    return false;
  };
  while (any_left()) {
    std::vector<float> qkv, b, a;
    std::vector<StateRows> sequences;
    for (std::size_t i = texts.size(); i-- > 0;) {
      const int left = texts[i].rows - done[i], count = left > 0 ? std::min(left, rows_of(i, left)) : 0;
      if (count == 0) continue;
      sequences.push_back({.row_begin = static_cast<int>(b.size() / heads),
                           .row_count = count,
                           .first_position = done[i],
                           .slot = static_cast<int>(i)});
      const auto add = [&](std::vector<float>& to, const std::vector<float>& from, std::size_t width) {
        const auto first =
            from.begin() + static_cast<std::ptrdiff_t>(static_cast<std::size_t>(done[i]) * width);
        to.insert(to.end(), first,
                  first + static_cast<std::ptrdiff_t>(static_cast<std::size_t>(count) * width));
      };
      add(qkv, texts[i].qkv, channels);
      add(b, texts[i].b, heads);
      add(a, texts[i].a, heads);
      done[i] += count;
    }
    std::vector<float> convolved(qkv.size(), NAN), out(b.size() / heads * values, NAN);
    short_convolution(context, {.x = qkv.data(),
                                .weight = layer.convolution.data(),
                                .sequences = sequences,
                                .layer = slots.layer(),
                                .out = convolved.data()});
    gated_delta(context, {.qkv = convolved.data(),
                          .b = b.data(),
                          .a = a.data(),
                          .gates = layer.gates(),
                          .sequences = sequences,
                          .layer = slots.layer(),
                          .out = out.data()});
    for (const StateRows& rows : sequences) {
      const auto first =
          out.begin() + static_cast<std::ptrdiff_t>(static_cast<std::size_t>(rows.row_begin) * values);
      std::vector<float>& to = outputs[static_cast<std::size_t>(rows.slot)];
      to.insert(to.end(), first,
                first + static_cast<std::ptrdiff_t>(static_cast<std::size_t>(rows.row_count) * values));
    }
  }
  return outputs;
}

std::vector<float> in_one_piece(ThreadPool& threads, const Layer& layer, const Text& text) {
  return run(threads, layer, {text}, [](std::size_t, int left) { return left; })[0];
}

bool same_bits(const std::vector<float>& x, const std::vector<float>& y) {
  return x.size() == y.size() && std::memcmp(x.data(), y.data(), x.size() * sizeof(float)) == 0;
}

TEST(GatedDelta, AnyCutInAnyCompanyGivesTheSameBits) {
  std::mt19937 random(11);
  ThreadPool one(1), three(3);
  for (const DeltaShape& shape :
       {small, DeltaShape{.key_heads = 1, .value_heads = 1, .key_dim = 32, .value_dim = 32, .taps = 2},
        DeltaShape{.key_heads = 3, .value_heads = 3, .key_dim = 7, .value_dim = 5, .taps = 1}}) {
    const Layer layer(random, shape);
    std::vector<Text> texts;
    std::vector<std::vector<float>> whole;
    for (const int rows : {1, 63, 64, 65, 127, 128, 129, 200}) {
      texts.emplace_back(random, shape, rows);
      whole.push_back(in_one_piece(one, layer, texts.back()));
      for (const float value : whole.back()) ASSERT_TRUE(std::isfinite(value));
    }
    // Token by token; every step of another length; pieces of one, two and three, as a convolution looks
    // back.
    const auto steps = {1, 64, 63, 65, 2, 3};
    for (const int step : steps) {
      const auto cut = run(three, layer, texts, [&](std::size_t, int) { return step; });
      for (std::size_t i = 0; i < texts.size(); ++i)
        EXPECT_TRUE(same_bits(cut[i], whole[i])) << texts[i].rows << " rows in steps of " << step;
    }
    for (int trial = 0; trial < 5; ++trial) {
      const auto cut = run(three, layer, texts, [&](std::size_t, int left) {
        return static_cast<int>(random() % 3 == 0 ? random() % 2
                                                  : random() % static_cast<unsigned>(left + 1));
      });
      for (std::size_t i = 0; i < texts.size(); ++i)
        EXPECT_TRUE(same_bits(cut[i], whole[i])) << texts[i].rows << " rows in random steps";
    }
  }
}

// Rows [begin, end) of one sequence through convolution and rule, in a slot that goes on from what it is.
std::vector<float> go_on(ThreadPool& threads, const Layer& layer, const Text& text, DeltaSlots& slots,
                         const StateRows& rows) {
  const auto part = [&](const std::vector<float>& of, int width) {
    const auto first = of.begin() + std::ptrdiff_t{rows.first_position} * width;
    return std::vector<float>(first, first + std::ptrdiff_t{rows.row_count} * width);
  };
  OpContext context{threads};
  const std::vector<float> qkv = part(text.qkv, layer.shape.channels()),
                           b = part(text.b, layer.shape.value_heads),
                           a = part(text.a, layer.shape.value_heads);
  std::vector<float> convolved(qkv.size(), NAN),
      out(static_cast<std::size_t>(rows.row_count * layer.shape.values()), NAN);
  short_convolution(context, {.x = qkv.data(),
                              .weight = layer.convolution.data(),
                              .sequences = {&rows, 1},
                              .layer = slots.layer(),
                              .out = convolved.data()});
  gated_delta(context, {.qkv = convolved.data(),
                        .b = b.data(),
                        .a = a.data(),
                        .gates = layer.gates(),
                        .sequences = {&rows, 1},
                        .layer = slots.layer(),
                        .out = out.data()});
  return out;
}

TEST(GatedDelta, GoesOnFromASnapshotOfAnyBorderWithTheSameBits) {
  std::mt19937 random(16);
  ThreadPool threads(3);
  for (const DeltaShape& shape :
       {small, DeltaShape{.key_heads = 3, .value_heads = 3, .key_dim = 7, .value_dim = 5, .taps = 1}}) {
    const Layer layer(random, shape);
    const Text text(random, shape, 260);
    const std::vector<float> whole = in_one_piece(threads, layer, text);
    // Steps that pass borders, end at them and begin at them.
    for (const int step : {1, 2, 63, 64, 65, 100, 260}) {
      DeltaSlots slots(shape, 2, 4);
      for (int begin = 0; begin < text.rows; begin += step) {
        const int end = std::min(begin + step, text.rows);
        std::vector<BorderState> kept;
        for (int border = 1; border <= 4; ++border) {
          if (begin < border * delta_chunk && border * delta_chunk <= end)
            kept.push_back({.position = border * delta_chunk, .slot = 4 - border});
        }
        (void)go_on(threads, layer, text, slots,
                    {.row_count = end - begin, .first_position = begin, .slot = 1, .kept = kept});
      }
      for (int border = 1; border <= 4; ++border) {
        const int position = border * delta_chunk;
        slots.layer().resume(0, 4 - border);
        const std::vector<float> rest =
            go_on(threads, layer, text, slots,
                  {.row_count = text.rows - position, .first_position = position, .slot = 0});
        EXPECT_TRUE(same_bits(rest, {whole.begin() + std::ptrdiff_t{position} * shape.values(), whole.end()}))
            << "from " << position << " in steps of " << step;
      }
    }
  }
}

// The text, but rows from `begin` on are another's.
Text going_wrong(const Text& text, const Text& other, const DeltaShape& shape, int begin) {
  Text wrong = text;
  const auto replace = [&](std::vector<float>& to, const std::vector<float>& from, int width) {
    const std::ptrdiff_t first = std::ptrdiff_t{begin} * width;
    std::copy(from.begin() + first, from.end(), to.begin() + first);
  };
  replace(wrong.qkv, other.qkv, shape.channels());
  replace(wrong.b, other.b, shape.value_heads);
  replace(wrong.a, other.a, shape.value_heads);
  return wrong;
}

TEST(GatedDelta, DraftsThatFailLeaveNoTraceInStatesAndSnapshots) {
  std::mt19937 random(17);
  ThreadPool threads(3);
  for (DeltaShape shape :
       {small, DeltaShape{.key_heads = 3, .value_heads = 3, .key_dim = 7, .value_dim = 5, .taps = 3}}) {
    for (const int drafts : {1, 2, 8, 60}) {
      shape.drafts = drafts;
      const Layer layer(random, shape);
      const Text text(random, shape, 260), other(random, shape, 260);
      const std::vector<float> whole = in_one_piece(threads, layer, text);
      const auto expected = [&](int first, int rows) {
        const auto at = whole.begin() + std::ptrdiff_t{first} * shape.values();
        return std::vector<float>(at, at + std::ptrdiff_t{rows} * shape.values());
      };
      DeltaSlots slots(shape, 2, 4);
      for (int begin = 0, held = 0; begin < text.rows; begin += held + 1) {
        const int most =
            std::min({drafts, delta_chunk - 1 - (begin + 1) % delta_chunk, text.rows - begin - 1});
        held = static_cast<int>(random() % 3 * random() % static_cast<unsigned>(most + 1));
        std::vector<BorderState> kept;
        if ((begin + 1) % delta_chunk == 0)
          kept.push_back({.position = begin + 1, .slot = (begin + 1) / delta_chunk - 1});
        std::vector<float> out =
            go_on(threads, layer, going_wrong(text, other, shape, begin + held + 1), slots,
                  {.row_count = most + 1, .first_position = begin, .slot = 1, .kept = kept});
        out.resize(static_cast<std::size_t>((held + 1) * shape.values()));
        ASSERT_TRUE(same_bits(out, expected(begin, held + 1)))
            << held << " of " << most << " drafts hold behind " << begin;
      }
      for (int position = delta_chunk; position < text.rows; position += delta_chunk) {
        slots.layer().resume(0, position / delta_chunk - 1);
        const int rest = text.rows - position;
        EXPECT_TRUE(same_bits(
            go_on(threads, layer, text, slots, {.row_count = rest, .first_position = position, .slot = 0}),
            expected(position, rest)))
            << "behind the snapshot at " << position;
      }
    }
  }
}

// The rule alone, in one piece, against double precision.
double largest_error(ThreadPool& threads, const Layer& layer, const Text& text) {
  DeltaSlots slots(layer.shape, 1);
  OpContext context{threads};
  std::vector<float> qkv = text.qkv, out(static_cast<std::size_t>(text.rows * layer.shape.values()), NAN);
  const StateRows rows{.row_count = text.rows};
  gated_delta(context, {.qkv = qkv.data(),
                        .b = text.b.data(),
                        .a = text.a.data(),
                        .gates = layer.gates(),
                        .sequences = {&rows, 1},
                        .layer = slots.layer(),
                        .out = out.data()});
  const std::vector<double> exact =
      delta_recurrence<double>(layer.shape, layer.gates(), text.qkv, text.b, text.a);
  double error = 0;
  for (std::size_t i = 0; i < out.size(); ++i) {
    if (!std::isfinite(out[i])) return NAN;
    error = std::max(error, std::fabs(out[i] - exact[i]));
  }
  return error;
}

TEST(GatedDelta, AgreesWithTheRecurrenceInDoublePrecision) {
  std::mt19937 random(12);
  ThreadPool threads(2);
  const Layer layer(random, small);
  for (const int rows : {1, 63, 64, 65, 127, 128, 1000})
    EXPECT_LT(largest_error(threads, layer, Text(random, small, rows)), 1e-5) << rows << " rows";
}

TEST(GatedDelta, ForgetsAllAndNothing) {
  std::mt19937 random(13);
  ThreadPool threads(2);
  Layer layer(random, small);
  std::fill(layer.rate.begin(), layer.rate.end(), 1.0f);
  std::fill(layer.bias.begin(), layer.bias.end(), 0.0f);
  Text text(random, small, 200);
  // softplus(80) = 80: g of -80; softplus(-9.2) is about 1e-4; beta of 0 and of 1.
  for (float& a : text.a) a = random() % 2 == 0 ? 80.0f : -9.2f;
  for (float& b : text.b) b = random() % 2 == 0 ? 80.0f : random() % 2 == 0 ? -200.0f : 0.0f;
  EXPECT_LT(largest_error(threads, layer, text), 1e-5);
  for (float& a : text.a) a = -200.0f;
  for (float& b : text.b) b = 2.0f;
  EXPECT_LT(largest_error(threads, layer, text), 2e-4) << "nothing is forgotten in 200 positions";
}

TEST(GatedDelta, AHeadOfKeysServesNeighbouringHeadsOfValues) {
  constexpr DeltaShape shape{.key_heads = 2, .value_heads = 6, .key_dim = 1, .value_dim = 1, .taps = 1};
  EXPECT_EQ(shape.key_head_of(2), 0);
  EXPECT_EQ(shape.key_head_of(3), 1);
}

TEST(SplitByKeyHead, PutsHeadsOfAKindSideBySide) {
  constexpr DeltaShape shape{.key_heads = 2, .value_heads = 4, .key_dim = 1, .value_dim = 2, .taps = 1};
  ThreadPool threads(1);
  OpContext context{threads};
  // By head of keys: q, k, two heads' v, two heads' z.
  const std::vector<float> qkv_z = {1, 2, 10, 11, 12, 13, 20, 21, 22, 23,
                                    3, 4, 14, 15, 16, 17, 24, 25, 26, 27};
  const std::vector<float> b_a = {30, 31, 40, 41, 32, 33, 42, 43};
  std::vector<float> qkv(12), z(8), b(4), a(4);
  split_by_key_head(context, {.shape = shape,
                              .rows = 1,
                              .qkv_z = qkv_z.data(),
                              .b_a = b_a.data(),
                              .qkv = qkv.data(),
                              .z = z.data(),
                              .b = b.data(),
                              .a = a.data()});
  EXPECT_EQ(qkv, (std::vector<float>{1, 3, 2, 4, 10, 11, 12, 13, 14, 15, 16, 17}));
  EXPECT_EQ(z, (std::vector<float>{20, 21, 22, 23, 24, 25, 26, 27}));
  EXPECT_EQ(b, (std::vector<float>{30, 31, 32, 33}));
  EXPECT_EQ(a, (std::vector<float>{40, 41, 42, 43}));
}

TEST(ShortConvolution, SumsTheLastInputsOfEachChannel) {
  std::mt19937 random(14);
  ThreadPool threads(2);
  const Layer layer(random, small);
  const Text text(random, small, 9);
  DeltaSlots slots(small, 1);
  OpContext context{threads};
  std::vector<float> out(text.qkv.size(), NAN);
  const StateRows rows{.row_count = text.rows};
  short_convolution(context, {.x = text.qkv.data(),
                              .weight = layer.convolution.data(),
                              .sequences = {&rows, 1},
                              .layer = slots.layer(),
                              .out = out.data()});
  const std::size_t channels = static_cast<std::size_t>(small.channels());
  for (std::size_t row = 0; row < 9; ++row) {
    for (std::size_t c = 0; c < channels; ++c) {
      double sum = 0;
      for (std::size_t tap = 0; tap < 4; ++tap) {
        if (row + tap < 3) continue;
        sum += double{layer.convolution[tap * channels + c]} * text.qkv[(row + tap - 3) * channels + c];
      }
      ASSERT_NEAR(out[row * channels + c], sum / (1 + std::exp(-sum)), 1e-5);
    }
  }
}

TEST(GatedHeadNorm, WeighsAndGatesEachHeadByItself) {
  std::mt19937 random(15);
  ThreadPool threads(2);
  constexpr int rows = 3, heads = 5, head_dim = 20;
  // Mean squares down to 4e-7 make eps matter.
  std::vector<float> x = random_floats(random, rows * heads * head_dim, 6e-4f);
  const std::vector<float> given = x, z = random_floats(random, x.size()),
                           weight = random_floats(random, head_dim);
  OpContext context{threads};
  gated_head_norm(context, {.x = x.data(),
                            .z = z.data(),
                            .weight = weight.data(),
                            .rows = rows,
                            .heads = heads,
                            .head_dim = head_dim,
                            .eps = 1e-6f});
  for (std::size_t head = 0; head < rows * heads; ++head) {
    double squares = 0;
    for (std::size_t i = 0; i < head_dim; ++i)
      squares += double{given[head * head_dim + i]} * given[head * head_dim + i];
    for (std::size_t i = 0; i < head_dim; ++i) {
      const double gate = z[head * head_dim + i];
      const double exact = given[head * head_dim + i] / std::sqrt(squares / head_dim + 1e-6) * weight[i] *
                           gate / (1 + std::exp(-gate));
      ASSERT_NEAR(x[head * head_dim + i], exact, 1e-5 * (1 + std::fabs(exact)));
    }
  }
}

}  // namespace
}  // namespace nibble
