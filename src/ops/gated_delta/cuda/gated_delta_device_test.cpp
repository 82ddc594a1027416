// On a GPU, or on its emulation: the gated delta rule from projections to normed rows, against the CPU's, and
// against itself in other pieces and other company.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <numeric>
#include <random>
#include <tuple>
#include <utility>

#include "ops/cuda/device_test_util.h"
#include "ops/gated_delta/cuda/gated_delta_cuda.h"
#include "ops/gated_delta/delta_test_util.h"
#include "ops/gated_delta/gated_delta.h"
#include "ops/linear/cuda/dense_tiles.h"
#include "ops/op_test_util.h"
#ifdef NIBBLE_GPU_EMULATION
#include "ops/ptx/give_up.cuh"
#endif

namespace nibble {
namespace {

constexpr float eps = 1e-6f;

std::size_t size(int count) { return static_cast<std::size_t>(count); }

// A layer's own numbers, and how its projections lie.
struct Layer {
  DeltaShape shape;
  bool by_key_head;
  std::vector<float> convolution, rate, bias, norm;

  Layer(std::mt19937& random, const DeltaShape& of, bool by_key_head_)
      : shape(of),
        by_key_head(by_key_head_),
        convolution(random_floats(random, size(of.taps * of.channels()), 0.5f)),
        bias(random_floats(random, size(of.value_heads))),
        norm(random_floats(random, size(of.value_dim))) {
    for (int i = 0; i < of.value_heads; ++i) rate.push_back(std::exp(random_floats(random, 1)[0]));
  }
  int served() const { return shape.value_heads / shape.key_heads; }
  int stride() const { return shape.channels() + shape.values(); }
  DeltaColumns columns() const {
    const int keys = shape.keys(), kd = shape.key_dim, vd = shape.value_dim, of_head = served() * vd;
    if (!by_key_head) {
      return {.q = {0, kd, 0},
              .k = {keys, kd, 0},
              .v = {2 * keys, of_head, vd},
              .z = {shape.channels(), of_head, vd},
              .b = {0, served(), 1},
              .a = {shape.value_heads, served(), 1}};
    }
    const int all = 2 * kd + 2 * of_head;
    return {.q = {0, all, 0},
            .k = {kd, all, 0},
            .v = {2 * kd, all, vd},
            .z = {2 * kd + of_head, all, vd},
            .b = {0, 2 * served(), 1},
            .a = {served(), 2 * served(), 1}};
  }
};

struct Text {
  int rows;
  std::vector<float> projected, gates;
  Text(std::mt19937& random, const Layer& layer, int rows_)
      : rows(rows_),
        projected(random_floats(random, size(rows_ * layer.stride()))),
        gates(random_floats(random, size(rows_ * 2 * layer.shape.value_heads), 2.0f)) {}
};

struct Piece {
  int text, first, count, slot;
  std::vector<BorderState> kept = {};
};

// Slots and snapshots of one layer, and steps on them.
class States {
 public:
  States(const Layer& layer, int slots)
      : layer_(layer),
        memory_(device_bytes(size(slots) * size(static_cast<int>(delta_state_bytes(layer.shape))), 0xff)),
        snapshots_(
            device_bytes(size(slots) * size(static_cast<int>(delta_snapshot_bytes(layer.shape))), 0xff)),
        convolution_(on_device(layer.convolution)),
        rate_(on_device(layer.rate)),
        bias_(on_device(layer.bias)),
        norm_(on_device(layer.norm)) {}

  void resume(int slot, int snapshot) {
    const std::int64_t bytes = delta_snapshot_bytes(layer_.shape);
    cuda_check(cudaMemcpy(memory_.data() + slot * delta_state_bytes(layer_.shape),
                          snapshots_.data() + snapshot * bytes, static_cast<std::size_t>(bytes),
                          cudaMemcpyDeviceToDevice));
  }

  // Bits of bfloat16, rows of all pieces one after the other.
  std::vector<std::uint16_t> step(const std::vector<Text>& texts, const std::vector<Piece>& pieces) {
    const DeltaShape& shape = layer_.shape;
    std::vector<float> projected, gates;
    std::vector<StateRowsCuda> sequences;
    std::vector<std::int32_t> of_row;
    std::vector<BorderState> borders(1);
    const auto add = [](std::vector<float>& to, const std::vector<float>& from, const Piece& piece,
                        int width) {
      to.insert(to.end(), from.begin() + std::ptrdiff_t{piece.first} * width,
                from.begin() + std::ptrdiff_t{piece.first + piece.count} * width);
    };
    for (const Piece& piece : pieces) {
      sequences.push_back({static_cast<std::int32_t>(of_row.size()), piece.count, piece.first, piece.slot,
                           static_cast<std::int32_t>(borders.size()),
                           static_cast<std::int32_t>(piece.kept.size())});
      borders.insert(borders.end(), piece.kept.begin(), piece.kept.end());
      of_row.insert(of_row.end(), size(piece.count), static_cast<std::int32_t>(sequences.size() - 1));
      const Text& text = texts[size(piece.text)];
      add(projected, text.projected, piece, layer_.stride());
      add(gates, text.gates, piece, 2 * shape.value_heads);
    }
    const int rows = static_cast<int>(of_row.size());
    const DenseShape tiles{0, shape.values()};
    DeviceBuffer on_sequences = on_device(sequences), on_rows = on_device(of_row),
                 on_borders = on_device(borders), on_projected = on_device(projected),
                 on_gates = on_device(gates),
                 qkv = device_bytes(size(rows * shape.channels()) * sizeof(float), 0xff),
                 decays = device_bytes(size(rows * shape.value_heads) * sizeof(double), 0xff),
                 betas = device_bytes(size(rows * shape.value_heads) * sizeof(float), 0xff),
                 products = device_bytes(
                     static_cast<std::size_t>(delta_product_floats(shape, rows)) * sizeof(float), 0xff),
                 mixed = device_bytes(size(rows * shape.values()) * sizeof(float), 0xff),
                 out = device_bytes(tiles.token_bytes(rows), 0);
    const Status status =
        gated_delta_cuda({.layer = {.shape = shape, .memory = memory_.data(), .snapshots = snapshots_.data()},
                          .step = {.rows = rows,
                                   .sequences = static_cast<int>(sequences.size()),
                                   .one_row_each = rows == static_cast<int>(sequences.size()),
                                   .of_sequence = on_sequences.as<StateRowsCuda>(),
                                   .sequence_of_row = on_rows.as<std::int32_t>(),
                                   .borders = on_borders.as<BorderState>()},
                          .columns = layer_.columns(),
                          .projected = on_projected.as<float>(),
                          .gates = on_gates.as<float>(),
                          .projected_stride = layer_.stride(),
                          .gates_stride = 2 * shape.value_heads,
                          .convolution = convolution_.as<float>(),
                          .rate = rate_.as<float>(),
                          .bias = bias_.as<float>(),
                          .norm = norm_.as<float>(),
                          .eps = eps,
                          .qkv = qkv.as<float>(),
                          .decays = decays.as<double>(),
                          .betas = betas.as<float>(),
                          .products = products.as<float>(),
                          .mixed = mixed.as<float>(),
                          .out = out.as<std::uint8_t>()},
                         nullptr);
    EXPECT_TRUE(status.ok()) << status.message();
    cuda_check(cudaDeviceSynchronize());
    std::vector<std::uint8_t> bytes(tiles.token_bytes(rows));
    out.copy_to(std::span(bytes));
    std::vector<std::uint16_t> bits;
    for (int row = 0; row < rows; ++row) {
      for (int column = 0; column < shape.values(); ++column) {
        std::uint16_t value;
        std::memcpy(&value, bytes.data() + token_offset(tiles.blocks(), row, column), sizeof value);
        bits.push_back(value);
      }
    }
    return bits;
  }

 private:
  const Layer& layer_;
  DeviceBuffer memory_, snapshots_, convolution_, rate_, bias_, norm_;
};

// One text from its beginning, in pieces of these lengths in turn.
std::vector<std::uint16_t> in_pieces(const Layer& layer, const std::vector<Text>& texts, int text,
                                     const std::vector<int>& lengths) {
  States states(layer, 2);
  std::vector<std::uint16_t> all;
  std::size_t turn = 0;
  for (int done = 0; done < texts[size(text)].rows; ++turn) {
    const int count = std::min(lengths[turn % lengths.size()], texts[size(text)].rows - done);
    const std::vector<std::uint16_t> some = states.step(texts, {{text, done, count, 1}});
    all.insert(all.end(), some.begin(), some.end());
    done += count;
  }
  return all;
}

// The same by the CPU's ops, in float32.
std::vector<float> on_the_cpu(const Layer& layer, const Text& text) {
  const DeltaShape& shape = layer.shape;
  ThreadPool threads(1);
  OpContext context{threads};
  const DeltaColumns columns = layer.columns();
  const int served = layer.served();
  std::vector<float> qkv, z, b, a;
  for (int row = 0; row < text.rows; ++row) {
    const float* from = text.projected.data() + std::ptrdiff_t{row} * layer.stride();
    const float* gates = text.gates.data() + std::ptrdiff_t{row} * 2 * shape.value_heads;
    const auto take = [&](std::vector<float>& to, const HeadColumns& part, const float* of, int heads,
                          int dims) {
      const int each =
          heads == shape.key_heads && &part != &columns.v && &part != &columns.z && dims > 1 ? 1 : served;
      for (int head = 0; head < heads; ++head) {
        const float* at = of + part.first + head / each * part.a_key_head + head % each * part.a_value_head;
        to.insert(to.end(), at, at + dims);
      }
    };
    take(qkv, columns.q, from, shape.key_heads, shape.key_dim);
    take(qkv, columns.k, from, shape.key_heads, shape.key_dim);
    take(qkv, columns.v, from, shape.value_heads, shape.value_dim);
    take(z, columns.z, from, shape.value_heads, shape.value_dim);
    take(b, columns.b, gates, shape.value_heads, 1);
    take(a, columns.a, gates, shape.value_heads, 1);
  }
  DeltaSlots slots(shape, 1);
  const StateRows rows{.row_begin = 0, .row_count = text.rows, .first_position = 0, .slot = 0};
  std::vector<float> convolved(qkv.size()), out(size(text.rows * shape.values()));
  short_convolution(context, {.x = qkv.data(),
                              .weight = layer.convolution.data(),
                              .sequences = std::span(&rows, 1),
                              .layer = slots.layer(),
                              .out = convolved.data()});
  gated_delta(context, {.qkv = convolved.data(),
                        .b = b.data(),
                        .a = a.data(),
                        .gates = {.rate = layer.rate.data(), .bias = layer.bias.data()},
                        .sequences = std::span(&rows, 1),
                        .layer = slots.layer(),
                        .out = out.data()});
  gated_head_norm(context, {.x = out.data(),
                            .z = z.data(),
                            .weight = layer.norm.data(),
                            .rows = text.rows,
                            .heads = shape.value_heads,
                            .head_dim = shape.value_dim,
                            .eps = eps});
  return out;
}

struct Case {
  DeltaShape shape;
  bool by_key_head;
};
void PrintTo(const Case& each, std::ostream* out) {
  *out << each.shape.key_dim << " x " << each.shape.value_dim;
}

class DeltaOnTheGpu : public OnTheGpu, public testing::WithParamInterface<Case> {
 protected:
  std::mt19937 random_{5};
};

INSTANTIATE_TEST_SUITE_P(
    Shapes, DeltaOnTheGpu,
    testing::Values(
        Case{{.key_heads = 2, .value_heads = 6, .key_dim = 32, .value_dim = 32, .taps = 4}, false},
        Case{{.key_heads = 2, .value_heads = 4, .key_dim = 16, .value_dim = 24, .taps = 3}, true},
        Case{{.key_heads = 1, .value_heads = 2, .key_dim = 128, .value_dim = 128, .taps = 4}, true},
        Case{{.key_heads = 1, .value_heads = 1, .key_dim = 32, .value_dim = 32, .taps = 1}, false}));

TEST_P(DeltaOnTheGpu, IsTheCpus) {
  const Layer layer(random_, GetParam().shape, GetParam().by_key_head);
  const std::vector<Text> texts{Text(random_, layer, 150)};
  const std::vector<std::uint16_t> found = in_pieces(layer, texts, 0, {150});
  const std::vector<float> expected = on_the_cpu(layer, texts[0]);
  ASSERT_EQ(found.size(), expected.size());
  for (std::size_t i = 0; i < found.size(); ++i) {
    const float value = Bf16{found[i]}.to_float();
    ASSERT_NEAR(value, expected[i], std::fabs(expected[i]) / 256 + 1e-4f) << "at " << i;
  }
}

TEST_P(DeltaOnTheGpu, EveryCutGivesTheSameBits) {
  const Layer layer(random_, GetParam().shape, GetParam().by_key_head);
  const int rows = small_cases ? 132 : 200;
  const std::vector<Text> texts{Text(random_, layer, rows)};
  const std::vector<std::uint16_t> whole = in_pieces(layer, texts, 0, {rows});
  std::vector<std::vector<int>> cuts = {{63}, {64}, {65}, {1}, {3, 70, 2}};
  if (small_cases) cuts = {{63, 1, 1, 66}, {50, 13, 3, 1, 65}};
  for (const std::vector<int>& cut : cuts)
    EXPECT_EQ(in_pieces(layer, texts, 0, cut), whole) << "in pieces of " << cut[0];
}

TEST_P(DeltaOnTheGpu, CompanyAndSlotsChangeNoBit) {
  const Layer layer(random_, GetParam().shape, GetParam().by_key_head);
  std::vector<Text> texts;
  for (const int rows : {5, 66, 1, 64}) texts.emplace_back(random_, layer, rows);
  States states(layer, 8);
  std::vector<Piece> pieces;
  for (int i = 0; i < 4; ++i) pieces.push_back({i, 0, texts[size(i)].rows, 7 - 2 * i});
  const std::vector<std::uint16_t> together = states.step(texts, pieces);
  std::vector<std::uint16_t> alone;
  for (int i = 0; i < 4; ++i) {
    const std::vector<std::uint16_t> one = in_pieces(layer, texts, i, {texts[size(i)].rows});
    alone.insert(alone.end(), one.begin(), one.end());
  }
  EXPECT_EQ(together, alone);
}

TEST_P(DeltaOnTheGpu, SnapshotsOnTheWayAreGoneOnFrom) {
  const Layer layer(random_, GetParam().shape, GetParam().by_key_head);
  const int rows = 135, width = layer.shape.values();
  const std::vector<Text> texts{Text(random_, layer, rows)};
  const std::vector<std::uint16_t> whole = in_pieces(layer, texts, 0, {rows});
  States states(layer, 3);
  // Borders within a step, at its end, and one whose last inputs an earlier step had.
  states.step(texts, {{0, 0, 63, 0}});
  states.step(texts, {{0, 63, 66, 0, {{64, 2}, {128, 1}}}});
  for (const auto& [slot, snapshot, from] : {std::tuple{1, 2, 64}, std::tuple{2, 1, 128}}) {
    states.resume(slot, snapshot);
    const std::vector<std::uint16_t> rest = states.step(texts, {{0, from, rows - from, slot}});
    EXPECT_TRUE(
        std::equal(rest.begin(), rest.end(), whole.begin() + std::ptrdiff_t{from} * width, whole.end()))
        << "from " << from;
  }
}

#ifdef NIBBLE_GPU_EMULATION
TEST_P(DeltaOnTheGpu, WarpsThatComeAWholeChunkLateChangeNoBit) {
  const Layer layer(random_, GetParam().shape, GetParam().by_key_head);
  const std::vector<Text> texts{Text(random_, layer, 330)};
  const std::vector<std::uint16_t> whole = in_pieces(layer, texts, 0, {330});
  const unsigned polls = std::exchange(ptx::give_up_polls, 1u << 16);
  emulation::longest_rest = 400;
  for (unsigned seed = 1; seed <= 3; ++seed) {
    emulation::schedule_seed = seed;
    EXPECT_EQ(in_pieces(layer, texts, 0, {330}), whole) << "by seed " << seed;
  }
  emulation::longest_rest = 0;
  emulation::schedule_seed = 0;
  ptx::give_up_polls = polls;
}
#endif

TEST_F(OnTheGpu, TheGatedDeltaRuleRefusesOtherHeads) {
  GatedDeltaCudaArgs args;
  args.layer.shape = {.key_heads = 1, .value_heads = 1, .key_dim = 48, .value_dim = 128, .taps = 4};
  EXPECT_FALSE(gated_delta_cuda(args, nullptr).ok());
}

}  // namespace
}  // namespace nibble
