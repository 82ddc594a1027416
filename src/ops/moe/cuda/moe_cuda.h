// moe (ops/moe/moe.h) with weights in granules of one of several formats, on a GPU of compute capability 9.0,
// for bfloat16 activations.
//
// Every product adds as granules.h says, then the bias if there is one; h is rounded to bfloat16 once; out
// adds its experts in order of the top-k, each product and each sum rounded. A row's bits depend on nothing
// else: neither on the rows beside it and its place among them, nor on the number of blocks.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <variant>

#include "base/status.h"
#include "formats/bf16.h"
#include "ops/moe/cuda/int4_granules.h"
#include "ops/moe/cuda/mxfp4_granules.h"
#include "ops/moe/cuda/nvfp4_granules.h"
#include "ops/moe/cuda/sorted_slots.h"
#include "ops/moe/many_tokens.h"
#include "ops/peer_gather/cuda/peer_gather_cuda.h"
#include "ops/row/gated_unit.h"

namespace nibble {

// All pointers are to device memory.
template <class Granules>
struct MoeCudaWeightsOf {
  Granules gate_up;                    // [experts] of [2 * intermediate, hidden], gate and up alternating
  Granules down;                       // [experts] of [hidden, intermediate]
  const Bf16* gate_up_bias = nullptr;  // [experts, 2 * intermediate]; null: without
  const Bf16* down_bias = nullptr;     // [experts, hidden]; null: without
  GatedUnit unit;
};
using MoeMxfp4CudaWeights = MoeCudaWeightsOf<Mxfp4Granules>;
using MoeNvfp4CudaWeights = MoeCudaWeightsOf<Nvfp4Granules>;
using MoeInt4CudaWeights = MoeCudaWeightsOf<Int4Granules>;
// What a model's layer holds: the layer in whichever format its checkpoint has.
using MoeCudaWeights = std::variant<MoeMxfp4CudaWeights, MoeNvfp4CudaWeights, MoeInt4CudaWeights>;

// What the kernels share between launches, zeroed once before the first; one launch at a time may use it.
struct MoeCudaWorkspace {
  Bf16* activations = nullptr;       // [slots, padded intermediate]
  float* products = nullptr;         // [slots, hidden]
  std::uint32_t* arrived = nullptr;  // one word, where blocks meet (ptx::meet_blocks)
  // For many tokens alone.
  std::uint8_t* many = nullptr;            // [moe_many_bytes()], which may hold anything between launches
  std::uint32_t* many_counters = nullptr;  // [moe_many_counters()], 0 between launches
  std::uint32_t* stuck = nullptr;  // one word of pinned host memory (ops/cuda/stuck.h); null: nobody reads it
};

// Which of the routed choices a launch takes. The others are as those of no expert, and their products are
// not written.
struct MoeCudaShare {
  int first_expert = 0;    // the layer's are those from this one on
  int begin = 0, end = 0;  // experts whose slots are taken; end 0: all of the layer's
  int routed = 0;          // among how many the choices are; 0: the layer's
  // Above 1: every so-manieth slot instead, from `turn` on. Of the kernel for few tokens, in one launch.
  int turns = 1, turn = 0;
};

// What ranks exchange in the kernel for few tokens: it stores its products into all windows, which lie as the
// products do, and takes the others' from its own.
struct MoePeers {
  const PeerRoom* room = nullptr;  // null: nothing
  float* window = nullptr;         // GatherProductsCudaArgs's
  SlotOwners owners;
};

// Which rank adds up a row's products: the kernel for many tokens stores them there, where they lie in the
// room. They have come when the ranks have met (comm/cuda/peer_room.h).
struct MoeRowsOfRanks {
  const PeerRoom* room = nullptr;  // null: this rank adds up all
  int slots_a_rank = 0;            // in turn, the first ones the first rank's
};

struct MoeCudaArgs {
  const Bf16* x = nullptr;  // [tokens, x_stride], zeros (or anything finite) past hidden
  int x_stride = 0;         // at least hidden rounded up to 64, a multiple of 8
  int tokens = 0;
  int top_k = 0;                             // 1 .. moe_cuda_max_top_k
  const std::int32_t* expert_ids = nullptr;  // [tokens, top_k]; -1: none
  MoeCudaShare share;
  MoePeers peers;
  MoeRowsOfRanks rows_of_ranks;
  const float* expert_weights = nullptr;  // [tokens, top_k]
  // [tokens, hidden]; null: workspace.products are left to the next kernel, which adds a token's experts
  // itself (ExpertParts of ops/rms_norm/cuda). The path for few tokens then takes one launch's.
  float* out = nullptr;
  // The launch behind the path for few tokens begins only when x and the choices are there, so that it need
  // not wait for them itself. Else it begins as early as there is room.
  bool settles_rows = false;
  MoeCudaWorkspace workspace;
  int blocks = 0;  // at most the multiprocessors; 0: one on each
};

inline constexpr int moe_cuda_max_top_k = 16;

// Queues the sum of each token's experts alone, of products that lie in the workspace already: args.out.
// The same additions in the same order as moe_few_cuda's.
void add_experts_cuda(const MoeCudaArgs& args, int hidden, cudaStream_t stream);

// Slots (tokens x top_k) of one launch of the kernel for few tokens; more are taken in turns.
inline constexpr int moe_cuda_max_slots = 1024;
// Whether a launch of so many slots of weights in granules leaves no shared memory to blocks of the next one:
// of fewer, rings are shorter.
constexpr bool moe_leaves_no_room(int slots) { return slots > moe_fewest_slots; }

// Room for `tokens`: slots of the largest launch.
constexpr int moe_cuda_slots(int tokens, int top_k) {
  const int most = moe_cuda_max_slots / top_k * top_k;
  return tokens * top_k < most ? tokens * top_k : most;
}

// Queues the layer on the stream, for few tokens. A refusal names what the shapes lack.
template <class Granules>
Status moe_few_cuda(const MoeCudaWeightsOf<Granules>& weights, const MoeCudaArgs& args, cudaStream_t stream);

// The same layer for many tokens, with the same bits. Its products need room for all of tokens x top_k slots.
template <class Granules>
Status moe_many_cuda(const MoeCudaWeightsOf<Granules>& weights, const MoeCudaArgs& args, cudaStream_t stream);

inline Status moe_few_cuda(const MoeCudaWeights& weights, const MoeCudaArgs& args, cudaStream_t stream) {
  return std::visit([&](const auto& of_format) { return moe_few_cuda(of_format, args, stream); }, weights);
}
inline Status moe_many_cuda(const MoeCudaWeights& weights, const MoeCudaArgs& args, cudaStream_t stream) {
  return std::visit([&](const auto& of_format) { return moe_many_cuda(of_format, args, stream); }, weights);
}

inline constexpr int moe_many_most_experts = sorted_slots_most_experts;  // that it has room for

// An expert's tokens are cut into no more tiles than ones of so many tokens would be, and only the last has
// empty places, at most so many.
inline constexpr int moe_many_least_tile = 40, moe_many_most_empty = 127;
constexpr int moe_many_tiles(int slots, int experts) {  // at most
  return slots / moe_many_least_tile + (slots < experts ? slots : experts);
}
constexpr int moe_many_rows(int slots, int experts) {  // of all tiles, at most
  return (slots + moe_many_most_empty * (slots < experts ? slots : experts) + 7) / 8 * 8;
}
constexpr int moe_many_counters(int slots, int experts) { return 1 + 2 * moe_many_tiles(slots, experts); }
constexpr std::size_t moe_many_slot_bytes(int slots, int experts) {
  return (4 * static_cast<std::size_t>(moe_many_rows(slots, experts)) + 255) / 256 * 256;
}
constexpr std::size_t moe_many_sorted_bytes(int slots, int experts) {
  return sorts_slots(slots) ? sorted_slot_bytes(slots, experts) : 0;
}
// Room for `slots`: which of them each place in a tile has, their order, and the activations of both products
// in tiles.
template <class Shape>
constexpr std::size_t moe_many_bytes(int slots, int experts, const Shape& gate_up, const Shape& down) {
  return moe_many_slot_bytes(slots, experts) + moe_many_sorted_bytes(slots, experts) +
         static_cast<std::size_t>(moe_many_rows(slots, experts)) * 2 *
             static_cast<std::size_t>(gate_up.padded_cols() + down.padded_cols());
}

// Queues the re-laying of matrices from a checkpoint's rows into granules; all pointers are to device memory.
struct Mxfp4Repack {
  const std::uint8_t* blocks = nullptr;  // [experts, rows, cols / 32, 16]; at a multiple of 8
  const std::uint8_t* scales = nullptr;  // [experts, rows, cols / 32]
  int experts = 0;
  Mxfp4GranuleShape shape;
  // The rows of gate_proj lie before those of up_proj, which become the even and the odd ones.
  bool halves = false;
  int exponent_shift = 0;
  std::uint8_t* out = nullptr;  // [experts, shape.bytes()]
  // Zeroed before the first of a matrix's parts. Where granule_exponent_shift of it differs from
  // exponent_shift, pack again with that; where granule_scales_fit says no, it cannot be packed.
  Mxfp4ScaleRange* range = nullptr;
};
Status repack_mxfp4_cuda(const Mxfp4Repack& repack, cudaStream_t stream);

struct Nvfp4Repack {
  const std::uint8_t* codes = nullptr;   // [experts, rows, cols / 2]: weight_packed; at a multiple of 8
  const std::uint8_t* scales = nullptr;  // E4M3 [experts, rows, cols / 16]: weight_scale
  int experts = 0;
  Nvfp4GranuleShape shape;
  // The rows of gate_proj lie before those of up_proj, which become the even and the odd ones.
  bool halves = false;
  std::uint8_t* out = nullptr;  // [experts, shape.bytes()]
};
Status repack_nvfp4_cuda(const Nvfp4Repack& repack, cudaStream_t stream);

struct Int4Repack {
  const std::uint8_t* codes = nullptr;  // [experts, rows, cols / 2]: weight_packed; at a multiple of 8
  const Bf16* scales = nullptr;         // [experts, rows, cols / 32]: weight_scale
  int experts = 0;
  Int4GranuleShape shape;
  bool halves = false;          // as Nvfp4Repack's
  std::uint8_t* out = nullptr;  // [experts, shape.bytes()]
  // Zeroed before the first of a matrix's parts. Where int4_scales_fit of it says no, it cannot be packed.
  Int4ScaleRange* range = nullptr;
};
Status repack_int4_cuda(const Int4Repack& repack, cudaStream_t stream);

}  // namespace nibble
