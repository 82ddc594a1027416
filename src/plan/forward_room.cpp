#include "plan/forward_room.h"

#include <algorithm>

#include "ops/attention/attention.h"
#include "ops/linear/linear.h"
#include "ops/moe/moe.h"

namespace nibble {
namespace {

constexpr std::size_t alignment = 64;

// The widest of what the ops prepare.
std::int64_t shared_bytes(const ModelTraits& model, const ForwardRoomLimits& limits, std::int64_t q_width) {
  const std::int64_t slots = limits.rows * model.experts_per_token;
  const auto prepared = [](std::int64_t count, std::int64_t in) {
    return static_cast<std::int64_t>(linear_workspace_bytes(static_cast<int>(count), static_cast<int>(in)));
  };
  return std::max({prepared(limits.rows, model.hidden), prepared(limits.rows, q_width),
                   prepared(limits.logit_rows, model.hidden),
                   static_cast<std::int64_t>(
                       moe_workspace_bytes(static_cast<int>(slots), static_cast<int>(model.experts),
                                           static_cast<int>(std::max(model.hidden, model.expert_width))))});
}

}  // namespace

PlacedForwardRoom place_forward_room(const ModelTraits& model, const ForwardRoomLimits& limits,
                                     std::byte* begin) {
  const std::int64_t rows = limits.rows, slots = rows * model.experts_per_token;
  const std::int64_t q_width = model.heads * model.query_dim / limits.ranks;
  const std::int64_t kv_width = std::max<std::int64_t>(model.kv_values / 2 / limits.ranks, 1);
  PlacedForwardRoom placed;
  ForwardRoom& room = placed.room;
  room.shared_bytes = static_cast<std::size_t>(shared_bytes(model, limits, q_width));
  room.attention_floats =
      attention_room(limits.threads, static_cast<int>(model.heads), static_cast<int>(model.kv_heads),
                     static_cast<int>(model.query_dim), static_cast<int>(limits.positions));
  const auto place = [&](auto*& part, std::int64_t count) {
    static_assert(sizeof(float) == 4 && sizeof(std::int32_t) == 4);
    if (begin != nullptr)
      part = reinterpret_cast<std::remove_reference_t<decltype(part)>>(begin + placed.bytes);
    placed.bytes += (static_cast<std::size_t>(count) * 4 + alignment - 1) / alignment * alignment;
  };
  for (float** part : {&room.residual, &room.normed, &room.delta}) place(*part, rows * model.hidden);
  for (float** part : {&room.q, &room.attended}) place(*part, rows * q_width);
  for (float** part : {&room.k, &room.v}) place(*part, rows * kv_width);
  for (float** part : {&room.cos, &room.sin}) place(*part, rows * model.query_dim / 2);
  place(room.attention, room.attention_floats);
  place(room.router_logits, rows * model.experts);
  place(room.expert_weights, slots);
  place(room.activations, slots * model.expert_width);
  place(room.products, slots * model.hidden);
  place(room.expert_ids, slots);
  place(room.slots, slots);
  place(room.offsets, model.experts + 1);
  place(room.shared, static_cast<std::int64_t>(room.shared_bytes / 4));
  for (float** part : {&room.last_residual, &room.last_delta, &room.last_normed})
    place(*part, limits.logit_rows * model.hidden);
  return placed;
}

}  // namespace nibble
