#include <algorithm>
#include <limits>

#include "base/check.h"
#include "formats/bf16.h"
#include "ops/attention/attention.h"
#include "ops/fixed_math.h"
#include "ops/linear/dot_tile.h"

namespace nibble {
namespace {

constexpr int max_head_dim = 256;
constexpr float minus_infinity = -std::numeric_limits<float>::infinity();

void store_vector(const float* from, int n, DType dtype, std::byte* to, std::int64_t element) {
  if (dtype == DType::f32) {
    std::copy_n(from, n, reinterpret_cast<float*>(to) + element);
  } else {
    Bf16* out = reinterpret_cast<Bf16*>(to) + element;
    for (int i = 0; i < n; ++i) out[i] = Bf16::from_float(from[i]);
  }
}

// The vector as floats: in place where the cache holds floats, else widened into `room`.
const float* load_vector(const std::byte* from, std::int64_t element, int n, DType dtype, float* room) {
  if (dtype == DType::f32) return reinterpret_cast<const float*>(from) + element;
  const Bf16* in = reinterpret_cast<const Bf16*>(from) + element;
  for (int i = 0; i < n; ++i) room[i] = in[i].to_float();
  return room;
}

// Running result of one query and head over the splits so far.
struct Softmax {
  float maximum = minus_infinity;
  float weight = 0;              // sum of e^(s - maximum)
  float sum[max_head_dim] = {};  // sum of e^(s - maximum) v
};

// One query head over the keys [begin, end) of one split.
void attend_split(const float* q, const KvLayer& cache, std::span<const std::int32_t> pages, int kv_head,
                  int begin, int end, float scale, Softmax& split) {
  float scores[kv_split];
  float room[max_head_dim];
  for (int position = begin; position < end; ++position) {
    const std::int64_t at = cache.element(pages[static_cast<std::size_t>(position / cache.page_size)],
                                          kv_head, position % cache.page_size);
    const float* key = load_vector(cache.keys, at, cache.head_dim, cache.dtype, room);
    const float score = dot(q, key, cache.head_dim) * scale;
    scores[position - begin] = score;
    // A NaN score must reach the result, and std::max would drop it on one side.
    split.maximum = score > split.maximum || score != score ? score : split.maximum;
  }
  for (int position = begin; position < end; ++position) {
    const std::int64_t at = cache.element(pages[static_cast<std::size_t>(position / cache.page_size)],
                                          kv_head, position % cache.page_size);
    const float* value = load_vector(cache.values, at, cache.head_dim, cache.dtype, room);
    const float weight = fixed_exp(scores[position - begin] - split.maximum);
    split.weight += weight;
    for (int i = 0; i < cache.head_dim; ++i) split.sum[i] += weight * value[i];
  }
}

void merge(Softmax& total, const Softmax& split, int head_dim) {
  const float maximum = std::max(total.maximum, split.maximum);
  const float keep = fixed_exp(total.maximum - maximum);
  const float add = fixed_exp(split.maximum - maximum);
  total.maximum = maximum;
  total.weight = total.weight * keep + split.weight * add;
  for (int i = 0; i < head_dim; ++i) total.sum[i] = total.sum[i] * keep + split.sum[i] * add;
}

void attend(const OpContext& context, const PagedAttentionArgs& args, const SequenceRows& sequence, int row,
            int head) {
  const KvLayer& cache = args.cache;
  const std::int64_t offset = (static_cast<std::int64_t>(row) * args.heads + head) * cache.head_dim;
  const int position = sequence.first_position + row - sequence.row_begin;
  const int first = args.window > 0 ? std::max(0, position - args.window + 1) : 0;

  Softmax total;
  if (args.sinks != nullptr) {
    total.maximum = args.sinks[head];
    total.weight = 1.0f;
  }
  for (int begin = first; begin <= position; begin = (begin / kv_split + 1) * kv_split) {
    const int end = std::min((begin / kv_split + 1) * kv_split, position + 1);
    Softmax split;
    attend_split(args.q + offset, cache, sequence.pages, head / (args.heads / cache.kv_heads), begin, end,
                 args.scale, split);
    if (begin == first && args.sinks == nullptr) {
      total = split;
    } else {
      merge(total, split, cache.head_dim);
    }
  }
  for (int i = 0; i < cache.head_dim; ++i)
    args.out[offset + i] = context.activation(total.sum[i] / total.weight);
}

}  // namespace

void kv_append(OpContext& context, const KvAppendArgs& args) {
  const KvLayer& cache = args.cache;
  const int width = cache.kv_heads * cache.head_dim;
  context.threads.parallel_for(static_cast<int>(args.sequences.size()), [&](int sequence_begin,
                                                                            int sequence_end) {
    for (int s = sequence_begin; s < sequence_end; ++s) {
      const SequenceRows& sequence = args.sequences[static_cast<std::size_t>(s)];
      for (int i = 0; i < sequence.row_count; ++i) {
        const int position = sequence.first_position + i;
        const std::int32_t page = sequence.pages[static_cast<std::size_t>(position / cache.page_size)];
        const std::int64_t row = static_cast<std::int64_t>(sequence.row_begin + i) * width;
        for (int head = 0; head < cache.kv_heads; ++head) {
          const std::int64_t at = cache.element(page, head, position % cache.page_size);
          store_vector(args.keys + row + head * cache.head_dim, cache.head_dim, cache.dtype, cache.keys, at);
          store_vector(args.values + row + head * cache.head_dim, cache.head_dim, cache.dtype, cache.values,
                       at);
        }
      }
    }
  });
}

void paged_attention(OpContext& context, const PagedAttentionArgs& args) {
  NIBBLE_CHECK(args.cache.head_dim <= max_head_dim && args.cache.head_dim % dot_step == 0);
  NIBBLE_CHECK(args.heads % args.cache.kv_heads == 0);
  for (const SequenceRows& sequence : args.sequences) {
    const int tasks = sequence.row_count * args.heads;
    context.threads.parallel_for(tasks, [&](int begin, int end) {
      for (int task = begin; task < end; ++task) {
        attend(context, args, sequence, sequence.row_begin + task / args.heads, task % args.heads);
      }
    });
  }
}

}  // namespace nibble
