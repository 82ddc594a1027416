// moe (ops/moe/moe.h) with weights in blocks (ops/linear/cuda/block_matrices.h) on a GPU of compute
// capability 9.0, for bfloat16 activations and experts without biases: FP8 in tiles of 128 x 128, or
// bfloat16.
//
// Every product adds as block_matrices.h says; h is rounded to bfloat16 once. The products are left to the
// next kernel, which adds a token's experts in order of the top-k (ExpertParts of ops/rms_norm/cuda). A row's
// bits depend on nothing else: neither on the rows beside it and its place among them, nor on how many there
// are.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <variant>

#include "base/status.h"
#include "formats/bf16.h"
#include "ops/linear/cuda/block_matrices.h"
#include "ops/linear/cuda/rounded_rows.h"
#include "ops/moe/cuda/moe_cuda.h"
#include "ops/row/gated_unit.h"

namespace nibble {

template <class Codes>
struct BlockMoeWeightsOf {
  BlockMatrices<Codes> gate_up;  // [experts] of [2 * intermediate, hidden], gate and up alternating
  BlockMatrices<Codes> down;     // [experts] of [hidden, intermediate]
  GatedUnit unit;
};
using BlockMoeWeights = std::variant<BlockMoeWeightsOf<Bf16Codes>, BlockMoeWeightsOf<E4m3Codes>>;

// All pointers are to device memory. What launches share; one at a time may use it.
struct BlockMoeWorkspace {
  Bf16* activations = nullptr;     // [slots, padded intermediate], zeros past the intermediate
  float* products = nullptr;       // [slots, hidden]
  std::uint8_t* groups = nullptr;  // [block_moe_group_bytes(slots, experts)]
};

// Which kernels: tests and benchmarks choose them, others take what is faster.
enum class BlockMoePath { faster, few, many };

// Which of the two products a call queues: each may have a call of its own, where something runs beside them.
enum class BlockMoeProducts { both, gate_up, down };

struct BlockMoeCudaArgs {
  const Bf16* x = nullptr;  // [tokens, x_stride], finite past hidden
  int x_stride = 0;         // at least hidden rounded up to 64, a multiple of 8
  int tokens = 0;
  int top_k = 0;
  const std::int32_t* expert_ids = nullptr;  // [tokens, top_k]; -1: none
  MoeCudaShare share;
  BlockMoeWorkspace workspace;
  BlockMoePath path = BlockMoePath::faster;
  BlockMoeProducts products = BlockMoeProducts::both;
  // Of experts in FP8, with both products: x and h are rounded to FP8 (rounded_rows.h) in front of them. Room
  // for block_moe_rounding_bytes and as many scales as slots.
  RoundingRoom rounding = {};
};

// Experts that the list of groups has room for.
inline constexpr int block_moe_most_experts = sorted_slots_most_experts;

// An expert's slots are cut into groups of eight or more.
constexpr int block_moe_groups(int slots, int experts) {
  return slots / 8 + (slots < experts ? slots : experts);
}
constexpr std::size_t block_moe_group_bytes(int slots, int experts) {
  return 16 + 16 * static_cast<std::size_t>(block_moe_groups(slots, experts)) +
         sorted_slot_bytes(slots, experts);
}

constexpr std::size_t block_moe_rounding_bytes(int tokens, int slots, int hidden, int intermediate) {
  const std::size_t of_x = static_cast<std::size_t>(tokens) *
                           static_cast<std::size_t>(rounded_row_bytes(hidden)),
                    of_h = static_cast<std::size_t>(slots) *
                           static_cast<std::size_t>(rounded_row_bytes(intermediate));
  return of_x > of_h ? of_x : of_h;
}

// Whether so many slots are taken by the path for few tokens: a launch for each product, of which the first
// lets the one behind it begin when x and the choices are there.
bool block_moe_takes_few(const BlockMoeWeights& weights, int slots);

// Queues the layer on the stream. A refusal names what the shapes lack.
Status block_moe_cuda(const BlockMoeWeightsOf<Bf16Codes>& weights, const BlockMoeCudaArgs& args,
                      cudaStream_t stream);
Status block_moe_cuda(const BlockMoeWeightsOf<E4m3Codes>& weights, const BlockMoeCudaArgs& args,
                      cudaStream_t stream);
inline Status block_moe_cuda(const BlockMoeWeights& weights, const BlockMoeCudaArgs& args,
                             cudaStream_t stream) {
  return std::visit([&](const auto& of_format) { return block_moe_cuda(of_format, args, stream); }, weights);
}

}  // namespace nibble
