// The kernels of all_reduce_norm, a file each; all_reduce_norm_cuda chooses.
#pragma once

#include "ops/all_reduce_norm/cuda/all_reduce_norm_cuda.h"
#include "tensor/cuda_check.h"

namespace nibble {

// A kernel's instances for 2, 4 and 8 members.
template <class Kernel>
struct OfMembers {
  Kernel two, four, eight;

  Kernel of(int members) const { return members == 2 ? two : members == 4 ? four : eight; }
  void load(int members) const {
    cudaFuncAttributes attributes{};
    cuda_check(cudaFuncGetAttributes(&attributes, of(members)));
  }
};
template <class Kernel>
OfMembers(Kernel, Kernel, Kernel) -> OfMembers<Kernel>;

// body(Rows{}) for each form of the norm, whose kernels are instances of their own.
template <class Body>
void for_each_form(const Body& body) {
  body(Bf16Rows{});
  body(E4m3Rows{});
  body(Nvfp4Rows{});
}

// body(rows) with the form that is asked for.
template <class Body>
void with_form(const AllReduceNormCudaArgs& args, const Body& body) {
  std::visit(body, args.out);
}

// Whether a two-shot launch sends back float32 rows, of which each member makes the norm.
inline bool gives_sums(const AllReduceNormCudaArgs& args) {
  return args.weight == nullptr || (args.residual != nullptr && !args.residual_at_owner);
}

// One-shot with a cluster of eight blocks or a pair a row, for few rows of up to 4,096 columns.
inline constexpr int peer_cluster_columns = 4096;
void launch_one_shot_clusters(const PeerGroup& group, const AllReduceNormCudaArgs& args, cudaStream_t stream);
void launch_one_shot_pairs(const PeerGroup& group, const AllReduceNormCudaArgs& args, cudaStream_t stream);
// One-shot with a block a row.
void load_one_shot_clusters(int members);
void launch_one_shot_rows(const PeerGroup& group, const AllReduceNormCudaArgs& args, cudaStream_t stream);
void load_one_shot_rows(int members);
// Two-shot, in the same three ways.
void launch_two_shot_clusters(const PeerGroup& group, const AllReduceNormCudaArgs& args, cudaStream_t stream);
void load_two_shot_clusters(int members);
void launch_two_shot_pairs(const PeerGroup& group, const AllReduceNormCudaArgs& args, cudaStream_t stream);
void load_two_shot_pairs(int members);
void launch_two_shot_rows(const PeerGroup& group, const AllReduceNormCudaArgs& args, cudaStream_t stream);
void load_two_shot_rows(int members);
void load_push_parts();

}  // namespace nibble
