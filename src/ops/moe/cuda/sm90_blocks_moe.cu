// The expert layer with weights in blocks (block_moe_cuda.h): the product with gate and up projections
// through the unit, then that with the down projection. For many tokens a launch before them cuts slots
// (token, choice) into groups of one expert; for few every block does so for itself.
#include <algorithm>
#include <string>
#include <type_traits>

#include "ops/linear/cuda/block_products_many.cuh"
#include "ops/linear/cuda/block_products_rounded.cuh"
#include "ops/moe/cuda/block_experts_few.cuh"
#include "ops/moe/cuda/block_moe_cuda.h"
#include "ops/moe/cuda/expert_groups.cuh"
#include "ops/moe/cuda/moe_steps.cuh"

namespace nibble {
namespace {

using namespace block_products;

// Up to which the kernel for few tokens is the faster one.
constexpr int few_slots_an_expert = 4;

// Where a launch's groups are: the list's length, the groups, then their sorted slots.
struct GroupPlaces {
  SlotGroups groups;
  SortedSlots sorted;

  GroupPlaces(std::uint8_t* memory, int slots, int experts, int most_rows)
      : groups{.most_rows = most_rows,
               .groups = reinterpret_cast<RowGroup*>(memory + 16),
               .count = reinterpret_cast<std::int32_t*>(memory)},
        sorted(memory + 16 + sizeof(RowGroup) * static_cast<std::size_t>(block_moe_groups(slots, experts)),
               experts) {}
  RowGroups view() const { return {.listed = groups.groups, .count = groups.count, .rows = sorted.slots}; }
};

struct StoreGated {
  Bf16* h;
  int stride;
  GatedUnit unit;
  __device__ __forceinline__ std::uint16_t value(float gate, float up) const {
    return static_cast<std::uint16_t>(ptx::pack_bf16x2(gated_on_device(gate, up, unit), 0.0f));
  }
  __device__ __forceinline__ void put(int row, int weight_row, std::uint16_t bits) const {
    h[static_cast<std::size_t>(row) * stride + weight_row / 2].bits = bits;
  }
};
struct StoreProducts {
  float* products;
  int hidden;
  __device__ __forceinline__ static float2 value(float even, float odd) { return make_float2(even, odd); }
  __device__ __forceinline__ void put(int row, int weight_row, float2 both) const {
    *reinterpret_cast<float2*>(products + static_cast<std::size_t>(row) * hidden + weight_row) = both;
  }
};

template <class Codes>
Status check_shapes(const BlockMoeWeightsOf<Codes>& weights, const BlockMoeCudaArgs& args) {
  const auto &up = weights.gate_up.shape, &down = weights.down.shape;
  if (!up.legal() || !down.legal() || down.cols % block_granule_rows != 0) {
    return invalid_argument("the expert layer's widths must be multiples of 16, not " +
                            std::to_string(up.cols) + " and " + std::to_string(down.cols));
  }
  if (up.rows != 2 * down.cols || up.cols != down.rows || weights.gate_up.experts != weights.down.experts) {
    return invalid_argument("the expert layer's matrices do not fit each other: gate_up [" +
                            std::to_string(up.rows) + ", " + std::to_string(up.cols) + "], down [" +
                            std::to_string(down.rows) + ", " + std::to_string(down.cols) + "]");
  }
  if (weights.gate_up.experts > block_moe_most_experts) {
    return invalid_argument("the kernels take up to " + std::to_string(block_moe_most_experts) +
                            " experts, not " + std::to_string(weights.gate_up.experts));
  }
  if (args.x_stride < up.padded_cols() || args.x_stride % 8 != 0) {
    return invalid_argument("activations need a stride of at least " + std::to_string(up.padded_cols()) +
                            ", a multiple of 8, not " + std::to_string(args.x_stride));
  }
  return {};
}

template <class Codes>
void launch_few(const BlockMoeWeightsOf<Codes>& weights, const BlockMoeCudaArgs& args, cudaStream_t stream) {
  using namespace block_experts;
  const int slots = args.tokens * args.top_k;
  const int stride = weights.down.shape.padded_cols();
  const FreshSlotChoices choices{
      {args.expert_ids, taken_of(args.share, weights.gate_up.experts), weights.gate_up.experts}};
  if (args.products != BlockMoeProducts::down) {
    launch_experts<Awaits::choices>(
        block_experts::Params<Codes, StoreGated>{.weights = weights.gate_up,
                                                 .x = args.x,
                                                 .x_stride = args.x_stride,
                                                 .of_slots_a_row = of_slots_a_row(args.top_k),
                                                 .slots = slots,
                                                 .choices = choices,
                                                 .granules = 0,
                                                 .of_block = 0,
                                                 .store = {args.workspace.activations, stride, weights.unit}},
        args.tokens, stream);
  }
  if (args.products == BlockMoeProducts::gate_up) return;
  launch_experts<Awaits::inputs>(
      block_experts::Params<Codes, StoreProducts>{
          .weights = weights.down,
          .x = args.workspace.activations,
          .x_stride = stride,
          .of_slots_a_row = of_slots_a_row(1),
          .slots = slots,
          .choices = choices,
          .granules = 0,
          .of_block = 0,
          .store = {args.workspace.products, weights.down.shape.rows}},
      args.tokens, stream);
}

// The launches for many tokens: groups of so many rows, then both products or one.
template <class Codes>
struct ManyLaunches {
  const BlockMoeWeightsOf<Codes>& weights;
  const BlockMoeCudaArgs& args;
  int rows;  // of a group
  cudaStream_t stream;

  int slots() const { return args.tokens * args.top_k; }
  int experts() const { return weights.gate_up.experts; }
  int groups() const { return slots() / rows + std::min(slots(), experts()); }
  int stride() const { return weights.down.shape.padded_cols(); }
  GroupPlaces places() const { return {args.workspace.groups, slots(), experts(), rows}; }
  StoreGated gated() const { return {args.workspace.activations, stride(), weights.unit}; }
  StoreProducts products() const { return {args.workspace.products, weights.down.shape.rows}; }

  void group() const {
    sort_slots_cuda({args.expert_ids, taken_of(args.share, experts()), slots(), experts()}, places().sorted,
                    places().groups, stream);
  }
  // x: a row for so many consecutive slots.
  template <class Store>
  void multiply(const BlockMatrices<Codes>& matrices, const Inputs& x, int choices,
                const Store& store) const {
    block_products::launch_many<ColumnOrder::quarters>(ManyParams<Codes, Store>{.map = {},
                                                                                .weights = matrices,
                                                                                .x = x,
                                                                                .groups = places().view(),
                                                                                .choices = choices,
                                                                                .store = store},
                                                       rows, groups(), stream);
  }
  void run() const {
    if (args.products != BlockMoeProducts::down) {
      group();
      multiply(weights.gate_up, plain_rows(args.x, args.x_stride), args.top_k, gated());
    }
    if (args.products == BlockMoeProducts::gate_up) return;
    multiply(weights.down, plain_rows(args.workspace.activations, stride()), 1, products());
  }

  // The same of rows that are rounded first.
  template <class Store>
  void round_and_multiply(const BlockMatrices<Codes>& matrices, const RoundRowsCudaArgs& x, int choices,
                          const Store& store) const {
    round_rows_cuda(x, stream);
    rounded_products::launch_rounded(rounded_products::Params<Store>{.map = {},
                                                                     .weights = matrices,
                                                                     .x = {x.to.codes, x.to.scales},
                                                                     .groups = places().view(),
                                                                     .choices = choices,
                                                                     .store = store},
                                     rows, groups(), stream);
  }
  void run_rounded() const {
    group();
    round_and_multiply(weights.gate_up,
                       {.x = args.x,
                        .x_stride = args.x_stride,
                        .rows = args.tokens,
                        .cols = weights.gate_up.shape.cols,
                        .to = args.rounding,
                        .copies = args.top_k},
                       args.top_k, gated());
    round_and_multiply(weights.down,
                       {.x = args.workspace.activations,
                        .x_stride = stride(),
                        .rows = slots(),
                        .cols = weights.down.shape.cols,
                        .to = args.rounding},
                       1, products());
  }
};

template <class Codes>
bool fits_few(const BlockMoeWeightsOf<Codes>& weights, int slots) {
  return slots <= block_experts::most_slots &&
         std::max(weights.gate_up.shape.cols, weights.down.shape.cols) <= block_experts::most_columns;
}
bool is_few(int slots, int experts) { return slots <= few_slots_an_expert * experts; }

template <class Codes>
Status layer(const BlockMoeWeightsOf<Codes>& weights, const BlockMoeCudaArgs& args, cudaStream_t stream) {
  NIBBLE_RETURN_IF_ERROR(check_shapes(weights, args));
  const int slots = args.tokens * args.top_k, experts = weights.gate_up.experts;
  if (slots == 0) return {};
  const int mean = slots / experts;  // tokens of an expert
  const int rows = mean <= 20 ? 32 : mean <= 48 ? 64 : 128;
  if constexpr (std::is_same_v<Codes, E4m3Codes>) {
    if (args.rounding.codes != nullptr) {
      if (args.products != BlockMoeProducts::both)
        return invalid_argument("both products are queued at once where rows are rounded");
      ManyLaunches<Codes>{weights, args, rows, stream}.run_rounded();
      return {};
    }
  }
  const bool few =
      fits_few(weights, slots) &&
      (args.path == BlockMoePath::few || (args.path == BlockMoePath::faster && is_few(slots, experts)));
  if (few) {
    launch_few(weights, args, stream);
  } else {
    ManyLaunches<Codes>{weights, args, rows, stream}.run();
  }
  return {};
}

}  // namespace

bool block_moe_takes_few(const BlockMoeWeights& weights, int slots) {
  return std::visit([&](const auto& of) { return fits_few(of, slots) && is_few(slots, of.gate_up.experts); },
                    weights);
}

Status block_moe_cuda(const BlockMoeWeightsOf<Bf16Codes>& weights, const BlockMoeCudaArgs& args,
                      cudaStream_t stream) {
  return layer(weights, args, stream);
}
Status block_moe_cuda(const BlockMoeWeightsOf<E4m3Codes>& weights, const BlockMoeCudaArgs& args,
                      cudaStream_t stream) {
  return layer(weights, args, stream);
}

}  // namespace nibble
