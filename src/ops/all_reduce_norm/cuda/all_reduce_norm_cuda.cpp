#include "ops/all_reduce_norm/cuda/all_reduce_norm_cuda.h"

#include <algorithm>
#include <string>

#include "ops/all_reduce_norm/cuda/peer_norm_kernels.h"

namespace nibble {
namespace {

// Measured on H200s with NVLink (docs/performance/several_gpus.md). Eight members take what four do; they
// have not been measured. Up to so many rows a cluster of eight blocks a row is sooner than a pair of blocks.
constexpr int cluster_rows = 96;
// Up to so many a pair is sooner than one block.
constexpr int pair_rows_one_shot = 132, pair_rows_two_shot_of_two = 384, pair_rows_two_shot_of_more = 8192;
// Up to so many bytes that leave a member one-shot is sooner than two-shot.
constexpr std::int64_t one_shot_bytes_of_two = 1500 * 1024, one_shot_bytes_of_more = 700 * 1024;

Status check_output(const Bf16Rows& out, const PeerGroup& group, const AllReduceNormCudaArgs& args) {
  if (out.rows != nullptr && (out.stride < args.hidden || out.stride % 8 != 0)) {
    return invalid_argument("a norm of " + std::to_string(args.hidden) +
                            " columns needs a stride of as many, a multiple of 8, not " +
                            std::to_string(out.stride));
  }
  if (out.tiles != nullptr && args.rows > group.layout.most_rows) {
    return invalid_argument("token tiles take the " + std::to_string(group.layout.most_rows) +
                            " rows of one launch at most, not " + std::to_string(args.rows));
  }
  return {};
}
template <class Codes>
Status check_output(const Codes& out, const PeerGroup&, const AllReduceNormCudaArgs& args) {
  return args.weight == nullptr ? Status{} : check_norm_codes(out, args.rows, args.hidden);
}

Bf16Rows rows_from(const Bf16Rows& all, int first, int) {
  Bf16Rows from = all;
  if (all.rows != nullptr)
    from.rows = all.rows + static_cast<std::size_t>(first) * static_cast<std::size_t>(all.stride);
  return from;
}

// Columns that a row's threads write.
int width_of(const AllReduceNormCudaArgs& args) {
  const Bf16Rows* const out = std::get_if<Bf16Rows>(&args.out);
  return out == nullptr || out->rows == nullptr ? args.hidden : std::max(args.hidden, out->stride);
}

Status check(const PeerGroup& group, const AllReduceNormCudaArgs& args) {
  constexpr int most_rows = 8192, most_columns = 12256;  // what shared memory holds without asking for more
  if (args.hidden != group.layout.hidden || args.hidden > most_columns) {
    return invalid_argument("all_reduce_norm over a group for rows of " +
                            std::to_string(group.layout.hidden) + " columns takes just those, up to " +
                            std::to_string(most_columns) + ", not " + std::to_string(args.hidden));
  }
  if (args.rows < 0 || args.rows > most_rows)
    return invalid_argument("all_reduce_norm takes up to " + std::to_string(most_rows) + " rows, not " +
                            std::to_string(args.rows));
  if (args.rows > 0 && args.weight == nullptr && args.residual == nullptr)
    return invalid_argument("all_reduce_norm has nothing to do without a residual and without a weight");
  if (args.parts == nullptr && args.algorithm != Algorithm::one_shot)
    return invalid_argument("parts that the kernel ahead has pushed to all are added one-shot");
  if (args.parts == nullptr && args.rows > group.layout.most_rows) {
    return invalid_argument("pushed parts take the " + std::to_string(group.layout.most_rows) +
                            " rows of one launch at most, not " + std::to_string(args.rows));
  }
  if (args.rows == 0) return {};
  return std::visit([&](const auto& out) { return check_output(out, group, args); }, args.out);
}

using LaunchKernel = void (*)(const PeerGroup&, const AllReduceNormCudaArgs&, cudaStream_t);

LaunchKernel kernel_for(int members, const AllReduceNormCudaArgs& args) {
  const bool one_shot = args.algorithm == Algorithm::one_shot;
  const int pair_rows = one_shot       ? pair_rows_one_shot
                        : members == 2 ? pair_rows_two_shot_of_two
                                       : pair_rows_two_shot_of_more;
  if (width_of(args) <= peer_cluster_columns) {
    if (args.rows <= cluster_rows) return one_shot ? launch_one_shot_clusters : launch_two_shot_clusters;
    if (args.rows <= pair_rows) return one_shot ? launch_one_shot_pairs : launch_two_shot_pairs;
  }
  return one_shot ? launch_one_shot_rows : launch_two_shot_rows;
}

}  // namespace

void load_all_reduce_norm_kernels(int members) {
  load_one_shot_clusters(members);
  load_one_shot_rows(members);
  load_two_shot_clusters(members);
  load_two_shot_pairs(members);
  load_two_shot_rows(members);
  load_push_parts();
}

Algorithm all_reduce_norm_algorithm(int members, int rows, int hidden) {
  const std::int64_t sent = std::int64_t{4} * rows * hidden * (members - 1);
  const std::int64_t most = members == 2 ? one_shot_bytes_of_two : one_shot_bytes_of_more;
  return sent <= most ? Algorithm::one_shot : Algorithm::two_shot;
}

Status all_reduce_norm_cuda(const PeerGroup& group, const AllReduceNormCudaArgs& args, cudaStream_t stream) {
  NIBBLE_RETURN_IF_ERROR(check(group, args));
  for (int begin = 0; begin < args.rows; begin += group.layout.most_rows) {
    AllReduceNormCudaArgs piece = args;
    const std::size_t at = static_cast<std::size_t>(begin) * static_cast<std::size_t>(args.hidden);
    piece.rows = std::min(group.layout.most_rows, args.rows - begin);
    if (args.parts != nullptr) piece.parts = args.parts + at;
    if (args.residual != nullptr) piece.residual = args.residual + at;
    if (args.weight != nullptr) {
      piece.out = std::visit(
          [&](const auto& out) -> NormCudaOutput { return rows_from(out, begin, args.hidden); }, args.out);
    }
    kernel_for(group.layout.members, piece)(group, piece, stream);
  }
  return {};
}

}  // namespace nibble
