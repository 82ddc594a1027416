// On a GPU, or on its emulation: attention against double precision, and its bits against themselves.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>

#include "ops/attention/cuda/attention_cuda.h"
#include "ops/cuda/absent.h"
#include "ops/cuda/device_test_util.h"
#include "ops/linear/cuda/dense_tiles.h"
#include "ops/op_test_util.h"

namespace nibble {
namespace {

using AttentionOnTheGpu = OnTheGpu;

struct Shape {
  int heads, kv_heads, page_size, window;
  bool sinks;
  DType dtype = DType::bf16;  // of keys and values
  int head_dim = 64;

  std::size_t element_bytes() const { return dtype_bytes(dtype); }
};

// Which element of a layer has a dimension of a position's key, or value.
std::size_t element_of(const Shape& shape, int slots, int head, int slot, int d, bool value) {
  const int dims = shape.head_dim, chunk = head * slots * dims + slot / 64 * (64 * dims);
  const bool e4m3 = shape.dtype == DType::f8_e4m3;
  const int at = value ? (e4m3 ? KvE4m3::value_at(slot % 64, d) : KvBf16::value_at(slot % 64, d))
                       : (e4m3 ? KvE4m3::key_at(slot % 64, d, dims) : KvBf16::key_at(slot % 64, d, dims));
  return static_cast<std::size_t>(chunk + at);
}

// One sequence of `length` positions in pages of a shuffled order; what was never written is no number.
struct Sequence {
  Shape shape;
  int length, slots;
  std::vector<Bf16> q, k, v;
  std::vector<std::uint8_t> keys, values;  // as the layer has them
  std::vector<float> sinks;
  std::vector<std::int32_t> pages;

  Sequence(std::mt19937& random, const Shape& shape_, int length_) : shape(shape_), length(length_) {
    const std::size_t n = static_cast<std::size_t>(length * shape.head_dim);
    q = random_bf16(random, n * static_cast<std::size_t>(shape.heads), 2.0f);
    k = random_bf16(random, n * static_cast<std::size_t>(shape.kv_heads));
    v = random_bf16(random, n * static_cast<std::size_t>(shape.kv_heads));
    if (shape.dtype == DType::f8_e4m3) {
      for (std::vector<Bf16>* list : {&k, &v}) {
        for (Bf16& each : *list) each = Bf16::from_float(E4m3::from_float(each.to_float()).to_float());
      }
    }
    sinks = random_floats(random, static_cast<std::size_t>(shape.heads));
    pages.resize(static_cast<std::size_t>((length + shape.page_size - 1) / shape.page_size));
    std::iota(pages.begin(), pages.end(), 1);
    std::shuffle(pages.begin(), pages.end(), random);
    slots = (static_cast<int>(pages.size()) + 1) * shape.page_size;
    keys.assign(static_cast<std::size_t>(shape.kv_heads * slots * shape.head_dim) * shape.element_bytes(),
                0xff);
    values = keys;
    for (int position = 0; position < length; ++position) {
      const int slot = pages[static_cast<std::size_t>(position / shape.page_size)] * shape.page_size +
                       position % shape.page_size;
      for (int head = 0; head < shape.kv_heads; ++head) {
        for (int d = 0; d < shape.head_dim; ++d) {
          const std::size_t from =
              static_cast<std::size_t>((position * shape.kv_heads + head) * shape.head_dim + d);
          store(keys, element_of(shape, slots, head, slot, d, false), k[from]);
          store(values, element_of(shape, slots, head, slot, d, true), v[from]);
        }
      }
    }
  }
  void store(std::vector<std::uint8_t>& layer, std::size_t element, Bf16 value) const {
    if (shape.dtype == DType::f8_e4m3) {
      layer[element] = E4m3::from_float(value.to_float()).bits;
    } else {
      std::memcpy(&layer[2 * element], &value, 2);
    }
  }

  // With keys and values that are no numbers outside positions [first, past).
  Sequence seen_from(int first, int past) const {
    Sequence poisoned = *this;
    for (int position = 0; position < length; ++position) {
      if (position >= first && position < past) continue;
      const int slot = pages[static_cast<std::size_t>(position / shape.page_size)] * shape.page_size +
                       position % shape.page_size;
      for (int head = 0; head < shape.kv_heads; ++head) {
        for (int d = 0; d < shape.head_dim; ++d) {
          poisoned.store(poisoned.keys, element_of(shape, slots, head, slot, d, false), Bf16{0x7fc0});
          poisoned.store(poisoned.values, element_of(shape, slots, head, slot, d, true), Bf16{0x7fc0});
        }
      }
    }
    return poisoned;
  }

  // What the device gives for queries at these positions: rows i of q, cut into sequences of some rows each.
  // [rows, heads, head_dim].
  std::vector<Bf16> on_gpu(const std::vector<SequenceCuda>& cuts, AttentionRows rows,
                           bool settled = false) const;

  std::vector<Bf16> whole(AttentionRows rows) const { return on_gpu({{0, length, 0, 0}}, rows); }
  // Every position as a sequence of its own, or in runs of `rows`; in as many launches as it takes.
  std::vector<Bf16> in_runs(int rows, AttentionRows which) const {
    std::vector<Bf16> found;
    std::vector<SequenceCuda> cuts;
    int row_count = 0;
    for (int first = 0; first < length; first += rows) {
      cuts.push_back({row_count, std::min(rows, length - first), first, 0});
      row_count += cuts.back().row_count;
      if (cuts.size() < attention_max_sequences && first + rows < length) continue;
      const std::vector<Bf16> launch = on_gpu(cuts, which);
      found.insert(found.end(), launch.begin(), launch.end());
      cuts.clear();
      row_count = 0;
    }
    return found;
  }

  std::vector<double> exact(int position, int head) const {
    const int kv_head = head / (shape.heads / shape.kv_heads);
    const int first = shape.window > 0 ? std::max(0, position - shape.window + 1) : 0;
    const int dims = shape.head_dim;
    std::vector<double> out(static_cast<std::size_t>(dims)), scores;
    double largest = shape.sinks ? sinks[static_cast<std::size_t>(head)] : -INFINITY;
    for (int j = first; j <= position; ++j) {
      double score = 0;
      for (int d = 0; d < dims; ++d) {
        score += static_cast<double>(
                     q[static_cast<std::size_t>((position * shape.heads + head) * dims + d)].to_float()) *
                 k[static_cast<std::size_t>((j * shape.kv_heads + kv_head) * dims + d)].to_float() / 8;
      }
      scores.push_back(score);
      largest = std::max(largest, score);
    }
    double sum = shape.sinks ? std::exp(sinks[static_cast<std::size_t>(head)] - largest) : 0;
    for (int j = first; j <= position; ++j) {
      const double weight = std::exp(scores[static_cast<std::size_t>(j - first)] - largest);
      sum += weight;
      for (int d = 0; d < dims; ++d) {
        out[static_cast<std::size_t>(d)] +=
            weight * v[static_cast<std::size_t>((j * shape.kv_heads + kv_head) * dims + d)].to_float();
      }
    }
    for (double& each : out) each /= sum;
    return out;
  }
};

// A launch and all that it works on.
class AttentionLaunch {
 public:
  AttentionLaunch(const Sequence& sequence, const std::vector<SequenceCuda>& cuts)
      : sequence_(sequence),
        width_(sequence.shape.heads * sequence.shape.head_dim),
        cuts_(on_device(cuts)),
        keys_(on_device(sequence.keys)),
        values_(on_device(sequence.values)),
        sinks_(on_device(sequence.sinks)),
        table_(on_device(sequence.pages)) {
    for (const SequenceCuda& cut : cuts) {
      rows_ += cut.row_count;
      short_contexts_ &=
          cut.first_position + cut.row_count <= attention_short_positions(sequence.shape.head_dim);
      splits_ += attention_splits(cut.first_position + cut.row_count, sequence.shape.head_dim);
    }
    std::vector<Bf16> queries(static_cast<std::size_t>(rows_ * width_));
    for (const SequenceCuda& cut : cuts) {
      std::copy_n(sequence.q.begin() + cut.first_position * width_, cut.row_count * width_,
                  queries.begin() + cut.row_begin * width_);
    }
    q_ = on_device(queries);
    out_ = device_bytes(DenseShape{0, width_}.token_bytes(rows_), 0xff);
    partials_ =
        device_bytes(attention_partials(splits_, sequence.shape.kv_heads, sequence.shape.head_dim) * 4, 0xff);
  }

  // As if contexts could be of any length, which have other kernels.
  void forget_lengths() { short_contexts_ = false; }

  AttentionCudaArgs args(AttentionRows rows, bool settled) {
    const Shape& shape = sequence_.shape;
    return {
        .q = q_.as<Bf16>(),
        .heads = shape.heads,
        .sequences = cuts_.as<SequenceCuda>(),
        .sequence_count = sequence_count(),
        .page_table = table_.as<std::int32_t>(),
        .page_size = shape.page_size,
        .cache = {keys_.data(), values_.data(), shape.kv_heads, sequence_.slots, shape.dtype, shape.head_dim},
        .window = shape.window,
        .sinks = shape.sinks ? sinks_.as<float>() : nullptr,
        .scale = 0.125f,
        .out = out_.as<std::uint8_t>(),
        .rows = rows,
        .short_contexts = short_contexts_,
        .max_splits = splits_,
        .settled = settled,
        .workspace = {partials_.as<float>()}};
  }
  void queue(AttentionRows rows, bool settled, cudaStream_t stream) {
    const Status status = attention_cuda(args(rows, settled), stream);
    NIBBLE_CHECK(status.ok(), status.message());
  }

  // Waits for what is queued. [rows, heads, head_dim].
  std::vector<Bf16> result() const {
    const DenseShape o{0, width_};
    std::vector<std::uint8_t> tiles(o.token_bytes(rows_));
    out_.copy_to(std::span(tiles));
    std::vector<Bf16> found(static_cast<std::size_t>(rows_ * width_));
    for (int row = 0; row < rows_; ++row) {
      for (int i = 0; i < width_; ++i) {
        std::memcpy(&found[static_cast<std::size_t>(row * width_ + i)],
                    tiles.data() + token_offset(o.blocks(), row, i), 2);
      }
    }
    std::vector<std::uint32_t> left(partials_.size() / 4);
    partials_.copy_to(std::span(left));
    EXPECT_EQ(std::count(left.begin(), left.end(), absent_bits), static_cast<std::ptrdiff_t>(left.size()))
        << "the next launch would take what this one left";
    return found;
  }

 private:
  int sequence_count() const { return static_cast<int>(cuts_.size() / sizeof(SequenceCuda)); }
  const Sequence& sequence_;
  int width_, rows_ = 0, splits_ = 0;
  bool short_contexts_ = true;
  DeviceBuffer cuts_, keys_, values_, sinks_, table_, q_, out_, partials_;
};

std::vector<Bf16> Sequence::on_gpu(const std::vector<SequenceCuda>& cuts, AttentionRows rows,
                                   bool settled) const {
  AttentionLaunch launch(*this, cuts);
  launch.queue(rows, settled, nullptr);
  return launch.result();
}

bool same(const std::vector<Bf16>& a, const std::vector<Bf16>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * 2) == 0;
}

std::string name_of(const Shape& s, int length) {
  return std::to_string(s.heads) + "/" + std::to_string(s.kv_heads) + ", pages of " +
         std::to_string(s.page_size) + ", window " + std::to_string(s.window) +
         (s.sinks ? ", sinks, " : ", ") + std::to_string(length) + " positions in " +
         std::string(dtype_name(s.dtype)) + ", heads of " + std::to_string(s.head_dim);
}

struct Case {
  Shape shape;
  int length;
};
std::vector<Case> cases() {
  std::vector<Case> all;
  for (const DType dtype : {DType::bf16, DType::f8_e4m3}) {
    const std::vector<Case> small = {
        {{8, 1, 64, 0, true, dtype}, 150},        {{4, 2, 128, 40, false, dtype}, 70},
        {{8, 1, 128, 128, true, dtype}, 300},     {{16, 1, 64, 128, true, dtype}, 200},
        {{8, 1, 64, 0, false, dtype, 128}, 200},  {{16, 1, 128, 0, true, dtype, 128}, 150},
        {{4, 2, 64, 70, false, dtype, 128}, 230}, {{16, 2, 64, 0, false, dtype, 256}, 150},
        {{4, 2, 128, 70, true, dtype, 256}, 200}};
    const std::vector<Case> large = {
        {{64, 8, 64, 0, true, dtype}, 700},        {{64, 8, 256, 128, true, dtype}, 700},
        {{4, 2, 128, 40, false, dtype}, 333},      {{16, 1, 64, 0, false, dtype}, 257},
        {{3, 3, 64, 0, true, dtype}, 130},         {{64, 8, 128, 0, true, dtype}, 2100},
        {{32, 4, 64, 0, false, dtype, 128}, 1500}, {{64, 4, 128, 0, false, dtype, 128}, 700},
        {{6, 3, 64, 100, true, dtype, 128}, 450},  {{16, 2, 64, 0, false, dtype, 256}, 1500},
        {{32, 2, 128, 100, true, dtype, 256}, 700}};
    const std::vector<Case>& some = small_cases ? small : large;
    all.insert(all.end(), some.begin(), some.end());
  }
  return all;
}

TEST_F(AttentionOnTheGpu, AgreesWithDoublePrecision) {
  std::mt19937 random(1);
  for (const auto& [shape, length] : cases()) {
    const Sequence sequence(random, shape, length);
    for (const AttentionRows rows : {AttentionRows::one, AttentionRows::all_as_many}) {
      std::vector<SequenceCuda> cuts;
      for (int position : {0, 1, 62, 63, 64, 127, length / 2, length - 1})
        cuts.push_back({static_cast<std::int32_t>(cuts.size()), 1, std::min(position, length - 1), 0});
      const std::vector<Bf16> found = sequence.on_gpu(cuts, rows);
      double difference = 0, norm = 0;
      for (const SequenceCuda& cut : cuts) {
        for (int head = 0; head < shape.heads; ++head) {
          const std::vector<double> expected = sequence.exact(cut.first_position, head);
          for (int d = 0; d < shape.head_dim; ++d) {
            const auto at =
                static_cast<std::size_t>((cut.row_begin * shape.heads + head) * shape.head_dim + d);
            const double error = found[at].to_float() - expected[static_cast<std::size_t>(d)];
            difference += error * error;
            norm += expected[static_cast<std::size_t>(d)] * expected[static_cast<std::size_t>(d)];
          }
        }
      }
      EXPECT_LT(std::sqrt(difference / norm), 4e-3) << name_of(shape, length);
    }
  }
}

TEST_F(AttentionOnTheGpu, ARowsBitsDependNeitherOnTheKernelNorOnThePromptsCutting) {
  std::mt19937 random(2);
  for (const auto& [shape, length] : cases()) {
    const Sequence sequence(random, shape, length);
    const int tile_rows = attention_tile / (shape.heads / shape.kv_heads);
    const std::vector<Bf16> whole = sequence.whole(AttentionRows::all_as_many);
    EXPECT_TRUE(same(whole, sequence.in_runs(1, AttentionRows::one))) << name_of(shape, length);
    EXPECT_TRUE(same(whole, sequence.in_runs(tile_rows, AttentionRows::both))) << name_of(shape, length);
    EXPECT_TRUE(same(whole, sequence.in_runs(33, AttentionRows::both))) << name_of(shape, length);
  }
}

// Short windows begin and end anywhere in steps that are splits of their own, or (from 2,048 on) in one
// split, and with many rows of a head lie in three steps. A short context has its own kernel where it is the
// only one: in a fifth of the launches.
TEST_F(AttentionOnTheGpu, GivesFewSequencesThatSeeLittleTheSameBits) {
  std::mt19937 random(8);
  for (const DType dtype : {DType::bf16, DType::f8_e4m3}) {
    for (const Case& c : std::vector<Case>{{{8, 1, 128, 128, true, dtype}, 2780},
                                           {{16, 1, 64, 20, false, dtype}, 300},
                                           {{4, 2, 64, 128, true, dtype}, 290},
                                           {{2, 2, 256, 120, false, dtype}, 2360},
                                           {{8, 1, 64, 0, true, dtype}, 2048},
                                           {{16, 1, 64, 300, true, dtype}, 900},
                                           {{4, 2, 256, 0, false, dtype}, 190},
                                           {{8, 1, 64, 0, false, dtype, 128}, 1000},
                                           {{2, 1, 64, 40, true, dtype, 128}, 400},
                                           {{8, 1, 64, 0, false, dtype, 256}, 400}}) {
      const Sequence sequence(random, c.shape, c.length);
      const int width = c.shape.heads * c.shape.head_dim;
      const int begin = c.length > 2048 ? c.length - 800 : small_cases ? std::max(0, c.length - 300) : 0;
      const int tile_rows = attention_tile / (c.shape.heads / c.shape.kv_heads);
      const std::vector<Bf16> expected =
          sequence.on_gpu({{0, c.length - begin, begin, 0}}, AttentionRows::all_as_many);
      for (int launch = 0; launch < (small_cases ? 10 : 200); ++launch) {
        std::vector<SequenceCuda> cuts;
        std::vector<Bf16> wanted;
        int rows = 0;
        for (unsigned i = random() % 5 + 1; i > 0; --i) {
          const int count = static_cast<int>(random() % static_cast<unsigned>(tile_rows + 1));
          const int first =
              begin + static_cast<int>(random() % static_cast<unsigned>(c.length - begin - count));
          cuts.push_back({rows, count, first, 0});
          rows += count;
          const auto from = expected.begin() + (first - begin) * width;
          wanted.insert(wanted.end(), from, from + count * width);
        }
        EXPECT_TRUE(same(wanted, sequence.on_gpu(cuts, AttentionRows::both, launch % 2 == 0)))
            << name_of(c.shape, c.length) << ", launch " << launch;
      }
    }
  }
}

// The last `rows` rows of a context that is alone, by the kernel for short ones where it is short, or else by
// the one for few rows, which takes all that are not known to be short. Nothing that they do not see is a
// number.
void expect_same_alone(std::mt19937& random, const Shape& shape, int length, int rows) {
  const Sequence sequence(random, shape, length);
  const std::vector<SequenceCuda> cut = {{0, rows, length - rows, 0}};
  const AttentionRows which = rows == 1 ? AttentionRows::one : AttentionRows::both;
  AttentionLaunch few(sequence, cut);
  few.forget_lengths();
  few.queue(which, false, nullptr);
  const std::vector<Bf16> expected = few.result();
  const int first = shape.window > 0 ? length - rows - shape.window + 1 : 0;
  const Sequence hostile = sequence.seen_from(first, length);
  for (const bool settled : {false, true}) {
    AttentionLaunch alone(hostile, cut);
    const int most = attention_short_positions(shape.head_dim);
    EXPECT_EQ(
        attention_shared_bytes(alone.args(which, settled)) < attention_shared_bytes(few.args(which, settled)),
        length <= most)
        << "the other kernel";
    alone.queue(which, settled, nullptr);
    EXPECT_TRUE(same(expected, alone.result())) << name_of(shape, length) << ", " << rows << " rows";
  }
}

class AttentionOfALoneContext : public OnTheGpu, public testing::WithParamInterface<int> {};
INSTANTIATE_TEST_SUITE_P(HeadDims, AttentionOfALoneContext, testing::Values(64, 128));

TEST_P(AttentionOfALoneContext, HasTheSameBitsWhetherItIsKnownToBeShort) {
  std::mt19937 random(11);
  const int dims = GetParam(), step = attention_step_of(dims), most = attention_short_positions(dims);
  for (const DType dtype : {DType::bf16, DType::f8_e4m3}) {
    for (const int group : {1, 2, 4, 8, 16}) {
      if (small_cases && dtype == DType::f8_e4m3 && group % 8 != 0) continue;
      const Shape shape{2 * group, 2, 64, 0, group % 8 == 0, dtype, dims};
      for (const int length : {1, 15, 16, 17, step, step + 1, 5 * step - 20})
        expect_same_alone(random, shape, length, 1);
    }
    for (const int length : {most - step, most, most + 1})
      expect_same_alone(random, {16, 1, 128, 0, false, dtype, dims}, length, 1);
  }
}

// Rows whose queries fill a tile or a part of it, and windows, which begin anywhere in a step.
TEST_P(AttentionOfALoneContext, HasTheSameBitsInSeveralRowsAndWindows) {
  std::mt19937 random(12);
  const int dims = GetParam(), most = attention_short_positions(dims);
  for (const DType dtype : {DType::bf16, DType::f8_e4m3}) {
    for (const auto& [group, rows] :
         std::vector<std::pair<int, int>>{{1, 16}, {1, 3}, {2, 5}, {4, 3}, {8, 2}, {16, 1}}) {
      for (const int window : {0, 150, 300})
        expect_same_alone(random, {group, 1, 64, window, true, dtype, dims}, 333, rows);
    }
    expect_same_alone(random, {8, 1, 64, 0, true, dtype, dims}, most, 2);
    expect_same_alone(random, {4, 2, 64, 700, false, dtype, dims}, most, 3);
  }
  if (dims == 64) return;  // whose short windows have a kernel in any context
  expect_same_alone(random, {8, 1, 64, 40, true, DType::bf16, dims}, 200, 1);
}

TEST_P(AttentionOfALoneContext, MayHaveNoRowsOrMoreThanATileOfThem) {
  std::mt19937 random(13);
  const Sequence sequence(random, {8, 1, 64, 0, true, DType::bf16, GetParam()}, 150);
  EXPECT_TRUE(sequence.on_gpu({{0, 0, 0, 0}}, AttentionRows::one).empty());
  EXPECT_TRUE(same(sequence.on_gpu({{0, 5, 145, 0}}, AttentionRows::both),
                   sequence.on_gpu({{0, 5, 145, 0}}, AttentionRows::all_as_many)));
}

// Of heads of 256 a tile's steps go to two halves of a block in turns, on from one tile to the next. So there
// are tiles of one step, of odd and even numbers of them, and such as begin within a split, in several
// orders, and more of them than an emulated GPU has multiprocessors.
struct RowRun {
  int first, count;
};
std::vector<RowRun> runs_of_any_steps() {
  return {{0, 9}, {59, 3}, {61, 12}, {135, 17}, {250, 4}, {1020, 12}, {1090, 8}};
}

TEST_F(AttentionOnTheGpu, GivesWideHeadsTheSameBitsInTilesOfAnySteps) {
  std::mt19937 random(9);
  for (const auto& [dtype, window] : std::vector<std::pair<DType, int>>{{DType::bf16, 0},
                                                                        {DType::bf16, 20},
                                                                        {DType::bf16, 100},
                                                                        {DType::bf16, 200},
                                                                        {DType::f8_e4m3, 0},
                                                                        {DType::f8_e4m3, 100}}) {
    const Sequence sequence(random, {8, 1, 64, window, true, dtype, 256}, 1100);
    std::vector<RowRun> runs = runs_of_any_steps();
    for (int launch = 0; launch < (small_cases ? 2 : 20); ++launch) {
      std::shuffle(runs.begin(), runs.end(), random);
      std::vector<SequenceCuda> as_many, one_by_one;
      int rows = 0;
      for (const RowRun& run : runs) {
        as_many.push_back({rows, run.count, run.first, 0});
        for (int i = 0; i < run.count; ++i) one_by_one.push_back({rows++, 1, run.first + i, 0});
      }
      EXPECT_TRUE(same(sequence.on_gpu(as_many, AttentionRows::all_as_many),
                       sequence.on_gpu(one_by_one, AttentionRows::one)))
          << name_of(sequence.shape, sequence.length) << ", launch " << launch;
    }
  }
}

TEST_F(AttentionOnTheGpu, KeepsNotANumberOutOfTilesOfWideHeads) {
  std::mt19937 random(10);
  for (const DType dtype : {DType::bf16, DType::f8_e4m3}) {
    const Shape shape{8, 1, 64, 100, true, dtype, 256};
    const Sequence sequence(random, shape, 300);
    for (const RowRun& run : runs_of_any_steps()) {
      if (run.first + run.count > sequence.length) continue;
      const Sequence poisoned = sequence.seen_from(run.first - shape.window + 1, run.first + run.count);
      const std::vector<SequenceCuda> cut = {{0, run.count, run.first, 0}};
      EXPECT_TRUE(same(sequence.on_gpu(cut, AttentionRows::all_as_many),
                       poisoned.on_gpu(cut, AttentionRows::all_as_many)))
          << name_of(shape, sequence.length) << ", from " << run.first;
    }
  }
}

// Blocks share multiprocessors, and some wait there for others, which keeps the memory pipe busy.
TEST_F(AttentionOnTheGpu, GivesTheSameBitsEveryTime) {
  std::mt19937 random(6);
  for (const DType dtype : {DType::bf16, DType::f8_e4m3}) {
    for (const int window : {0, 128}) {
      const Shape shape =
          small_cases ? Shape{8, 1, 64, window, true, dtype} : Shape{64, 8, 64, window, true, dtype};
      const int count = small_cases ? 40 : 700, rounds = small_cases ? 1 : window > 0 ? 15 : 50;
      const Sequence sequence(random, shape, small_cases ? 300 : 1200);
      std::vector<SequenceCuda> cuts;
      for (int i = 0; i < count; ++i) cuts.push_back({i, 1, sequence.length - count + i, 0});
      const std::vector<Bf16> expected = sequence.on_gpu(cuts, AttentionRows::all_as_many);
      AttentionLaunch launch(sequence, cuts);
      int other_bits = 0;
      for (int round = 0; round < rounds; ++round) {
        launch.queue(AttentionRows::one, false, nullptr);
        other_bits += !same(expected, launch.result());
      }
      EXPECT_EQ(other_bits, 0) << "of " << rounds << " launches, " << name_of(shape, sequence.length);
    }
  }
}

class AttentionOfManySplits : public OnTheGpu, public testing::WithParamInterface<int> {};
INSTANTIATE_TEST_SUITE_P(HeadDims, AttentionOfManySplits, testing::Values(64, 128, 256));

TEST_P(AttentionOfManySplits, TakesThemInByTheDozen) {
  std::mt19937 random(3);
  const int dims = GetParam();
  const Shape shape{2, 1, 64, 0, true, DType::bf16, dims};
  const int length =
      2 * attention_step_of(dims) * (small_cases ? 34 : 70) + 5;  // more splits than are scaled at once
  const Sequence sequence(random, shape, length);
  const std::vector<SequenceCuda> last = {{0, 3, length - 3, 0}};
  const std::vector<Bf16> few = sequence.on_gpu(last, AttentionRows::both);
  EXPECT_TRUE(same(few, sequence.on_gpu(last, AttentionRows::all_as_many)));
  EXPECT_TRUE(same(few, sequence.on_gpu(last, AttentionRows::both, true)));
  // A window that begins within a split, and that blocks share all the same.
  Sequence windowed = sequence;
  windowed.shape.window = 3000 * attention_step_of(dims) / attention_step;
  EXPECT_TRUE(
      same(windowed.on_gpu(last, AttentionRows::both), windowed.on_gpu(last, AttentionRows::all_as_many)));
  const std::vector<double> expected = sequence.exact(length - 1, 1);
  for (int d = 0; d < dims; ++d) {
    const double wanted = expected[static_cast<std::size_t>(d)];
    // Half of bfloat16's last place, and what the sums differ by.
    EXPECT_NEAR(few[static_cast<std::size_t>((2 * 2 + 1) * dims + d)].to_float(), wanted,
                1e-3 + std::abs(wanted) / 256);
  }
}

TEST_F(AttentionOnTheGpu, LeavesOutPaddingAndKeepsNotANumberToItsSequence) {
  std::mt19937 random(4);
  for (const DType dtype : {DType::bf16, DType::f8_e4m3}) {
    Sequence sequence(random, {8, 1, 64, 0, true, dtype}, 90);
    const std::vector<SequenceCuda> cuts = {
        {0, 1, 40, 0}, {1, 0, 0, 0}, {1, 7, 50, 0}, {8, 0, 0, 0}, {8, 1, 89, 0}};
    const std::vector<Bf16> clean = sequence.on_gpu(cuts, AttentionRows::both);
    // The value at position 70, dimension 3: seen by the last sequence alone.
    sequence.store(sequence.values,
                   element_of(sequence.shape, sequence.slots, 0, sequence.pages[1] * 64 + 70 - 64, 3, true),
                   Bf16{0x7fc0});
    const std::vector<Bf16> found = sequence.on_gpu(cuts, AttentionRows::both);
    for (std::size_t i = 0; i < found.size(); ++i) {
      if (i / 512 == 8 && i % 64 == 3) {
        EXPECT_TRUE(std::isnan(found[i].to_float())) << i;
      } else {
        EXPECT_EQ(found[i], clean[i]) << i;
      }
    }
  }
}

// Of a window nothing is read that is not seen, or not so that it counts: what lies before it in its chunk,
// and behind it, may be no number.
TEST_F(AttentionOnTheGpu, KeepsNotANumberOutOfWindows) {
  std::mt19937 random(7);
  for (const DType dtype : {DType::bf16, DType::f8_e4m3}) {
    Sequence sequence(random, {8, 1, 64, 20, true, dtype}, 160);
    std::vector<SequenceCuda> cuts;
    for (int position = 69; position < 160; ++position)
      cuts.push_back({static_cast<std::int32_t>(cuts.size()), 1, position, 0});
    const std::vector<Bf16> clean = sequence.on_gpu(cuts, AttentionRows::one);
    const int slot = sequence.pages[1] * 64 + 96 - 64;
    sequence.store(sequence.values, element_of(sequence.shape, sequence.slots, 0, slot, 3, true),
                   Bf16{0x7fc0});
    sequence.store(sequence.keys, element_of(sequence.shape, sequence.slots, 0, slot, 5, false),
                   Bf16{0x7fc0});
    const std::vector<Bf16> found = sequence.on_gpu(cuts, AttentionRows::one);
    for (const SequenceCuda& cut : cuts) {
      if (cut.first_position >= 96 && cut.first_position < 96 + 20) continue;
      for (int i = 0; i < 512; ++i) {
        const std::size_t at = static_cast<std::size_t>(cut.row_begin * 512 + i);
        EXPECT_EQ(found[at], clean[at]) << cut.first_position << ": " << i;
      }
    }
  }
}

// A window of one position gives its value back, where the weight is 1.
TEST_F(AttentionOnTheGpu, ReadsEveryCodeOfE4m3) {
  std::mt19937 random(5);
  const Shape shape{1, 1, 64, 1, false, DType::f8_e4m3};
  Sequence sequence(random, shape, 4);
  std::fill(sequence.q.begin(), sequence.q.end(), Bf16{0});
  for (int code = 0; code < 256; ++code) {
    const int slot = sequence.pages[0] * 64 + code / 64;
    sequence.values[element_of(shape, sequence.slots, 0, slot, code % 64, true)] =
        static_cast<std::uint8_t>(code);
  }
  for (const AttentionRows rows : {AttentionRows::one, AttentionRows::all_as_many}) {
    const std::vector<Bf16> found =
        sequence.on_gpu({{0, 1, 0, 0}, {1, 1, 1, 0}, {2, 1, 2, 0}, {3, 1, 3, 0}}, rows);
    for (int code = 0; code < 256; ++code) {
      const float expected = E4m3{static_cast<std::uint8_t>(code)}.to_float();
      const float value = found[static_cast<std::size_t>(code)].to_float();
      EXPECT_TRUE(std::isnan(expected) ? std::isnan(value) : value == expected) << code << ": " << value;
    }
  }
}

TEST_F(AttentionOnTheGpu, RefusesWhatHasNoTile) {
  const KvCudaLayer cache{nullptr, nullptr, 2, 64};
  EXPECT_NE(attention_cuda({.heads = 6, .page_size = 64, .cache = cache}, nullptr).message().find("6 for 2"),
            std::string::npos);
  EXPECT_NE(attention_cuda({.heads = 4, .page_size = 32, .cache = cache}, nullptr).message().find("32"),
            std::string::npos);
  KvCudaLayer of_floats = cache;
  of_floats.dtype = DType::f32;
  EXPECT_NE(
      attention_cuda({.heads = 4, .page_size = 64, .cache = of_floats}, nullptr).message().find("not in f32"),
      std::string::npos);
  const Status upside_down =
      attention_cuda({.heads = 4, .page_size = 64, .cache = cache, .scale = -0.125f}, nullptr);
  EXPECT_NE(upside_down.message().find("-0.125"), std::string::npos);
}

}  // namespace
}  // namespace nibble
