// Router and experts of a decoder's layer on one GPU.
#pragma once

#include <functional>
#include <optional>
#include <variant>

#include "models/cuda/cuda_part.h"
#include "models/cuda/decoder_stream.h"
#include "ops/moe/cuda/block_moe_cuda.h"
#include "ops/moe/cuda/moe_cuda.h"
#include "ops/peer_gather/cuda/dispatch_rows_cuda.h"
#include "ops/peer_gather/cuda/merge_parts_cuda.h"
#include "ops/peer_gather/cuda/peer_gather_cuda.h"
#include "ops/router/cuda/norm_router_cuda.h"
#include "ops/router/cuda/route_sigmoid_cuda.h"

namespace nibble {

// All pointers are to device memory, and null for what the model is without.
struct ExpertsBlockWeights {
  Bf16* norm = nullptr;                                   // [hidden]
  DenseTiles router;                                      // [experts, hidden]
  Bf16* router_bias = nullptr;                            // [experts]
  float* router_correction = nullptr;                     // [experts]
  std::variant<MoeCudaWeights, BlockMoeWeights> experts;  // in 4 bits; in FP8 or bf16
};

// Of a model's experts, which have one in all layers.
TensorFormat expert_format(const ModelConfig& config);

// Whether experts in this format are multiplied by blocks of columns (ops/linear/cuda/block_matrices.h).
bool in_blocks(TensorFormat format);

// Rows of a step that meet at a rank's experts, at most.
int places_at_experts(const CudaForwardLimits& limits, const CudaPart& part);

// What kernels lack of a model's experts.
Status check_experts_block(const ModelConfig& config);

class ExpertsBlock {
 public:
  // Takes its room. Without memory it only counts.
  ExpertsBlock(const ModelConfig& config, const CudaForwardLimits& limits, const DecoderStream& stream,
               CudaPlace& place, DeviceArena& arena);
  void clear_room(cudaStream_t stream) const;
  // From now on inputs of FP8 weights are rounded, in this room.
  void round_inputs(const RoundingRoom& room) { stream_.rounding = room; }

  // Queues what a step begins with.
  Status begin(const CudaForwardInput& input, cudaStream_t stream) const;

  // Queues what may run beside the routed experts, in a launch or none.
  using Beside = std::function<Status()>;
  // residual + delta and its norm -> what the next norm adds to which residual. beside is called once: behind
  // the first product of one row's experts in blocks, else behind all that the experts launch.
  Result<PendingSum> run(const ExpertsBlockWeights& weights, const CudaForwardInput& input,
                         const Beside& beside, cudaStream_t stream) const;

  // What a shared expert of a step of so many rows finds where run() calls beside, and behind it.
  SharedChoice shared_choice(const ExpertsBlockWeights& weights, int rows) const;

 private:
  // A step's rows at the experts: those of the stream, or of all groups with sequences of their own, each of
  // which has as many places side by side.
  struct Places {
    int count = 0;  // of all ranks together
    int first = 0;  // of the stream's first row
    // So many in turn for one group of `sharers` alone, whose ranks add up their products; 0: all ranks add
    // all. A group whose ranks share its rows is taken for as many of one rank.
    int a_group = 0, sharers = 1;
    int own_count = 0;                  // of the stream's rows those that this rank routes
    bool come_through_windows = false;  // rows and products, without a meeting of the ranks
  };
  Places places_of(const CudaForwardInput& input) const;
  // -> rows, expert_ids, expert_weights; returns where the new residual is.
  Result<const float*> route(const ExpertsBlockWeights& weights, const CudaForwardInput& input,
                             const Places& places, cudaStream_t stream) const;
  std::optional<SigmoidRule> sigmoid_rule(const ExpertsBlockWeights& weights) const;
  Status route_rows(const ExpertsBlockWeights& weights, const CudaForwardInput& input, const Places& places,
                    cudaStream_t stream) const;
  // Whose slots are whose, of so many.
  bool by_turns(int slots) const;
  SlotOwners owners(int slots) const;
  MoeCudaShare share(int slots) const;
  bool takes_many(int slots) const;  // its kernel for many tokens
  std::size_t product_bytes(int slots) const;
  Result<PendingSum> run_granules(const MoeCudaWeights& weights, const float* residual, const Places& places,
                                  cudaStream_t stream) const;
  // The experts' products of the stream's rows for the next norm to add up, as they lie; and once ranks have
  // gathered them.
  PendingSum products_of(const float* residual, const Places& places) const;
  Result<PendingSum> unadded(const float* residual, const Places& places, cudaStream_t stream) const;

  DecoderStream stream_;
  const PeerRoom* room_;  // null: this rank is alone, or has a merge
  CudaPart part_;
  float* window_ = nullptr;  // GatherProductsCudaArgs's
  std::size_t window_floats_ = 0;
  DispatchWindows windows_;  // where few rows of ranks with sequences of their own come through some
  int experts_, top_k_, many_tokens_from_;
  bool of_all_;                         // as route_top_k_cuda's
  bool shares_;                         // some expert is every row's, whose input is the same norm in tiles
  std::optional<SigmoidRule> sigmoid_;  // without its bias, where the router has it
  float* few_residual_;       // [few rows, hidden]: between norm and router in one and the next norm
  float* router_logits_;      // [rows, experts]
  Bf16* rows_;                // [places, stream.padded()]: normed
  std::int32_t* expert_ids_;  // [places, top_k]
  float* expert_weights_;     // [places, top_k]
  NormRouterCudaWorkspace router_;
  MoeCudaWorkspace moe_;
  std::uint8_t* groups_;  // of experts in blocks; null for others
};

}  // namespace nibble
