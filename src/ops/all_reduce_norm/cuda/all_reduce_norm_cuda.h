// all_reduce_norm (ops/all_reduce_norm/all_reduce_norm.h) over GPUs of one process that write into each
// other's windows (comm/cuda/peer_group.h). The norm is add_rms_norm_cuda's, to the bit, its sum of squares
// in that order (ops/rms_norm/cuda/rms_norm_cuda.h): so a row has the bits it has on one GPU.
//
// One-shot: every member sends its part of a row to all, and all add and norm it. Two-shot: to the row's
// owner alone, which adds it, takes it into the residual, norms it and sends the normed row to all. Measured
// on H200s with NVLink, hidden 2,880: two-shot is sooner from some 130 rows on 2 GPUs and from 20 on 4.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <variant>

#include "base/status.h"
#include "comm/cuda/peer_group.h"
#include "comm/group_memory.h"
#include "formats/bf16.h"
#include "ops/all_reduce_norm/norm_codes.h"
#include "ops/cuda/host_device.h"

namespace nibble {

// The norm in bfloat16, in either form or both, zeros past hidden.
struct Bf16Rows {
  Bf16* rows = nullptr;           // [rows, stride]
  int stride = 0;                 // at least hidden, a multiple of 8
  std::uint8_t* tiles = nullptr;  // token tiles (ops/linear/cuda/dense_tiles.h); one launch's rows at most
};
// Codes are in order of columns, at a multiple of 16 bytes. Where a row's owner alone makes its norm, codes
// and scales are what it sends to all.
using NormCudaOutput = std::variant<Bf16Rows, E4m3Rows, Nvfp4Rows>;

// All pointers are to memory of the member's device.
struct AllReduceNormCudaArgs {
  // [rows, hidden], this member's. Null: the kernel ahead has pushed them into all members' windows, its own
  // included, behind its own dependency wait (push_part, comm/cuda/peer_slots.cuh); one-shot alone.
  const float* parts = nullptr;
  float* residual = nullptr;     // [rows, hidden], the same on all members, updated; null: none
  const Bf16* weight = nullptr;  // [hidden]; null: no norm
  bool weight_less_one = false;  // the factor is 1 + weight
  // Two-shot: a row's new residual is written at its owner alone, who holds the row in every call of as many
  // rows. Half of what else would travel back.
  bool residual_at_owner = false;
  NormCudaOutput out;
  int rows = 0;    // 1 to 8,192
  int hidden = 0;  // the group's
  float eps = 0;
  Algorithm algorithm = Algorithm::one_shot;
};

// Loads the kernels on the device in use. The driver loads a kernel when it is first launched, and may let
// that wait until the device is idle; a member whose next launch waits so for a kernel that waits for another
// member would stop both. So every member loads them before the first collective.
void load_all_reduce_norm_kernels(int members);

// Whichever is sooner for so many rows.
Algorithm all_reduce_norm_algorithm(int members, int rows, int hidden);

// The member that adds the row in a two-shot launch: neighbours have different ones, and so have the rows i,
// i + two_shot_turn, ... that one pair of blocks has.
inline constexpr int two_shot_turn = 128;
NIBBLE_HOST_DEVICE constexpr int owner_of_row(int row, int members) {
  return (row + row / two_shot_turn) % members;
}

// Sends this member's parts, [rows, hidden], to all members' windows, for an all_reduce_norm_cuda of as many
// rows without parts behind it.
Status push_parts_cuda(const PeerGroup& group, const float* parts, int rows, cudaStream_t stream);

// Every member launches it on a stream of its own, with the same rows, algorithm, variant and kind of output.
Status all_reduce_norm_cuda(const PeerGroup& group, const AllReduceNormCudaArgs& args, cudaStream_t stream);

}  // namespace nibble
