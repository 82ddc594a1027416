// What tests of attention on a GPU share: a sequence of random keys and values, and launches on it.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "ops/attention/cuda/attention_cuda.h"
#include "ops/cuda/absent.h"
#include "ops/cuda/device_test_util.h"
#include "ops/linear/cuda/dense_tiles.h"
#include "ops/op_test_util.h"

namespace nibble::attention_test {

struct AttentionShape {
  int heads, kv_heads, page_size, window;
  bool sinks;
  DType dtype = DType::bf16;  // of keys and values
  int head_dim = 64;

  std::size_t element_bytes() const { return dtype_bytes(dtype); }
};

// Which element of a layer has a dimension of a position's key, or value.
inline std::size_t element_of(const AttentionShape& shape, int slots, int head, int slot, int d, bool value) {
  const int dims = shape.head_dim, chunk = head * slots * dims + slot / 64 * (64 * dims);
  const bool e4m3 = shape.dtype == DType::f8_e4m3;
  const int at = value ? (e4m3 ? KvE4m3::value_at(slot % 64, d) : KvBf16::value_at(slot % 64, d))
                       : (e4m3 ? KvE4m3::key_at(slot % 64, d, dims) : KvBf16::key_at(slot % 64, d, dims));
  return static_cast<std::size_t>(chunk + at);
}

// One sequence of `length` positions in pages of a shuffled order; what was never written is no number.
struct Sequence {
  AttentionShape shape;
  int length, slots;
  std::vector<Bf16> q, k, v;
  std::vector<std::uint8_t> keys, values;  // as the layer has them
  std::vector<float> sinks;
  std::vector<std::int32_t> pages;

  Sequence(std::mt19937& random, const AttentionShape& shape_, int length_) : shape(shape_), length(length_) {
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

inline int short_positions(int head_dim) {
  return (1 + attention_most_later_clusters) * attention_cluster_positions(head_dim);
}

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
      longest_ = std::max(longest_, cut.first_position + cut.row_count);
      splits_ += attention_splits(cut.first_position + cut.row_count, sequence.shape.head_dim);
    }
    std::vector<Bf16> queries(static_cast<std::size_t>(rows_ * width_));
    for (const SequenceCuda& cut : cuts) {
      std::copy_n(sequence.q.begin() + cut.first_position * width_, cut.row_count * width_,
                  queries.begin() + cut.row_begin * width_);
    }
    const int later = (longest_ - 1) / attention_cluster_positions(sequence.shape.head_dim);
    if (later <= attention_most_later_clusters) later_clusters_ = later;
    q_ = on_device(queries);
    out_ = device_bytes(DenseShape{0, width_}.token_bytes(rows_), 0xff);
    partials_ =
        device_bytes(attention_partials(splits_, sequence.shape.kv_heads, sequence.shape.head_dim) * 4, 0xff);
  }

  // As if contexts could be of any length, which have other kernels.
  void forget_lengths() { later_clusters_ = attention_any_context; }
  // As if they could be longer.
  void add_later_clusters() {
    if (later_clusters_ != attention_any_context) later_clusters_ = attention_most_later_clusters;
  }

  AttentionCudaArgs args(AttentionRows rows, bool settled) {
    const AttentionShape& shape = sequence_.shape;
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
        .later_clusters = later_clusters_,
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
  int longest_ = 0;
  int later_clusters_ = attention_any_context;
  DeviceBuffer cuts_, keys_, values_, sinks_, table_, q_, out_, partials_;
};

inline std::vector<Bf16> Sequence::on_gpu(const std::vector<SequenceCuda>& cuts, AttentionRows rows,
                                          bool settled) const {
  AttentionLaunch launch(*this, cuts);
  launch.queue(rows, settled, nullptr);
  return launch.result();
}

inline bool same(const std::vector<Bf16>& a, const std::vector<Bf16>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * 2) == 0;
}

inline std::string name_of(const AttentionShape& s, int length) {
  return std::to_string(s.heads) + "/" + std::to_string(s.kv_heads) + ", pages of " +
         std::to_string(s.page_size) + ", window " + std::to_string(s.window) +
         (s.sinks ? ", sinks, " : ", ") + std::to_string(length) + " positions in " +
         std::string(dtype_name(s.dtype)) + ", heads of " + std::to_string(s.head_dim);
}

}  // namespace nibble::attention_test
