// Weights from a feed to their places and layouts on a GPU, piece by piece through one staging buffer: a
// piece is copied, and re-laid by a kernel behind it on the same stream.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "base/status.h"
#include "models/cuda/cuda_part.h"
#include "models/cuda/weight_feed.h"
#include "ops/linear/cuda/dense_tiles.h"
#include "ops/moe/cuda/mxfp4_granules.h"
#include "ops/moe/cuda/nvfp4_granules.h"
#include "tensor/device_buffer.h"

namespace nibble {

// Formats of experts that can be placed.
constexpr bool placing_takes_experts(TensorFormat format) {
  return format == TensorFormat::mxfp4_blocks || format == TensorFormat::mxfp4_packed ||
         format == TensorFormat::nvfp4 || format == TensorFormat::nvfp4_packed;
}

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
  // With the range of scales to `index` of ranges_.
  Status place_experts(const PlacedExperts& placed, std::size_t index);
  // What each expert's matrices are multiplied by as wholes.
  Status place_matrix_scales(const std::vector<Weight>& from, std::int64_t first, const Nvfp4Granules& to);

  WeightFeed* feed_;
  cudaStream_t stream_;
  DeviceBuffer staging_;
  DeviceBuffer ranges_;  // [most_experts] of Mxfp4ScaleRange
  std::vector<PlacedExperts> experts_;
};

}  // namespace nibble
