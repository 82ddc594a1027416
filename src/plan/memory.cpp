#include "plan/memory.h"

#include <algorithm>
#include <bit>

#include "formats/mxfp4.h"
#include "formats/q8.h"
#include "ops/gated_mlp/mlp_room.h"
#include "ops/latent_attention/latent_room.h"
#include "ops/linear/rounded_room.h"
#include "ops/moe/many_tokens.h"
#include "ops/sample/sample.h"
#include "plan/forward_room.h"
#include "plan/rank_part.h"

namespace nibble {
namespace {

std::int64_t share(std::int64_t bytes, int ranks) { return (bytes + ranks - 1) / ranks; }

std::int64_t aligned(std::int64_t bytes) { return (bytes + 63) / 64 * 64; }

// What ranks gather before a product whose input has so many columns, of `rows` rows: they themselves, and
// windows for few rows with sums of chunks.
std::int64_t gathered_bytes(const ModelTraits& model, const StepLimits& limits, std::int64_t columns) {
  constexpr std::int64_t few_rows = 64, sums = 8 * 8;
  if (limits.ranks == 1) return 0;
  return (limits.rows + 2 * few_rows) * columns * 2 + 2 * sums * model.hidden * 4;
}

// Of layers with a state on a GPU: projections, what is convolved, gates and outputs of a row. Each rank has
// the gates of all heads.
std::int64_t gpu_delta_row_bytes(DeltaShape shape, int ranks) {
  const auto whole = [](std::int64_t rows) { return (rows + 63) / 64 * 64; };  // of a matrix's tiles
  if (shape.value_heads == 0) return 0;
  const std::int64_t gates = whole(shape.value_heads) + shape.value_heads;
  shape.key_heads /= ranks;
  shape.value_heads /= ranks;
  return 4 * (whole(shape.channels() + shape.values()) + 2 * gates + shape.channels()) +
         12 * shape.value_heads + (4 + 2) * shape.values() + 8 * delta_chunk * shape.value_heads;
}

// Of feed-forwards that every row takes, on a GPU.
std::int64_t gpu_mlp_bytes(const ModelTraits& model, const StepLimits& limits) {
  const std::int64_t dense = share(model.dense_width, limits.ranks);
  const std::int64_t once = mlp_rows_at_once(limits.rows, std::max(model.shared_width, dense));
  const std::int64_t of_shared = model.shared_width > 0 ? 2 * model.shared_width + 4 * model.hidden + 4 : 0;
  const std::int64_t of_dense = model.dense_width > 0 ? gathered_bytes(model, limits, model.dense_width) : 0;
  return once * (8 * std::max(model.shared_width, dense) + of_shared) + of_dense +
         2 * dense * (limits.ranks > 1 ? limits.rows : once);
}

// Of latent attention on a GPU, with room for splits and lists of work.
std::int64_t gpu_latent_bytes(const ModelTraits& model, const StepLimits& limits, std::int64_t processors) {
  const LatentTraits& latent = model.latent;
  const std::int64_t heads = share(model.heads, limits.ranks), once = latent_rows_at_once(limits.rows, heads);
  const std::int64_t launches = (limits.rows + once - 1) / once;
  const std::int64_t above = latent.query_rank > 0 ? latent.query_rank : heads * model.query_dim;
  const std::int64_t of_head = (latent.query_rank > 0 ? 4 * model.query_dim : 0) +
                               2 * (latent_columns(model.query_dim - latent.rotated_dim) + latent.width() +
                                    latent_columns(latent.rank));
  const std::int64_t of_row =
      4 * (latent_columns(above) + latent.width()) + 2 * latent.query_rank + heads * of_head;
  const std::int64_t attended = 2 * heads * model.value_dim * (limits.ranks > 1 ? limits.rows : once);
  return once * of_row + attended + gathered_bytes(model, limits, model.heads * model.value_dim) +
         limits.rows * latent.rotated_dim * 4 +
         launches * latent_work_bytes(once, limits.decode_rows(), heads) +
         4 * (latent_total_floats(processors) + latent_partial_floats(latent.rank));
}

// Of queries, as attention's kernels take them: a power of two for each head of keys.
std::int64_t padded_heads(const ModelTraits& model) {
  const std::int64_t kv_heads = std::max<std::int64_t>(model.kv_heads, 1);
  return kv_heads *
         static_cast<std::int64_t>(std::bit_ceil(static_cast<std::uint64_t>(model.heads / kv_heads)));
}

// For the widest product with FP8 weights. expert_rows: that meet at the experts.
std::int64_t gpu_rounding_bytes(const ModelTraits& model, const StepLimits& limits,
                                std::int64_t expert_rows) {
  if (!limits.fp8_prompts) return 0;
  const auto row = [](std::int64_t cols) { return std::int64_t{rounded_row_bytes(static_cast<int>(cols))}; };
  const std::int64_t choices = std::max<std::int64_t>(model.experts_per_token, 1);
  std::int64_t most = limits.rows * row(model.hidden);
  if (is_fp8(model.dense_format)) {
    most = limits.rows *
           std::max({row(model.hidden), row(model.heads * model.value_dim), row(model.latent.query_rank),
                     row(model.delta.values()), row(std::max(model.shared_width, model.dense_width))});
  }
  if (is_fp8(model.expert_format))
    most = std::max(most, expert_rows * std::max(row(model.hidden), choices * row(model.expert_width)));
  return most + expert_rows * choices * 4;
}

// What models/cuda/ lays out for a forward, and runtime/cuda/ for logits and sampling; gpu_worker_device_test
// holds it to this.
// What NCCL takes for itself: 1,026 MB on each of two H200s (2.28.3).
constexpr std::int64_t nccl_bytes = 1'100'000'000;

std::int64_t gpu_bytes(const ModelTraits& model, const StepLimits& of_rank) {
  constexpr std::int64_t splits = 8192, processors = 132, few_slots = 1024, empty_rows = 127;
  // Rows of all owners meet at the experts. What else there is, is one's alone, or its sharers'.
  const std::int64_t rows = of_rank.rows,
                     meeting = of_rank.owners > 1 ? rows * of_rank.owners + 8 * of_rank.ranks : rows,
                     slots = meeting * model.experts_per_token;
  StepLimits limits = of_rank;
  limits.ranks /= limits.owners;
  const std::int64_t heads = padded_heads(model), q_width = heads * model.query_dim / limits.ranks;
  const std::int64_t kv_heads =
      limits.ranks > 1 ? most_kv_heads(model.kv_heads, limits.ranks) : model.kv_heads;
  // Rows of q, k and v between their product and what norms and turns them, where the product does not.
  const bool latent = model.attention == AttentionKind::latent;
  const bool turns_apart =
      !latent && (model.normed_heads || model.query_dim == 128 || model.query_dim == 256);
  const std::int64_t turned =
      turns_apart ? rows * ((model.gated_heads ? 2 : 1) * q_width + 2 * kv_heads * model.query_dim) * 4 : 0;
  const std::int64_t forward = turned + rows * model.hidden * (4 + 4 + 2)  // residual, delta, normed
                               + (model.experts > 0 ? meeting * model.hidden * 2 : 0)  // normed for experts
                               + limits.logit_rows * model.hidden * 2                  // rows for lm_head
                               + (latent ? 0 : rows * model.query_dim * 4)             // cos, sin
                               + (latent ? 0 : rows * q_width * (2 + 2))               // q, attended
                               + rows * model.experts * 4 + slots * 8;
  const std::int64_t few_rows = std::min<std::int64_t>(rows, 128);  // that norm and router take in one
  const std::int64_t router = (few_rows * model.hidden + 8 * model.experts) * 4;
  const std::int64_t attention = latent ? gpu_latent_bytes(model, limits, processors)
                                        : splits * kv_heads * 16 * (model.query_dim + 8) * 4 +
                                              gathered_bytes(model, limits, heads * model.query_dim);
  // Sums of chunks of shared tiles, of the path for few tokens and of the one for many.
  const std::int64_t linear = processors * 8 * 64 * (std::min<std::int64_t>(rows, 32) + 160) * 4;
  const bool many = moe_takes_many(slots, model.experts, limits.many_tokens_from);
  const std::int64_t tile_rows = many ? slots + empty_rows * std::min(slots, model.experts) : 0;
  const std::int64_t experts = std::min(slots, few_slots) * model.expert_width * 2 +
                               (many ? slots : std::min(slots, few_slots)) * model.hidden * 4 +
                               tile_rows * (2 * (model.hidden + model.expert_width) + 4);
  const std::int64_t blocks = (model.vocabulary + 1023) / 1024;
  const std::int64_t sampling = limits.logit_rows * (model.vocabulary * 4 + 32 * 8 + 16) +
                                std::min<std::int64_t>(limits.logit_rows, 256) * (15360 + 4 * blocks) * 8;
  // Each rank's logits on their way, and a window for products of experts.
  const std::int64_t gathered =
      limits.ranks > 1
          ? limits.logit_rows * share(model.vocabulary, limits.ranks) * 4 + 256 * model.hidden * 4
          : 0;
  // Where few rows of all owners come, twice, and products of this rank's; of a place up to 32 choices.
  const std::int64_t windows = limits.exchange == ExchangeKind::low_latency
                                   ? few_rows_of_a_gpu * (2 * of_rank.owners * (model.hidden * 2 + 32 * 4) +
                                                          model.experts_per_token * model.hidden * 4)
                                   : 0;
  const std::int64_t states =
      rows * gpu_delta_row_bytes(model.delta, limits.ranks) +
      (model.linear_layers > 0 ? gathered_bytes(model, limits, model.delta.values()) : 0);
  const std::int64_t changed = limits.decode_rows() * model.vocabulary * 4 +
                               logit_change_room(limits.sequences, limits.positions) * 16;
  return forward + gpu_rounding_bytes(model, limits, meeting) + windows + states +
         gpu_mlp_bytes(model, limits) + router + attention + linear + experts + gathered + sampling + changed;
}

// A room a thread for sampling and for changes of logits.
std::int64_t sampling_bytes(const ModelTraits& model, const StepLimits& limits) {
  const std::int64_t room =
      model.vocabulary * static_cast<std::int64_t>(sizeof(TokenId) + sizeof(float)) +
      (model.vocabulary / row_block + 1) * static_cast<std::int64_t>(sizeof(std::int64_t));
  const std::int64_t changes =
      model.vocabulary * static_cast<std::int64_t>(sizeof(float) + sizeof(std::uint32_t));
  return limits.threads * (room + changes);
}

// Codes, then scales, each from a multiple of 64 on.
std::int64_t converted_matrix(std::int64_t values, Quantization quantization) {
  return aligned(quantization == Quantization::q8 ? values : values / 2) + aligned(values / q8_block);
}

}  // namespace

std::int64_t converted_bytes(const ModelTraits& model, Quantization quantization, int ranks) {
  static_assert(q8_block == mxfp4_block);
  if (quantization == Quantization::none) return 0;
  std::int64_t divided = 0, whole = 0;
  for (const WeightGroup& group : model.weights) {
    for (const ConvertibleMatrices& each : group.convertible) {
      std::int64_t rows = each.rows;
      if (each.cut == MatrixCut::kv_heads && ranks > 1)
        rows = rows / model.kv_heads * most_kv_heads(model.kv_heads, ranks);
      const std::int64_t bytes = each.count * converted_matrix(rows * each.cols, quantization);
      (each.cut == MatrixCut::rows ? divided : whole) += bytes;
    }
  }
  return share(divided, ranks) + whole;
}

std::int64_t owner_weight_bytes(const ModelTraits& model, Quantization quantization, int ranks, int owners) {
  const int sharers = ranks / owners;
  std::int64_t bytes = weight_bytes(model, quantization, sharers);
  for (const WeightGroup& group : model.weights) {
    if (group.use == WeightUse::by_expert) bytes -= share(group.bytes, sharers) - share(group.bytes, ranks);
  }
  return bytes;
}

std::int64_t weight_bytes(const ModelTraits& model, Quantization quantization, int ranks) {
  std::int64_t bytes = converted_bytes(model, quantization, ranks);
  for (const WeightGroup& group : model.weights) {
    std::int64_t kept = group.bytes;
    // A tied lm_head's original is the embedding, which stays.
    if (quantization != Quantization::none && !(model.tied && group.use == WeightUse::last_token))
      kept -= 2 * group.convertible_values();
    bytes += group.split ? share(kept, ranks) : kept;
  }
  return bytes;
}

std::int64_t whole_weight_bytes(const ModelTraits& model, int ranks) {
  return model.whole_on_gpus - share(model.whole_on_gpus, ranks);
}

std::int64_t expert_copies_bytes(const ModelTraits& model, int ranks) {
  std::int64_t bytes = 0;
  for (const WeightGroup& group : model.weights) {
    if (group.use == WeightUse::by_expert) bytes += group.bytes - share(group.bytes, ranks);
  }
  return bytes;
}

std::int64_t kv_position_bytes(const ModelTraits& model, DType dtype, int ranks) {
  const std::int64_t one = model.kv_values * static_cast<std::int64_t>(dtype_bytes(dtype));
  // A latent vector is one for all heads, and a KV head is whole on a rank.
  if (ranks == 1 || model.attention == AttentionKind::latent || model.kv_heads == 0)
    return model.attention_layers() * one;
  return model.attention_layers() * one / model.kv_heads * most_kv_heads(model.kv_heads, ranks);
}

std::int64_t state_bytes_of_rank(const ModelTraits& model, int ranks, int drafts) {
  DeltaShape shape = ranks == 1 ? model.delta : most_of_state(model.delta, ranks);
  shape.drafts = drafts;
  return model.linear_layers * delta_state_bytes(shape);
}

std::int64_t snapshot_bytes_of_rank(const ModelTraits& model, int ranks) {
  if (ranks == 1) return model.snapshot_bytes;
  return model.linear_layers * delta_snapshot_bytes(most_of_state(model.delta, ranks));
}

bool has_window_pages(const ModelTraits& model) { return model.window_layers > 0 && model.full_layers > 0; }

KvPages kv_page_bytes(const ModelTraits& model, const KvShape& shape) {
  const std::int64_t all = shape.page_size * kv_position_bytes(model, shape.dtype, shape.ranks);
  if (!has_window_pages(model)) return {.whole = all, .windowed = 0};
  const std::int64_t windowed = all / model.attention_layers() * model.window_layers;
  return {.whole = all - windowed, .windowed = windowed};
}

std::int64_t window_pages_beside(const ModelTraits& model, int page_size, std::int64_t sequences,
                                 std::int64_t step_tokens, std::int64_t whole) {
  if (!has_window_pages(model)) return 0;
  const auto pages_for = [&](std::int64_t tokens) { return (tokens + page_size - 1) / page_size; };
  // A window that ends anywhere in a page, and the pages that a step adds, twice for a step planned ahead.
  const std::int64_t one = pages_for(model.window) + 2;
  const std::int64_t running = sequences * one + 2 * pages_for(step_tokens);
  // A sequence alone can always go on, even where its context is shorter than that.
  return std::max(std::min(whole, std::max(2 * running, whole / 4)), one);
}

std::int64_t whole_pages_in(const ModelTraits& model, const KvShape& shape, std::int64_t sequences,
                            std::int64_t step_tokens, std::int64_t bytes) {
  const KvPages page = kv_page_bytes(model, shape);
  if (page.whole <= 0 || bytes <= 0) return 0;
  std::int64_t fits = 0, too_many = bytes / page.whole + 1;
  while (fits + 1 < too_many) {
    const std::int64_t count = fits + (too_many - fits) / 2;
    const std::int64_t windowed = window_pages_beside(model, shape.page_size, sequences, step_tokens, count);
    (count * page.whole + windowed * page.windowed <= bytes ? fits : too_many) = count;
  }
  return fits;
}

std::int64_t workspace_bytes(const ModelTraits& model, const StepLimits& limits) {
  if (limits.on_gpu) return gpu_bytes(model, limits) + (limits.by_nccl ? nccl_bytes : 0);
  const ForwardRoomLimits room{.rows = limits.rows,
                               .logit_rows = limits.logit_rows,
                               .positions = limits.positions,
                               .threads = limits.threads,
                               .ranks = limits.ranks,
                               .owners = limits.owners,
                               .expert_ranks = limits.expert_ranks,
                               .exchange = limits.exchange};
  // Slots of the groups that a rank is in: of all ranks, and of some of them that divide heads.
  const int groups = limits.ranks == 1 ? 0 : limits.owners == 1 || limits.owners == limits.ranks ? 1 : 2;
  const std::int64_t between = groups * 2 * rank_slot_bytes(model);
  return static_cast<std::int64_t>(place_forward_room(model, room, nullptr).bytes) + between +
         limits.logit_rows * model.vocabulary * 4 + sampling_bytes(model, limits);
}

std::int64_t graph_bytes(const StepLimits& limits) {
  // Every size up to 8, then every eighth; one sequence's once more, for short contexts, and once more those
  // of two rows or more that a step with drafts may have. A captured step is some 400 nodes of two kilobytes;
  // what the driver rounds that up to will be known when it is captured.
  constexpr std::int64_t one_graph = std::int64_t{2} << 20;
  const auto up_to = [](std::int64_t rows) {
    return std::min<std::int64_t>(rows, 8) + std::max<std::int64_t>(rows - 8, 0) / 8;
  };
  const std::int64_t with_drafts = limits.drafts > 0 ? up_to(limits.drafts + 1) : 0;
  return (up_to(limits.decode_rows()) + 1 + with_drafts) * one_graph;
}

}  // namespace nibble
