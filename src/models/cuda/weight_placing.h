// Weights from a feed to their places and layouts on a GPU, piece by piece through one staging buffer: a
// piece is copied, and re-laid by a kernel behind it on the same stream.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "base/status.h"
#include "models/cuda/cuda_part.h"
#include "models/cuda/decoder_stream.h"
#include "models/cuda/weight_feed.h"
#include "ops/latent_attention/cuda/latent_cuda.h"
#include "ops/linear/cuda/dense_tiles.h"
#include "ops/moe/cuda/int4_granules.h"
#include "ops/moe/cuda/mxfp4_granules.h"
#include "ops/moe/cuda/nvfp4_granules.h"
#include "tensor/device_buffer.h"

namespace nibble {

// Rows of a tensor, along its first axis.
struct TensorRows {
  ExpectedTensor tensor;
  Run rows;

  TensorRows(ExpectedTensor all) : tensor(std::move(all)), rows{0, tensor.shape[0]} {}
  TensorRows(ExpectedTensor of, Run some) : tensor(std::move(of)), rows(some) {}
  std::int64_t elements() const { return rows.count * a_row(); }
  std::int64_t a_row() const { return tensor.shape.count() / tensor.shape[0]; }
};

class WeightPlacing {
 public:
  // `feed` outlives it; all work is queued on the stream.
  static Result<WeightPlacing> begin(WeightFeed& feed, cudaStream_t stream);

  // Tensors of bfloat16. As it is stored.
  Status plain(const TensorRows& from, Bf16* to);
  // A vector's parts of `part` elements, each `apart` elements behind the one before; likewise as float32.
  Status spread(const TensorRows& from, std::int64_t part, std::int64_t apart, Bf16* to);
  Status spread_floats(const TensorRows& from, std::int64_t part, std::int64_t apart, float* to);
  // All of a tensor of bfloat16 or float32, on the host.
  Result<std::vector<float>> floats(const ExpectedTensor& tensor);
  // A matrix from row `to_row` of the tiles on, a multiple of 64.
  Status dense(const TensorRows& from, const DenseTiles& to, int to_row = 0);
  // The same for parts of `part` of its rows, multiples of 64, each `apart` rows behind the one before.
  Status spread_rows(const TensorRows& from, std::int64_t part, std::int64_t apart, const DenseTiles& to);
  // Parts of `part` columns, each `apart` columns behind the one before, with zeros between them.
  Status spread_columns(const ExpectedTensor& tensor, std::int64_t part, std::int64_t apart,
                        const DenseTiles& to);
  // As many experts of a layer as `to` has, from `first` on: of one weight, or of two whose rows take turns,
  // gate and up, as each expert has them for itself. `to` lives until finish(), which may set its
  // exponent_shift, or refuse scales that lie too far apart for the kernels.
  Status experts(std::vector<Weight> from, std::int64_t first, Mxfp4Granules& to);
  // The same in NVFP4; refuses a matrix's own scale that the kernels cannot hold.
  Status experts(const std::vector<Weight>& from, std::int64_t first, const Nvfp4Granules& to);
  // The same in int4; finish() refuses scales that the kernels cannot hold.
  Status experts(const std::vector<Weight>& from, std::int64_t first, const Int4Granules& to);
  // The same in bf16 and in FP8.
  template <class Codes>
  Status experts(const std::vector<Weight>& from, std::int64_t first, const BlockMatrices<Codes>& to);
  // Rows of a matrix in FP8 or NVFP4, from row `to_row` on; all of them are multiples of 16.
  Status dense(const Weight& weight, const Run& rows, const DenseBlocks& to, int to_row);
  // Heads' plain keys and values out of the matrix of all, in bf16, FP8 or NVFP4; `to` says which and where,
  // and heads' shapes.
  Status latent_heads(const Weight& weight, const LatentHeadsRepack& to);
  // Returns when everything is where it belongs.
  Status finish();

 private:
  struct PlacedExperts {
    std::vector<Weight> from;
    std::int64_t first;
    Mxfp4Granules* to;
  };
  // Experts [first, first + count), at `codes` and `scales` one after the other, of two weights the first's
  // rows before the second's.
  struct ExpertPiece {
    std::int64_t first, count;
    std::byte *codes, *scales;
  };

  static constexpr std::size_t staging_bytes = std::size_t{64} << 20;

  WeightPlacing(WeightFeed& feed, cudaStream_t stream) : feed_(&feed), stream_(stream) {}
  // Elements of bfloat16.
  Status queue(const TensorRows& from, std::int64_t begin, std::int64_t count, void* to);
  // Rows [first, first + count) of a matrix [rows, cols] to row to_row of the tiles.
  Status place_rows(const ExpectedTensor& tensor, std::int64_t first, std::int64_t count,
                    const DenseTiles& to, std::int64_t to_row);
  Status stage_experts(const std::vector<Weight>& from, const ExpertPiece& piece);
  Status stage_fused(const Weight& from, const ExpertPiece& piece);
  // As many experts as `to` has, as many at a time as the staging buffer holds; repack(piece, out) queues the
  // re-laying of a piece.
  template <class Granules, class Repack>
  Status relay_experts(const std::vector<Weight>& from, std::int64_t first, const Granules& to,
                       const Repack& repack);
  // With the range of scales to `index` of ranges_.
  Status place_experts(const PlacedExperts& placed, std::size_t index);
  // Experts' weights, or rows of one matrix, in blocks: as many codes of each, and scales of all its rows, if
  // there are any.
  struct BlockPiece {
    std::int64_t first, count;                           // of the experts
    std::size_t skipped_bytes, part_bytes, part_scales;  // of one of an expert's weights
    std::byte *codes, *scales;
  };
  // Whether its scales are in bfloat16.
  Result<bool> stage_blocks(const std::vector<Weight>& from, const BlockPiece& piece);
  Status dense_in(const Weight& weight, const Run& rows, const BlockMatrices<E4m3Codes>& to, int to_row);
  Status dense_in(const Weight& weight, const Run& rows, const BlockMatrices<Nvfp4Codes>& to, int to_row);
  // What matrices in NVFP4 are multiplied by as wholes, an expert's one after the other.
  Result<std::vector<float>> matrix_scales(const std::vector<Weight>& from, std::int64_t first, int experts);

  WeightFeed* feed_;
  cudaStream_t stream_;
  DeviceBuffer staging_;
  DeviceBuffer ranges_;       // [most_experts] of Mxfp4ScaleRange
  DeviceBuffer int4_ranges_;  // [most_experts] of Int4ScaleRange
  std::vector<PlacedExperts> experts_;
  std::vector<std::string> int4_names_;  // of experts, by their ranges
};

template <class Granules, class Repack>
Status WeightPlacing::relay_experts(const std::vector<Weight>& from, std::int64_t first, const Granules& to,
                                    const Repack& repack) {
  using Layout = typename Granules::Layout;
  const std::size_t values =
      static_cast<std::size_t>(to.shape.rows) * static_cast<std::size_t>(to.shape.cols);
  const std::size_t code_bytes = values / 2,
                    scale_bytes = values / Layout::scale_group * sizeof(typename Layout::Stored);
  const std::int64_t once = static_cast<std::int64_t>(staging_bytes / (code_bytes + scale_bytes));
  if (once == 0) return invalid_argument(from[0].name + " has experts too large to be re-laid");
  for (std::int64_t begin = 0; begin < to.experts; begin += once) {
    const std::int64_t count = std::min<std::int64_t>(once, to.experts - begin);
    const ExpertPiece piece{first + begin, count, staging_.data(),
                            staging_.data() + static_cast<std::size_t>(count) * code_bytes};
    NIBBLE_RETURN_IF_ERROR(stage_experts(from, piece));
    NIBBLE_RETURN_IF_ERROR(repack(
        piece, const_cast<std::uint8_t*>(to.data) + static_cast<std::size_t>(begin) * to.shape.bytes()));
  }
  return {};
}

}  // namespace nibble
