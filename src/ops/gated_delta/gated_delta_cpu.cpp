#include <algorithm>
#include <array>
#include <cmath>

#include "base/check.h"
#include "ops/gated_delta/delta_kernels.h"
#include "ops/gated_delta/delta_math.h"
#include "ops/gated_delta/gated_delta.h"

namespace nibble {
namespace {

constexpr int gate_block = 256;  // dimensions whose gates are found together

// One head of values of one sequence, over the rows of a step.
class HeadOfValues {
 public:
  HeadOfValues(const DeltaKernels& chosen, const GatedDeltaArgs& args, const StateRows& rows, int head)
      : kernels_(chosen),
        args_(args),
        rows_(rows),
        shape_(args.layer.shape),
        kept_(args.layer.slot(rows.slot)),
        head_(head),
        key_head_(shape_.key_head_of(head)),
        state_(kept_.state + std::int64_t{head} * shape_.key_dim * shape_.value_dim),
        updates_(kept_.updates + std::int64_t{head} * delta_chunk * shape_.value_dim) {
    // Keys of the open chunk's earlier rows; those of this step are met as it goes.
    for (int j = 0; j < rows.first_position % delta_chunk; ++j) {
      keys_[static_cast<std::size_t>(j)] =
          kept_.keys + (std::int64_t{j} * shape_.key_heads + key_head_) * shape_.key_dim;
    }
  }

  void run(WorkMeter& meter) {
    // A row meets the state twice, the open chunk's rows four times, and is met once at the chunk's end.
    const std::int64_t of_row = (std::int64_t{3} * shape_.key_dim + 2 * delta_chunk) * shape_.value_dim;
    auto border = rows_.kept.begin();
    for (int i = 0; i < rows_.row_count; ++i) {
      const int position = rows_.first_position + i;
      take(rows_.row_begin + i, position);
      meter.add(of_row);
      if (position % delta_chunk != delta_chunk - 1) continue;
      bring_forward(position < delta_chunk);
      if (border == rows_.kept.end() || border->position != position + 1) continue;
      keep(border->slot);
      ++border;
    }
  }

 private:
  double& sum_of_g(int j) { return kept_.decays[std::int64_t{j} * shape_.value_heads + head_]; }
  float* update(int j) { return updates_ + std::int64_t{j} * shape_.value_dim; }
  // e^(G_p - G_j); the difference is at most 0.
  float decay_between(int j, int p) {
    return fixed_exp_of_negative(static_cast<float>(sum_of_g(p) - sum_of_g(j)));
  }
  const float* key(int j) const { return keys_[static_cast<std::size_t>(j)]; }

  // The row's u and o.
  void take(int row, int position) {
    const int p = position % delta_chunk;
    const float* queries = args_.qkv + std::int64_t{row} * shape_.channels();
    const float* q = queries + key_head_ * shape_.key_dim;
    const float* v = queries + 2 * shape_.keys() + head_ * shape_.value_dim;
    keys_[static_cast<std::size_t>(p)] = q + shape_.keys();
    const std::int64_t gate = std::int64_t{row} * shape_.value_heads + head_;
    const double g =
        -double{args_.gates.rate[head_]} * softplus(double{args_.a[gate]} + double{args_.gates.bias[head_]});
    sum_of_g(p) = p == 0 ? g : sum_of_g(p - 1) + g;
    float* o = args_.out + std::int64_t{row} * shape_.values() + head_ * shape_.value_dim;
    float* u = update(p);
    from_state(position, q, v, u, o);
    std::array<float, delta_chunk> with_key, with_query;  // of the rows up to this one
    kernels_.multiply_keys({.keys = keys_.data(),
                            .count = p + 1,
                            .key_dim = shape_.key_dim,
                            .key = key(p),
                            .query = q,
                            .with_key = with_key.data(),
                            .with_query = with_query.data()});
    const float own = with_query[static_cast<std::size_t>(p)];
    for (int j = 0; j < p; ++j) {
      const float decay = decay_between(j, p);
      with_key[static_cast<std::size_t>(j)] = decay * with_key[static_cast<std::size_t>(j)];
      with_query[static_cast<std::size_t>(j)] = decay * with_query[static_cast<std::size_t>(j)];
    }
    kernels_.read_updates({.updates = updates_,
                           .count = p,
                           .value_dim = shape_.value_dim,
                           .with_key = with_key.data(),
                           .with_query = with_query.data(),
                           .update = u,
                           .out = o});
    const float beta = delta_sigmoid(args_.b[gate]);
    for (int c = 0; c < shape_.value_dim; ++c) {
      u[c] *= beta;
      o[c] += own * u[c];
    }
  }

  // u = v - e^G (S^T k), o = e^G (S^T q). In the first chunk S is zero.
  void from_state(int position, const float* q, const float* v, float* u, float* o) {
    if (position < delta_chunk) {
      std::copy_n(v, shape_.value_dim, u);
      std::fill_n(o, shape_.value_dim, 0.0f);
      return;
    }
    const int p = position % delta_chunk;
    kernels_.read_state({.state = state_,
                         .key_dim = shape_.key_dim,
                         .value_dim = shape_.value_dim,
                         .key = key(p),
                         .query = q,
                         .decay = fixed_exp_of_negative(static_cast<float>(sum_of_g(p))),
                         .value = v,
                         .update = u,
                         .out = o});
  }

  // S to the border behind the chunk.
  void bring_forward(bool first_chunk) {
    constexpr int last = delta_chunk - 1;
    std::array<float, delta_chunk> left;  // of each row's update by the chunk's end
    for (int j = 0; j < delta_chunk; ++j) left[static_cast<std::size_t>(j)] = decay_between(j, last);
    kernels_.end_chunk({.state = state_,
                        .key_dim = shape_.key_dim,
                        .value_dim = shape_.value_dim,
                        .first = first_chunk,
                        .decay = fixed_exp_of_negative(static_cast<float>(sum_of_g(last))),
                        .keys = keys_.data(),
                        .left = left.data(),
                        .updates = updates_});
  }

  // S as it is at this border.
  void keep(int snapshot) {
    const std::int64_t values = std::int64_t{shape_.key_dim} * shape_.value_dim;
    std::copy_n(state_, values, args_.layer.snapshot(snapshot).state + head_ * values);
  }

  const DeltaKernels& kernels_;
  const GatedDeltaArgs& args_;
  const StateRows& rows_;
  const DeltaShape& shape_;
  const DeltaState kept_;
  const int head_, key_head_;
  float* const state_;
  float* const updates_;
  std::array<const float*, delta_chunk> keys_{};  // of the open chunk's rows, normalised
};

// q and k of one row and head, in place.
void normalise(const DeltaShape& shape, float* x, float further) {
  const float scale = 1.0f / std::sqrt(lane_product(x, x, shape.key_dim) + 1e-6f);
  for (int i = 0; i < shape.key_dim; ++i) x[i] = x[i] * scale * further;
}

// The open chunk's keys that this step brought, for the next one.
void keep_keys(const GatedDeltaArgs& args, const StateRows& rows) {
  const DeltaShape& shape = args.layer.shape;
  const DeltaState state = args.layer.slot(rows.slot);
  const int end = rows.first_position + rows.row_count, open = end / delta_chunk * delta_chunk;
  for (int position = std::max(open, rows.first_position); position < end; ++position) {
    const std::int64_t row = rows.row_begin + position - rows.first_position;
    std::copy_n(args.qkv + row * shape.channels() + shape.keys(), shape.keys(),
                state.keys + std::int64_t{position % delta_chunk} * shape.keys());
  }
}

}  // namespace

void gated_delta(OpContext& context, const GatedDeltaArgs& args) {
  const DeltaShape& shape = args.layer.shape;
  NIBBLE_CHECK(shape.key_heads > 0 && shape.value_heads % shape.key_heads == 0);
  int all = 0;
  for (const StateRows& rows : args.sequences) all = std::max(all, rows.row_begin + rows.row_count);
  const float query_scale = 1.0f / std::sqrt(static_cast<float>(shape.key_dim));
  context.threads.parallel_for(all, [&](int begin, int end) {
    for (int row = begin; row < end; ++row) {
      float* q = args.qkv + std::int64_t{row} * shape.channels();
      for (int head = 0; head < 2 * shape.key_heads; ++head)
        normalise(shape, q + head * shape.key_dim, head < shape.key_heads ? query_scale : 1.0f);
    }
  });
  const int heads = shape.value_heads, sequences = static_cast<int>(args.sequences.size());
  context.threads.parallel_for(sequences * heads, [&](int begin, int end) {
    WorkMeter meter(context.threads);
    for (int i = begin; i < end; ++i)
      HeadOfValues(context.deltas, args, args.sequences[static_cast<std::size_t>(i / heads)], i % heads)
          .run(meter);
  });
  context.threads.parallel_for(sequences, [&](int begin, int end) {
    for (int i = begin; i < end; ++i) keep_keys(args, args.sequences[static_cast<std::size_t>(i)]);
  });
}

void gated_head_norm(OpContext& context, const GatedHeadNormArgs& args) {
  context.threads.parallel_for(args.rows, [&](int begin, int end) {
    std::array<float, gate_block> gates;
    for (int head = begin * args.heads; head < end * args.heads; ++head) {
      float* x = args.x + std::int64_t{head} * args.head_dim;
      const float* z = args.z + std::int64_t{head} * args.head_dim;
      const float mean = lane_product(x, x, args.head_dim) / static_cast<float>(args.head_dim);
      const float scale = 1.0f / std::sqrt(mean + args.eps);
      for (int first = 0; first < args.head_dim; first += gate_block) {
        const int count = std::min(gate_block, args.head_dim - first);
        std::copy_n(z + first, count, gates.data());
        context.deltas.silu(gates.data(), count);
        for (int i = 0; i < count; ++i)
          x[first + i] = context.activation(x[first + i] * scale * args.weight[first + i] *
                                            gates[static_cast<std::size_t>(i)]);
      }
    }
  });
}

}  // namespace nibble
