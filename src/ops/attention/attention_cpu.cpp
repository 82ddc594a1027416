#include <algorithm>

#include "base/check.h"
#include "formats/bf16.h"
#include "ops/attention/attention_kernels.h"

namespace nibble {
namespace {

bool avx2_supported() { return __builtin_cpu_supports("avx2"); }
bool always_supported() { return true; }

constexpr AttentionKernels kernels[] = {
    {"avx2", avx2_supported, avx2_attend_split},
    {"scalar", always_supported, scalar_attend_split},
};

void store_vector(const float* from, int n, DType dtype, std::byte* to, std::int64_t element) {
  if (dtype == DType::f32) {
    std::copy_n(from, n, reinterpret_cast<float*>(to) + element);
  } else {
    Bf16* out = reinterpret_cast<Bf16*>(to) + element;
    for (int i = 0; i < n; ++i) out[i] = Bf16::from_float(from[i]);
  }
}

void merge(HeadSoftmax& total, const HeadSoftmax& split, int head_dim) {
  const float maximum = std::max(total.maximum, split.maximum);
  const float keep = fixed_exp(total.maximum - maximum);
  const float add = fixed_exp(split.maximum - maximum);
  total.maximum = maximum;
  total.weight = total.weight * keep + split.weight * add;
  for (int i = 0; i < head_dim; ++i) total.sum[i] = total.sum[i] * keep + split.sum[i] * add;
}

// Heads [head, head + count) of one row, which read one KV head.
void attend(const OpContext& context, const PagedAttentionArgs& args, const SequenceRows& sequence, int row,
            int head, int count) {
  const KvLayer& cache = args.cache;
  const int head_dim = cache.head_dim;
  const std::int64_t offset = (static_cast<std::int64_t>(row) * args.heads + head) * head_dim;
  const int position = sequence.first_position + row - sequence.row_begin;
  const int first = args.window > 0 ? std::max(0, position - args.window + 1) : 0;
  const HeadGroup group{.q = args.q + offset,
                        .count = count,
                        .kv_head = head / (args.heads / cache.kv_heads),
                        .scale = args.scale};

  HeadSoftmax totals[max_group_heads];
  for (int i = 0; i < count && args.sinks != nullptr; ++i) {
    totals[i].maximum = args.sinks[head + i];
    totals[i].weight = 1.0f;
  }
  for (int begin = first; begin <= position; begin = (begin / kv_split + 1) * kv_split) {
    const int end = std::min((begin / kv_split + 1) * kv_split, position + 1);
    HeadSoftmax splits[max_group_heads];
    context.attention.attend_split(group, cache, sequence.pages, begin, end, splits);
    for (int i = 0; i < count; ++i) {
      if (begin == first && args.sinks == nullptr) {
        totals[i] = splits[i];
      } else {
        merge(totals[i], splits[i], head_dim);
      }
    }
  }
  for (int i = 0; i < count; ++i) {
    float* out = args.out + offset + static_cast<std::int64_t>(i) * head_dim;
    for (int d = 0; d < head_dim; ++d) out[d] = context.activation(totals[i].sum[d] / totals[i].weight);
  }
}

}  // namespace

std::span<const AttentionKernels> attention_kernels() { return kernels; }

const AttentionKernels& best_attention_kernels() {
  for (const AttentionKernels& each : kernels) {
    if (each.supported()) return each;
  }
  NIBBLE_CHECK(false, "the scalar kernels run anywhere");
  return kernels[0];
}

void kv_append(OpContext& context, const KvAppendArgs& args) {
  const KvLayer& cache = args.cache;
  const int width = cache.kv_heads * cache.head_dim;
  context.threads.parallel_for(static_cast<int>(args.sequences.size()), [&](int sequence_begin,
                                                                            int sequence_end) {
    for (int s = sequence_begin; s < sequence_end; ++s) {
      const SequenceRows& sequence = args.sequences[static_cast<std::size_t>(s)];
      for (int i = 0; i < sequence.row_count; ++i) {
        const int position = sequence.first_position + i;
        const std::int64_t row = static_cast<std::int64_t>(sequence.row_begin + i) * width;
        for (int head = 0; head < cache.kv_heads; ++head) {
          const std::int64_t at = kv_element(cache, sequence.pages, head, position);
          store_vector(args.keys + row + head * cache.head_dim, cache.head_dim, cache.dtype, cache.keys, at);
          store_vector(args.values + row + head * cache.head_dim, cache.head_dim, cache.dtype, cache.values,
                       at);
        }
      }
    }
  });
}

bool attention_takes_head_dim(std::int64_t head_dim) {
  return head_dim > 0 && head_dim <= max_head_dim && head_dim % dot_step == 0;
}

void paged_attention(OpContext& context, const PagedAttentionArgs& args) {
  NIBBLE_CHECK(attention_takes_head_dim(args.cache.head_dim));
  NIBBLE_CHECK(args.heads % args.cache.kv_heads == 0);
  const int heads_a_kv_head = args.heads / args.cache.kv_heads;
  const int groups_a_kv_head = (heads_a_kv_head + max_group_heads - 1) / max_group_heads;
  const int groups = args.cache.kv_heads * groups_a_kv_head;
  for (const SequenceRows& sequence : args.sequences) {
    context.threads.parallel_for(sequence.row_count * groups, [&](int begin, int end) {
      for (int task = begin; task < end; ++task) {
        const int kv_head = task % groups / groups_a_kv_head;
        const int within = task % groups_a_kv_head * max_group_heads;
        attend(context, args, sequence, sequence.row_begin + task / groups,
               kv_head * heads_a_kv_head + within, std::min(max_group_heads, heads_a_kv_head - within));
      }
    });
  }
}

}  // namespace nibble
