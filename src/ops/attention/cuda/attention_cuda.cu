#include <string>

#include "ops/attention/cuda/attention_steps.cuh"

namespace nibble {
namespace {

// Of so many sequences' windows a block each; of more they lie too close to rehearse beside each other.
constexpr int most_windows_by_blocks = 8;
// A warp alone takes longer for a sequence's KV head than eight do together, but many take theirs at once.
constexpr int many_windows = 32;  // sequences

// Others have the kernel for few rows, whose bits are the same.
bool takes_short(const AttentionCudaArgs& args) {
  if (is_short_window(args.window, args.cache.head_dim)) return args.sequence_count <= most_windows_by_blocks;
  return args.cache.head_dim <= 128 && args.rows == AttentionRows::one &&
         args.later_clusters != attention_any_context && args.sequence_count <= attention_short_contexts;
}

}  // namespace

int attention_shared_bytes(const AttentionCudaArgs& args) {
  if (!takes_short(args)) return shared_of_attention_few(args.sequence_count, args.cache.head_dim);
  return is_short_window(args.window, args.cache.head_dim)
             ? shared_of_attention_short()
             : shared_of_attention_alone(args.cache.head_dim, args.later_clusters);
}

Status attention_cuda(const AttentionCudaArgs& args, cudaStream_t stream) {
  const int kv_heads = args.cache.kv_heads, group = kv_heads > 0 ? args.heads / kv_heads : 0;
  if (group < 1 || group * kv_heads != args.heads || attention_tile % group != 0) {
    return invalid_argument("attention takes 1, 2, 4, 8 or 16 heads for each KV head, not " +
                            std::to_string(args.heads) + " for " + std::to_string(kv_heads));
  }
  if (args.page_size < kv_chunk_slots || args.page_size % kv_chunk_slots != 0 ||
      args.cache.slots % kv_chunk_slots != 0) {
    return invalid_argument("pages must be of a multiple of 64 positions, not " +
                            std::to_string(args.page_size));
  }
  if (args.cache.dtype != KvBf16::dtype && args.cache.dtype != KvE4m3::dtype) {
    return invalid_argument("attention reads keys and values in bf16 or e4m3, not in " +
                            std::string(dtype_name(args.cache.dtype)));
  }
  if (!attention_takes_heads_of(args.cache.head_dim)) {
    return invalid_argument("attention takes heads of 64, 128 or 256 dimensions, not of " +
                            std::to_string(args.cache.head_dim));
  }
  if (!(args.scale > 0)) {
    return invalid_argument("scores must be scaled by more than 0, not " + std::to_string(args.scale));
  }
  if (args.sequence_count > attention_max_sequences) {
    return invalid_argument("one launch takes at most " + std::to_string(attention_max_sequences) +
                            " sequences, not " + std::to_string(args.sequence_count));
  }
  if (args.sequence_count == 0) return {};
  const bool windows = is_short_window(args.window, args.cache.head_dim);
  const auto of_few_rows = takes_short(args) ? (windows ? launch_attention_short : launch_attention_alone)
                           : windows && args.sequence_count >= many_windows ? launch_attention_window
                                                                            : launch_attention_few;
  if (args.rows == AttentionRows::one || args.rows == AttentionRows::both) of_few_rows(args, stream);
  if (args.rows == AttentionRows::one) return {};
  args.cache.head_dim == 256 ? launch_attention_wide(args, stream) : launch_attention_many(args, stream);
  return {};
}

}  // namespace nibble
