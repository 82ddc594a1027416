#include "models/cuda/experts_block.h"

#include <algorithm>
#include <string>

#include "checkpoint/architecture.h"
#include "ops/cuda/absent.h"
#include "ops/peer_gather/cuda/peer_gather_cuda.h"
#include "ops/router/cuda/router_cuda.h"
#include "plan/memory.h"

namespace nibble {
namespace {

static_assert(dispatch_few_places == few_rows_of_a_gpu);

std::size_t size(std::int64_t count) { return static_cast<std::size_t>(count); }

}  // namespace

bool in_blocks(TensorFormat format) {
  return format == TensorFormat::bf16 || format == TensorFormat::fp8_block || format == TensorFormat::fp8_row;
}

TensorFormat expert_format(const ModelConfig& config) {
  TensorFormat format = TensorFormat::bf16;
  visit_weights(config, [&](const Weight& weight) {
    if (weight.role == WeightRole::expert_down) format = weight.format;
  });
  return format;
}

Status check_experts_block(const ModelConfig& config) {
  const std::int64_t whole = std::max<std::int64_t>(block_columns(expert_format(config)), granule_rows);
  if (config.hidden_size % whole != 0 || config.intermediate_size % whole != 0) {
    return invalid_argument("its width of " + std::to_string(config.hidden_size) + " or its experts' of " +
                            std::to_string(config.intermediate_size) + " is not a multiple of " +
                            std::to_string(whole));
  }
  if (config.num_local_experts > moe_many_most_experts) {
    return invalid_argument("a layer has " + std::to_string(config.num_local_experts) +
                            " experts, and the kernels take up to " + std::to_string(moe_many_most_experts));
  }
  if (config.router_score == RouterScore::sigmoid && config.num_local_experts > route_sigmoid_most_experts) {
    return invalid_argument("a layer has " + std::to_string(config.num_local_experts) +
                            " experts, and its router's kernel takes up to " +
                            std::to_string(route_sigmoid_most_experts));
  }
  if (config.num_experts_per_tok > moe_cuda_max_top_k) {
    return invalid_argument("a token has " + std::to_string(config.num_experts_per_tok) +
                            " experts, and the kernels take up to " + std::to_string(moe_cuda_max_top_k));
  }
  return {};
}

// Ranks of a group that share its rows have whole groups of tokens each.
int places_at_experts(const CudaForwardLimits& limits, const CudaPart& part) {
  return part.owns_sequences() ? limits.rows * part.owners + part.ranks * token_group : limits.rows;
}

ExpertsBlock::ExpertsBlock(const ModelConfig& config, const CudaForwardLimits& limits,
                           const DecoderStream& stream, CudaPlace& place, DeviceArena& arena)
    : stream_(stream),
      room_(place.room),
      part_(place.part),
      experts_(static_cast<int>(config.num_local_experts)),
      top_k_(static_cast<int>(config.num_experts_per_tok)),
      many_tokens_from_(limits.many_tokens_from),
      of_all_(config.router_score == RouterScore::softmax_of_all && !config.router_renormalises),
      shares_(config.shared_width > 0) {
  if (config.router_score == RouterScore::sigmoid) {
    sigmoid_ = SigmoidRule{.groups = static_cast<int>(config.router_groups),
                           .top_groups = static_cast<int>(config.router_top_groups),
                           .renormalise = config.router_renormalises,
                           .scale = static_cast<float>(config.router_scale)};
  }
  const Mxfp4GranuleShape up{2 * static_cast<int>(config.intermediate_size), stream.hidden},
      down{stream.hidden, static_cast<int>(config.intermediate_size)};
  const std::size_t rows = size(limits.rows), hidden = size(stream.hidden);
  const int places = places_at_experts(limits, part_);
  const int slots = places * top_k_, few_slots = moe_cuda_slots(places, top_k_);
  const bool blocks = in_blocks(expert_format(config));
  const bool many = !blocks && takes_many(slots);
  few_residual_ = arena.take<float>(size(std::min(limits.rows, norm_router_max_rows)) * hidden);
  router_.sums = arena.take<float>(norm_router_sums(experts_));
  router_logits_ = arena.take<float>(rows * size(experts_));
  rows_ = place.take_shared<Bf16>(size(places) * size(stream.padded()), arena);
  const int with_shared = slots + (shares_ ? 1 : 0);  // behind one row's choices
  expert_ids_ = place.take_shared<std::int32_t>(size(with_shared), arena);
  expert_weights_ = arena.take<float>(size(with_shared));
  moe_.activations = arena.take<Bf16>(size(blocks ? slots : few_slots) * size(down.padded_cols()));
  moe_.products = place.take_shared<float>(
      size((many || blocks ? slots : few_slots) + (shares_ ? 1 : 0)) * hidden, arena);
  if (!part_.alone() && !part_.owns_sequences()) {
    window_floats_ = gather_few_slots * hidden;
  } else if (part_.owns_sequences() && limits.exchange == ExchangeKind::low_latency) {
    const std::size_t row_bytes = size(stream.padded()) * sizeof(Bf16);
    window_floats_ = size(dispatch_few_places * top_k_) * hidden;
    windows_.data = place.shared.take<std::byte>(dispatch_window_bytes(part_.owners, row_bytes));
    windows_.steps = arena.take<std::uint32_t>(size(part_.owners * dispatch_few_places));
  }
  if (window_floats_ > 0) window_ = place.shared.take<float>(window_floats_);
  moe_.arrived = arena.take<std::uint32_t>(1);
  moe_.many = arena.take<std::uint8_t>(many ? moe_many_bytes(slots, experts_, up, down) : 0);
  moe_.many_counters = arena.take<std::uint32_t>(many ? size(moe_many_counters(slots, experts_)) : 0);
  groups_ = arena.take<std::uint8_t>(blocks ? block_moe_group_bytes(slots, experts_) : 0);
  router_.stuck = moe_.stuck = limits.stuck;
}

void ExpertsBlock::clear_room(cudaStream_t stream) const {
  if (window_ != nullptr) make_absent(window_, window_floats_, stream);
  if (windows_.data != nullptr) {
    const std::size_t bytes = dispatch_window_bytes(part_.owners, size(stream_.padded()) * sizeof(Bf16));
    make_absent(reinterpret_cast<float*>(windows_.data), bytes / sizeof(float), stream);
  }
  make_absent(router_.sums, norm_router_sums(experts_), stream);
}

ExpertsBlock::Places ExpertsBlock::places_of(const CudaForwardInput& input) const {
  const RankRows own = stream_.rows_of_rank(input);
  Places places{.count = input.rows, .a_group = own.a_rank, .own_count = own.count};
  if (!part_.owns_sequences()) return places;
  const int sharers = part_.ranks / part_.owners;
  if (own.are_shared()) {
    places.count = part_.ranks * own.a_rank;
    places.first = part_.owner * sharers * own.a_rank;
    return places;
  }
  places.count = part_.owners * input.most_rows;
  places.first = part_.owner * input.most_rows;
  places.a_group = input.most_rows;
  places.sharers = sharers;
  places.come_through_windows = windows_.data != nullptr && input.most_rows <= dispatch_few_places;
  return places;
}

// What the step before sent through windows may still be multiplied where this one's rows go straight to.
Status ExpertsBlock::begin(const CudaForwardInput& input, cudaStream_t stream) const {
  return windows_.data == nullptr || places_of(input).come_through_windows ? Status()
                                                                           : meet_cuda(*room_, stream);
}

std::optional<SigmoidRule> ExpertsBlock::sigmoid_rule(const ExpertsBlockWeights& weights) const {
  std::optional<SigmoidRule> rule = sigmoid_;
  if (rule) rule->bias = weights.router_correction;
  return rule;
}

// Norm, logits and choices of the rank's own rows.
Status ExpertsBlock::route_rows(const ExpertsBlockWeights& weights, const CudaForwardInput& input,
                                const Places& places, cudaStream_t stream) const {
  const RankRows own = stream_.rows_of_rank(input);
  Bf16* const rows = rows_ + size(places.first) * size(stream_.padded());
  const PendingSum pending{.residual = stream_.residual, .delta = stream_.delta};
  NIBBLE_RETURN_IF_ERROR(add_rms_norm_cuda(stream_.norm(weights.norm, pending, rows, own), stream));
  const std::size_t first = size(own.first), slot = (size(places.first) + first) * size(top_k_);
  float* const logits = router_logits_ + first * size(experts_);
  NIBBLE_RETURN_IF_ERROR(linear_cuda({.x = {stream_.normed_tiles + stream_.tile_bytes(own.first), own.count},
                                      .weight = weights.router,
                                      .bias = weights.router_bias,
                                      .y = logits,
                                      .y_stride = experts_,
                                      .workspace = stream_.linear},
                                     stream));
  if (sigmoid_) {
    return route_sigmoid_cuda({.logits = logits,
                               .rows = own.count,
                               .row_limit = input.row_limit,
                               .first_row = own.first,
                               .experts = experts_,
                               .top_k = top_k_,
                               .rule = *sigmoid_rule(weights),
                               .expert_ids = expert_ids_ + slot,
                               .expert_weights = expert_weights_ + slot},
                              stream);
  }
  return route_top_k_cuda({.logits = logits,
                           .rows = own.count,
                           .row_limit = input.row_limit,
                           .first_row = own.first,
                           .experts = experts_,
                           .top_k = top_k_,
                           .of_all = of_all_,
                           .expert_ids = expert_ids_ + slot,
                           .expert_weights = expert_weights_ + slot},
                          stream);
}

Result<const float*> ExpertsBlock::route(const ExpertsBlockWeights& weights, const CudaForwardInput& input,
                                         const Places& places, cudaStream_t stream) const {
  const std::size_t of_stream = size(places.first) * size(top_k_);
  Bf16* const rows = rows_ + size(places.first) * size(stream_.padded());
  const auto dispatched = [&](const float* residual) -> Result<const float*> {
    if (!part_.owns_sequences()) return residual;
    const DispatchRowsCudaArgs dispatch{.rows = reinterpret_cast<std::byte*>(rows_),
                                        .row_bytes = size(stream_.padded()) * sizeof(Bf16),
                                        .expert_ids = expert_ids_,
                                        .count = places.own_count,
                                        .places = places.a_group,
                                        .top_k = top_k_,
                                        .sharers = places.sharers,
                                        .owners = owners(places.count * top_k_)};
    const bool few = places.come_through_windows;
    stream_.count(few ? LaunchKind::dispatch_few : LaunchKind::dispatch_rows);
    NIBBLE_RETURN_IF_ERROR(few ? dispatch_few_rows_cuda(*room_, dispatch, windows_, stream)
                               : dispatch_rows_cuda(*room_, dispatch, stream));
    return residual;
  };
  const RankRows own = stream_.rows_of_rank(input);
  if (!own.are_shared() && norm_router_takes(weights.router.shape, input.rows)) {
    NIBBLE_RETURN_IF_ERROR(norm_router_cuda({.residual = stream_.residual,
                                             .delta = stream_.delta,
                                             .norm_weight = weights.norm,
                                             .weight_less_one = stream_.norms_less_one,
                                             .eps = stream_.eps,
                                             .residual_out = few_residual_,
                                             .norm = rows,
                                             .norm_stride = stream_.padded(),
                                             .norm_tiles = shares_ ? stream_.normed_tiles : nullptr,
                                             .router = weights.router,
                                             .router_bias = weights.router_bias,
                                             .rows = input.rows,
                                             .row_limit = input.row_limit,
                                             .top_k = top_k_,
                                             .of_all = of_all_,
                                             .sigmoid = sigmoid_rule(weights),
                                             .expert_ids = expert_ids_ + of_stream,
                                             .expert_weights = expert_weights_ + of_stream,
                                             .workspace = router_},
                                            stream));
    return dispatched(few_residual_);
  }
  if (own.count > 0) NIBBLE_RETURN_IF_ERROR(route_rows(weights, input, places, stream));
  if (own.are_shared() && !part_.owns_sequences()) {
    NIBBLE_RETURN_IF_ERROR(
        stream_.gather_rows(rows_, size(stream_.padded()) * sizeof(Bf16), own, false, stream));
    NIBBLE_RETURN_IF_ERROR(
        stream_.gather_rows(expert_ids_, size(top_k_) * sizeof(std::int32_t), own, true, stream));
  }
  return dispatched(stream_.residual);
}

// What ranks add up must be there of all slots at once, which of more is the kernel's for many alone.
bool ExpertsBlock::takes_many(int slots) const {
  return moe_takes_many(slots, experts_, many_tokens_from_) || (!part_.alone() && slots > moe_cuda_max_slots);
}

std::size_t ExpertsBlock::product_bytes(int slots) const {
  return size(slots) * size(stream_.hidden) * sizeof(float);
}

// Few slots have hardly an expert in common, so their turns are even; of more a rank that has all slots of an
// expert reads it alone.
bool ExpertsBlock::by_turns(int slots) const {
  constexpr int most_slots = 32;
  return part_.experts_everywhere && slots <= most_slots;
}

SlotOwners ExpertsBlock::owners(int slots) const {
  SlotOwners owners{.by_turns = by_turns(slots)};
  std::copy(part_.first_experts.begin(), part_.first_experts.end(), owners.first_expert);
  return owners;
}

MoeCudaShare ExpertsBlock::share(int slots) const {
  MoeCudaShare share{.first_expert = static_cast<int>(part_.stored_experts().begin),
                     .begin = static_cast<int>(part_.experts.begin),
                     .end = static_cast<int>(part_.experts.end()),
                     .routed = experts_};
  if (by_turns(slots)) share.turns = part_.ranks, share.turn = part_.rank;
  return share;
}

SharedChoice ExpertsBlock::shared_choice(const ExpertsBlockWeights& weights, int rows) const {
  SharedChoice choice;
  const int slots = rows * top_k_;
  if (part_.owns_sequences() || stream_.rounding.codes != nullptr) return choice;
  if (const auto* const blocks = std::get_if<BlockMoeWeights>(&weights.experts)) {
    choice.rows_are_there = block_moe_takes_few(*blocks, slots);
  } else {
    const int most = room_ == nullptr ? moe_cuda_max_slots : gather_few_slots;
    choice.rows_are_there = stream_.merge == nullptr && !takes_many(slots) && slots <= most;
  }
  if (rows != 1) return choice;
  choice.product = moe_.products + size(top_k_) * size(stream_.hidden);
  choice.id = expert_ids_ + top_k_;
  choice.weight = expert_weights_ + top_k_;
  return choice;
}

PendingSum ExpertsBlock::products_of(const float* residual, const Places& places) const {
  const std::size_t first = size(places.first) * size(top_k_);
  return {.residual = residual,
          .experts = {.products = moe_.products + first * size(stream_.hidden),
                      .expert_ids = expert_ids_ + first,
                      .expert_weights = expert_weights_ + first,
                      .top_k = top_k_}};
}

Result<PendingSum> ExpertsBlock::unadded(const float* residual, const Places& places,
                                         cudaStream_t stream) const {
  const int slots = places.count * top_k_;
  if (stream_.merge != nullptr) {
    stream_.count(LaunchKind::merge_products);
    NIBBLE_RETURN_IF_ERROR(stream_.merge->merge(moe_.products, product_bytes(slots), stream));
  }
  if (room_ != nullptr) {
    const bool all_to_all = places.a_group == 0 && slots <= gather_few_slots;
    stream_.count(places.come_through_windows ? LaunchKind::combine_few : LaunchKind::gather_products);
    NIBBLE_RETURN_IF_ERROR(
        gather_products_cuda(*room_,
                             {.products = moe_.products,
                              .expert_ids = expert_ids_,
                              .slots = slots,
                              .hidden = stream_.hidden,
                              .owners = owners(slots),
                              .slots_a_group = places.a_group * top_k_,
                              .sharers = places.sharers,
                              .window = all_to_all || places.come_through_windows ? window_ : nullptr},
                             stream));
  }
  return products_of(residual, places);
}

Result<PendingSum> ExpertsBlock::run(const ExpertsBlockWeights& weights, const CudaForwardInput& input,
                                     const Beside& beside, cudaStream_t stream) const {
  const Places places = places_of(input);
  NIBBLE_ASSIGN(const float* const residual, route(weights, input, places, stream));
  const int slots = places.count * top_k_;
  // A slot's product is one rank's.
  if (stream_.merge != nullptr)
    NIBBLE_RETURN_IF_ERROR(clear_cuda(moe_.products, product_bytes(slots), stream));
  if (const auto* const blocks = std::get_if<BlockMoeWeights>(&weights.experts)) {
    BlockMoeCudaArgs args{.x = rows_,
                          .x_stride = stream_.padded(),
                          .tokens = places.count,
                          .top_k = top_k_,
                          .expert_ids = expert_ids_,
                          .share = share(slots),
                          .workspace = {moe_.activations, moe_.products, groups_}};
    if (std::holds_alternative<BlockMoeWeightsOf<E4m3Codes>>(*blocks)) args.rounding = stream_.rounding;
    const bool rounds = args.rounding.codes != nullptr;
    const bool few = !rounds && block_moe_takes_few(*blocks, slots);
    stream_.count(few ? LaunchKind::experts_few : LaunchKind::experts_many);
    // One row's shared expert has room beside the first product, not beside both. With more rows it is worth
    // more that the second one's weights come early.
    const bool between = places.count == 1 && !rounds;
    if (between) args.products = BlockMoeProducts::gate_up;
    NIBBLE_RETURN_IF_ERROR(block_moe_cuda(*blocks, args, stream));
    NIBBLE_RETURN_IF_ERROR(beside());
    args.products = BlockMoeProducts::down;
    if (between) NIBBLE_RETURN_IF_ERROR(block_moe_cuda(*blocks, args, stream));
    return unadded(residual, places, stream);
  }
  NIBBLE_ASSIGN(PendingSum sum,
                run_granules(std::get<MoeCudaWeights>(weights.experts), residual, places, stream));
  sum.experts.crowded = part_.alone() && moe_leaves_no_room(slots);
  NIBBLE_RETURN_IF_ERROR(beside());
  return sum;
}

Result<PendingSum> ExpertsBlock::run_granules(const MoeCudaWeights& experts, const float* residual,
                                              const Places& places, cudaStream_t stream) const {
  const int slots = places.count * top_k_;
  MoeCudaArgs args{.x = rows_,
                   .x_stride = stream_.padded(),
                   .tokens = places.count,
                   .top_k = top_k_,
                   .expert_ids = expert_ids_,
                   .share = share(slots),
                   .expert_weights = expert_weights_,
                   .settles_rows = shares_ && !part_.owns_sequences(),
                   .workspace = moe_};
  stream_.count(takes_many(slots) ? LaunchKind::experts_many : LaunchKind::experts_few);
  if (takes_many(slots)) {
    if (places.a_group > 0 && places.sharers == 1 && !places.come_through_windows) {
      args.rows_of_ranks = {.room = room_, .slots_a_rank = places.a_group * top_k_};
      stream_.count(LaunchKind::send_products);
      NIBBLE_RETURN_IF_ERROR(moe_many_cuda(experts, args, stream));
      NIBBLE_RETURN_IF_ERROR(meet_cuda(*room_, stream));
      return products_of(residual, places);
    }
    NIBBLE_RETURN_IF_ERROR(moe_many_cuda(experts, args, stream));
    return unadded(residual, places, stream);
  }
  if (slots <= moe_cuda_max_slots) {
    const bool exchanges = room_ != nullptr && places.a_group == 0 && slots <= gather_few_slots;
    if (exchanges) {
      args.peers = {.room = room_, .window = window_, .owners = owners(slots)};
      stream_.count(LaunchKind::send_products);
    }
    NIBBLE_RETURN_IF_ERROR(moe_few_cuda(experts, args, stream));
    return exchanges ? products_of(residual, places) : unadded(residual, places, stream);
  }
  args.out = stream_.delta;
  NIBBLE_RETURN_IF_ERROR(moe_few_cuda(experts, args, stream));
  return PendingSum{.residual = residual, .delta = stream_.delta};
}

}  // namespace nibble
