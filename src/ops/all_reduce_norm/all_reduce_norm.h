// all_reduce_norm: a block's output lies in parts over ranks; the residual stream takes in their sum, and the
// next block's input is its norm.
//
//   residual += sum over ranks of parts;  out = residual * (1 / sqrt(mean(residual^2) + eps)) * weight
//
// Parts are float32, each the sum of its rank's leaves of K; the sum over ranks is the balanced tree of
// comm/leaves.h. From there on everything is add_rms_norm (ops/rms_norm/rms_norm.h), to the bit: so the
// result is that of one rank. Neither the algorithm nor the number of rows moves a bit.
//
// Variants: without a residual the norm is of the sum; without a weight only the residual is taken in; a
// weight may be stored less one (Qwen3-Next), and is then added to 1 in float32 first. The norm may be
// written as codes (norm_codes.h): those of its bfloat16 values.
#pragma once

#include <span>
#include <variant>

#include "base/status.h"
#include "comm/communicator.h"
#include "formats/bf16.h"
#include "ops/all_reduce_norm/norm_codes.h"
#include "ops/op_context.h"

namespace nibble {

// What the norm is written to: floats, [rows, hidden], rounded as the input of a product, or codes.
using NormOutput = std::variant<float*, E4m3Rows, Nvfp4Rows>;

struct AllReduceNormArgs {
  const float* parts = nullptr;  // [rows, hidden], this rank's
  float* residual = nullptr;     // [rows, hidden], updated; null: none
  const Bf16* weight = nullptr;  // [hidden]; null: no norm
  bool weight_less_one = false;  // the factor is 1 + weight
  NormOutput out;
  int rows = 0;
  int hidden = 0;
  float eps = 0;
  Algorithm algorithm = Algorithm::one_shot;
};

// Every rank of the communicator calls it, with the same rows, hidden and algorithm. Rows go in pieces of
// what slots hold.
Status all_reduce_norm(OpContext& context, Communicator& communicator, const AllReduceNormArgs& args);

// What is right, with the parts of all ranks in one place; args.parts is ignored.
void all_reduce_norm_ref(const OpContext& context, std::span<const float* const> parts,
                         const AllReduceNormArgs& args);

}  // namespace nibble
