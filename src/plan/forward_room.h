// Everything a forward on a CPU writes, in one block taken at the start. A plan counts it and a model lies it
// out by the same list, so that the two cannot differ.
#pragma once

#include <cstddef>
#include <cstdint>

#include "comm/token_exchange.h"
#include "plan/model_traits.h"

namespace nibble {

// Of layers with a gated delta rule; null where there are none.
struct DeltaRoom {
  float* projected =
      nullptr;           // [rows, channels + values], as a matrix gave them; then [rows, channels] convolved
  float* qkv = nullptr;  // [rows, channels]
  float* z = nullptr;    // [rows, values]
  float* b_a = nullptr;  // [rows, 2 * value_heads]
  float *b = nullptr, *a = nullptr;  // [rows, value_heads]
  float* mixed = nullptr;            // [rows, values]
};

// Of layers with latent attention; null where there are none.
struct LatentRoom {
  float* query_latent = nullptr;  // [rows, query_rank]
  float* latents = nullptr;       // [rows, rank + rotated]
  float* absorbed = nullptr;      // [rows, heads * (rank + rotated)]
  float* sums = nullptr;          // [rows, heads * rank]
};

struct ForwardRoom {
  float* residual = nullptr;                // [rows, hidden]
  float* normed = nullptr;                  // [rows, hidden]
  float* delta = nullptr;                   // [rows, hidden]: what the last block adds to the residual
  float *q = nullptr, *attended = nullptr;  // [rows, heads * head_dim], [rows, heads * value_dim]; of several
                                            // ranks the second also is what heads with states gave
  float *k = nullptr, *v = nullptr;         // [rows, kv_heads * head_dim]
  float *q_gates = nullptr,
        *gates = nullptr;                // [rows, 2 * q's width], [rows, q's]; null: heads have no gates
  float *cos = nullptr, *sin = nullptr;  // [rows, head_dim / 2]
  float* attention = nullptr;            // [attention_floats], for paged_attention
  std::int64_t attention_floats = 0;
  LatentRoom latent;
  DeltaRoom delta_rule;
  // [rows, shared_width], and of dense layers; null: there are neither. The second is of a rank's columns.
  float *shared_gate = nullptr, *shared_up = nullptr;
  float *shared_out = nullptr, *shared_logits = nullptr;  // [rows, hidden], [rows]
  float* router_logits = nullptr;                         // [rows, experts]
  float* expert_weights = nullptr;                        // [rows, top_k]
  float* activations = nullptr;                           // [rows * top_k, expert_width]
  float* products = nullptr;                              // [rows * top_k, hidden]
  std::int32_t* expert_ids = nullptr;                     // [rows, top_k]
  std::int32_t* slots = nullptr;                          // [rows * top_k]
  std::int32_t* offsets = nullptr;                        // [experts + 1]
  std::byte* shared = nullptr;                            // [shared_bytes], each op's in turn
  std::size_t shared_bytes = 0;
  // A rank's own columns of what ranks gather; of one rank, the whole itself.
  float* attended_part = nullptr;     // [rows, its heads * value_dim]
  float* shared_gate_part = nullptr;  // [rows, its columns of what is shared or dense]
  float* delta_part = nullptr;        // [rows, its columns of hidden]
  float* activations_part = nullptr;  // [rows * top_k, its rows of expert_width]
  float* logits_part = nullptr;       // [logit_rows, its rows of the vocabulary]; null of one rank
  // Of ranks that exchange tokens (comm/token_exchange.h): what arrives, and what comes back of own rows.
  ExchangeRoom arrived;
  float* results = nullptr;        // [rows of this rank * top_k, hidden]
  std::uint8_t* owners = nullptr;  // [rows * top_k]; null where experts are not spread
  float *last_residual = nullptr, *last_delta = nullptr, *last_normed = nullptr;  // [logit_rows, hidden]
};

// Of one rank, with room for the largest part that any rank has.
struct ForwardRoomLimits {
  std::int64_t rows = 0;
  std::int64_t logit_rows = 0;
  std::int64_t positions = 0;  // of one sequence
  int threads = 1;
  int ranks = 1;
  int owners = 1;        // groups of ranks that have sequences of their own; `rows` are one's
  int expert_ranks = 1;  // that experts are spread over
  ExchangeKind exchange = ExchangeKind::none;
};

// Lays the room out from `begin` on, at a multiple of 64, each part at another; null: it is only counted.
struct PlacedForwardRoom {
  ForwardRoom room;
  std::size_t bytes = 0;
};
PlacedForwardRoom place_forward_room(const ModelTraits& model, const ForwardRoomLimits& limits,
                                     std::byte* begin);

}  // namespace nibble
