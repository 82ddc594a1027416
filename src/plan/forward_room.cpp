#include "plan/forward_room.h"

#include <algorithm>

#include "ops/attention/attention.h"
#include "ops/latent_attention/latent_attention.h"
#include "ops/linear/linear.h"
#include "ops/moe/moe.h"
#include "plan/exchange_shape.h"

namespace nibble {
namespace {

constexpr std::size_t alignment = 64;

RankPart part_of(const ModelTraits& model, const ForwardRoomLimits& limits) {
  if (limits.owners > 1) return owner_part(model, limits.ranks, limits.owners, 0);
  return limits.ranks > 1 ? rank_part(model, limits.ranks, limits.expert_ranks, 0) : RankPart();
}

ExchangeShape shape_of(const ModelTraits& model, const ForwardRoomLimits& limits) {
  return exchange_shape(model, part_of(model, limits), limits.exchange, limits.rows);
}

// (row, choice) pairs that experts take in one call at most.
std::int64_t expert_slots(const ModelTraits& model, const ForwardRoomLimits& limits) {
  const std::int64_t slots = limits.rows * model.experts_per_token;
  if (limits.exchange == ExchangeKind::none) return slots;
  const ExchangeShape shape = shape_of(model, limits);
  return std::max(slots, shape.places() * shape.ids_a_place());
}

// The widest of what the ops prepare.
std::int64_t shared_bytes(const ModelTraits& model, const ForwardRoomLimits& limits) {
  const std::int64_t slots = expert_slots(model, limits);
  const auto prepared = [](std::int64_t count, std::int64_t in) {
    return static_cast<std::int64_t>(linear_workspace_bytes(static_cast<int>(count), static_cast<int>(in)));
  };
  return std::max({prepared(limits.rows, model.hidden), prepared(limits.rows, model.heads * model.value_dim),
                   prepared(limits.rows, model.latent.query_rank),
                   prepared(limits.rows, model.delta.values()),
                   prepared(limits.rows, std::max(model.shared_width, model.dense_width)),
                   prepared(limits.logit_rows, model.hidden),
                   static_cast<std::int64_t>(
                       moe_workspace_bytes(static_cast<int>(slots), static_cast<int>(model.experts),
                                           static_cast<int>(std::max(model.hidden, model.expert_width))))});
}

std::int64_t attention_floats(const ModelTraits& model, const ForwardRoomLimits& limits) {
  const int heads = static_cast<int>(model.heads), positions = static_cast<int>(limits.positions);
  if (model.attention == AttentionKind::latent)
    return latent_attention_room(limits.threads, heads, static_cast<int>(model.latent.rank), positions);
  return attention_room(limits.threads, heads, static_cast<int>(model.kv_heads),
                        static_cast<int>(model.query_dim), positions);
}

}  // namespace

PlacedForwardRoom place_forward_room(const ModelTraits& model, const ForwardRoomLimits& limits,
                                     std::byte* begin) {
  const std::int64_t rows = limits.rows, slots = expert_slots(model, limits);
  const RankPart part = part_of(model, limits);
  const bool several = part.sharers > 1;
  const auto most = [&](const Cuts& cuts, std::int64_t whole) {
    return several ? cuts.most(part.sharers) : whole;
  };
  const std::int64_t heads = most(part.heads, model.heads), q_width = heads * model.query_dim,
                     all_values = model.heads * model.value_dim;
  const std::int64_t kv_width = several ? most_kv_heads(model.kv_heads, part.sharers) * model.query_dim
                                        : std::max<std::int64_t>(model.kv_values / 2, 1);
  PlacedForwardRoom placed;
  ForwardRoom& room = placed.room;
  room.shared_bytes = static_cast<std::size_t>(shared_bytes(model, limits));
  room.attention_floats = attention_floats(model, limits);
  const auto place = [&](auto*& at, std::int64_t count) {
    static_assert(sizeof(float) == 4 && sizeof(std::int32_t) == 4);
    if (begin != nullptr) at = reinterpret_cast<std::remove_reference_t<decltype(at)>>(begin + placed.bytes);
    placed.bytes += (static_cast<std::size_t>(count) * 4 + alignment - 1) / alignment * alignment;
  };
  for (float** each : {&room.residual, &room.normed, &room.delta}) place(*each, rows * model.hidden);
  place(room.q, rows * q_width);
  place(room.attended,
        rows * (several ? std::max<std::int64_t>(all_values, model.delta.values()) : all_values));
  if (model.attention == AttentionKind::latent) {
    const LatentTraits& latent = model.latent;
    place(room.latent.query_latent, rows * latent.query_rank);
    place(room.latent.latents, rows * latent.width());
    place(room.latent.absorbed, rows * heads * latent.width());
    place(room.latent.sums, rows * heads * latent.rank);
  } else {
    for (float** each : {&room.k, &room.v}) place(*each, rows * kv_width);
  }
  if (model.gated_heads) {
    place(room.q_gates, rows * 2 * q_width);
    place(room.gates, rows * q_width);
  }
  for (float** each : {&room.cos, &room.sin}) place(*each, rows * model.query_dim / 2);
  place(room.attention, room.attention_floats);
  if (model.linear_layers > 0) {
    const DeltaShape shape = several ? most_of_state(model.delta, part.sharers) : model.delta;
    place(room.delta_rule.projected, rows * (shape.channels() + shape.values()));
    place(room.delta_rule.qkv, rows * shape.channels());
    for (float** each : {&room.delta_rule.z, &room.delta_rule.mixed}) place(*each, rows * shape.values());
    place(room.delta_rule.b_a, rows * 2 * shape.value_heads);
    for (float** each : {&room.delta_rule.b, &room.delta_rule.a}) place(*each, rows * shape.value_heads);
  }
  const std::int64_t shared_part =
      std::max(most(part.shared_width, model.shared_width), most(part.dense_width, model.dense_width));
  if (const std::int64_t width = std::max(model.shared_width, model.dense_width); width > 0) {
    place(room.shared_gate, rows * width);
    place(room.shared_up, rows * shared_part);
    place(room.shared_out, rows * model.hidden);
    place(room.shared_logits, rows);
  }
  place(room.router_logits, rows * model.experts);
  place(room.expert_weights, slots);
  place(room.activations, slots * model.expert_width);
  place(room.products, slots * model.hidden);
  place(room.expert_ids, slots);
  place(room.slots, slots);
  place(room.offsets, model.experts + 1);
  place(room.shared, static_cast<std::int64_t>(room.shared_bytes / 4));
  for (float** each : {&room.last_residual, &room.last_delta, &room.last_normed})
    place(*each, limits.logit_rows * model.hidden);
  room.attended_part = room.attended;
  room.delta_part = room.delta;
  room.activations_part = room.activations;
  room.shared_gate_part = room.shared_gate;
  if (several) {
    place(room.attended_part, rows * heads * model.value_dim);
    if (shared_part > 0) place(room.shared_gate_part, rows * shared_part);
    place(room.delta_part, rows * most(part.hidden, model.hidden));
    place(room.logits_part, limits.logit_rows * most(part.vocabulary, model.vocabulary));
  }
  if (part.whole_experts) {
    place(room.owners, (slots + 3) / 4);
    if (limits.exchange != ExchangeKind::none) {
      const ExchangeShape shape = shape_of(model, limits);
      place(room.arrived.x, shape.places() * model.hidden);
      place(room.arrived.ids, shape.places() * shape.ids_a_place());
      place(room.results, (rows + part.sharers - 1) / part.sharers * model.experts_per_token * model.hidden);
    }
  } else if (several) {
    place(room.activations_part, slots * most(part.width, model.expert_width));
  }
  return placed;
}

}  // namespace nibble
