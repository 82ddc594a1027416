// Weights from a feed to their places and layouts on a GPU, piece by piece through one staging buffer: a
// piece is copied, and re-laid by a kernel behind it on the same stream.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"
#include "models/cuda/weight_feed.h"
#include "ops/linear/cuda/dense_tiles.h"
#include "ops/moe/cuda/mxfp4_granules.h"
#include "tensor/device_buffer.h"

namespace nibble {

class WeightPlacing {
 public:
  // `feed` outlives it; all work is queued on the stream.
  static Result<WeightPlacing> begin(WeightFeed& feed, cudaStream_t stream);

  // As it is stored.
  Status plain(const std::string& name, const Shape& shape, Bf16* to);
  // A vector's parts of `part` elements, each `apart` elements behind the one before; likewise as float32.
  Status spread(const std::string& name, std::int64_t count, std::int64_t part, std::int64_t apart, Bf16* to);
  Status spread_floats(const std::string& name, std::int64_t count, std::int64_t part, std::int64_t apart,
                       float* to);
  // A matrix from row `to_row` of the tiles on, a multiple of 64.
  Status dense(const std::string& name, std::int64_t rows, std::int64_t cols, const DenseTiles& to,
               int to_row = 0);
  // The same for parts of `part` of its rows, multiples of 64, each `apart` rows behind the one before.
  Status spread_rows(const std::string& name, std::int64_t rows, std::int64_t cols, std::int64_t part,
                     std::int64_t apart, const DenseTiles& to);
  // Parts of `part` columns, each `apart` columns behind the one before, with zeros between them.
  Status spread_columns(const std::string& name, std::int64_t rows, std::int64_t cols, std::int64_t part,
                        std::int64_t apart, const DenseTiles& to);
  // Tensors name_blocks and name_scales. `to` lives until finish(), which may set its exponent_shift, or
  // refuse scales that lie too far apart for the kernels.
  Status experts(const std::string& name, Mxfp4Granules& to);
  // Returns when everything is where it belongs.
  Status finish();

 private:
  struct PlacedExperts {
    std::string name;
    Mxfp4Granules* to;
  };

  WeightPlacing(WeightFeed& feed, cudaStream_t stream) : feed_(&feed), stream_(stream) {}
  // Rows [first, first + count) of a matrix [rows, cols] to row to_row of the tiles.
  Status place_rows(const StoredShape& tensor, std::int64_t first, std::int64_t count, const DenseTiles& to,
                    std::int64_t to_row);
  // With the range of scales to `index` of ranges_.
  Status place_experts(const PlacedExperts& placed, std::size_t index);

  WeightFeed* feed_;
  cudaStream_t stream_;
  DeviceBuffer staging_;
  DeviceBuffer ranges_;  // [most_experts] of Mxfp4ScaleRange
  std::vector<PlacedExperts> experts_;
};

}  // namespace nibble
