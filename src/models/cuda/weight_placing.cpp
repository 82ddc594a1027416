#include "models/cuda/weight_placing.h"

#include <algorithm>

#include "base/check.h"
#include "formats/mxfp4.h"
#include "ops/linear/cuda/linear_cuda.h"
#include "ops/moe/cuda/moe_cuda.h"
#include "tensor/cuda_check.h"

namespace nibble {
namespace {

constexpr std::size_t staging_bytes = std::size_t{64} << 20;
constexpr std::size_t most_experts = 1024;  // tensors of experts, two a layer

}  // namespace

Result<WeightPlacing> WeightPlacing::begin(WeightFeed& feed, cudaStream_t stream) {
  WeightPlacing placing(feed, stream);
  NIBBLE_ASSIGN(placing.staging_, DeviceBuffer::allocate(staging_bytes));
  NIBBLE_ASSIGN(placing.largest_, DeviceBuffer::allocate(most_experts * sizeof(std::uint32_t)));
  placing.largest_.fill(0);
  return placing;
}

Status WeightPlacing::plain(const std::string& name, const Shape& shape, Bf16* to) {
  const std::size_t bytes = static_cast<std::size_t>(shape.count()) * sizeof(Bf16);
  return feed_->queue({name, DType::bf16, shape}, 0, bytes, to, stream_);
}

Status WeightPlacing::floats(const std::string& name, std::int64_t count, float* to) {
  const std::size_t size = static_cast<std::size_t>(count);
  NIBBLE_RETURN_IF_ERROR(
      feed_->queue({name, DType::bf16, {count}}, 0, size * sizeof(Bf16), staging_.data(), stream_));
  std::vector<Bf16> stored(size);
  cuda_check(cudaStreamSynchronize(stream_));
  cuda_check(cudaMemcpy(stored.data(), staging_.data(), size * sizeof(Bf16), cudaMemcpyDeviceToHost));
  std::vector<float> values(size);
  std::transform(stored.begin(), stored.end(), values.begin(), [](Bf16 value) { return value.to_float(); });
  cuda_check(cudaMemcpy(to, values.data(), size * sizeof(float), cudaMemcpyHostToDevice));
  return {};
}

Status WeightPlacing::dense(const std::string& name, std::int64_t rows, std::int64_t cols,
                            const DenseTiles& to, int first_row) {
  NIBBLE_CHECK(first_row % dense_tile_rows == 0 && cols == to.shape.cols &&
               first_row + rows <= to.shape.rows);
  const std::size_t row_bytes = static_cast<std::size_t>(cols) * sizeof(Bf16);
  const std::int64_t rows_once = static_cast<std::int64_t>(staging_bytes / row_bytes) / dense_tile_rows *
                                 static_cast<std::int64_t>(dense_tile_rows);
  if (rows_once == 0) return invalid_argument(name + " is too wide to be re-laid");
  for (std::int64_t row = 0; row < rows; row += rows_once) {
    const std::int64_t count = std::min(rows_once, rows - row);
    NIBBLE_RETURN_IF_ERROR(
        feed_->queue({name, DType::bf16, {rows, cols}}, static_cast<std::size_t>(row) * row_bytes,
                     static_cast<std::size_t>(count) * row_bytes, staging_.data(), stream_));
    const std::size_t tile = static_cast<std::size_t>((first_row + row) / dense_tile_rows);
    NIBBLE_RETURN_IF_ERROR(
        repack_dense_cuda(staging_.as<Bf16>(), {static_cast<int>(count), static_cast<int>(cols)},
                          const_cast<std::uint8_t*>(to.data) + tile * to.shape.tile_bytes(), stream_));
  }
  return {};
}

Status WeightPlacing::experts(const std::string& name, Mxfp4Granules& to) {
  if (experts_.size() == most_experts) return invalid_argument("a model has too many layers of experts");
  to.exponent_shift = 0;
  experts_.push_back({name, &to});
  return place_experts(experts_.back(), experts_.size() - 1);
}

Status WeightPlacing::place_experts(const PlacedExperts& placed, std::size_t index) {
  const Mxfp4Granules& to = *placed.to;
  const std::int64_t rows = to.shape.rows, groups = to.shape.cols / mxfp4_block, experts = to.experts;
  const std::size_t scale_bytes = static_cast<std::size_t>(rows * groups);
  const std::size_t block_bytes = scale_bytes * mxfp4_block_bytes;
  const std::size_t once = staging_bytes / (scale_bytes + block_bytes);
  if (once == 0) return invalid_argument(placed.name + " has experts too large to be re-laid");
  for (std::size_t first = 0; first < static_cast<std::size_t>(experts); first += once) {
    const std::size_t count = std::min(once, static_cast<std::size_t>(experts) - first);
    std::byte* const blocks = staging_.data();
    std::byte* const scales = blocks + count * block_bytes;
    NIBBLE_RETURN_IF_ERROR(
        feed_->queue({placed.name + "_blocks", DType::u8, {experts, rows, groups, mxfp4_block_bytes}},
                     first * block_bytes, count * block_bytes, blocks, stream_));
    NIBBLE_RETURN_IF_ERROR(feed_->queue({placed.name + "_scales", DType::u8, {experts, rows, groups}},
                                        first * scale_bytes, count * scale_bytes, scales, stream_));
    NIBBLE_RETURN_IF_ERROR(repack_mxfp4_cuda(reinterpret_cast<const std::uint8_t*>(blocks),
                                             reinterpret_cast<const std::uint8_t*>(scales),
                                             static_cast<int>(count), to.shape, to.exponent_shift,
                                             const_cast<std::uint8_t*>(to.data) + first * to.shape.bytes(),
                                             largest_.as<std::uint32_t>() + index, stream_));
  }
  return {};
}

Status WeightPlacing::finish() {
  cuda_check(cudaStreamSynchronize(stream_));
  std::vector<std::uint32_t> largest(most_experts);
  largest_.copy_to(std::span(largest));
  for (std::size_t i = 0; i < experts_.size(); ++i) {
    const int shift = granule_exponent_shift(static_cast<std::uint8_t>(largest[i]));
    if (shift == experts_[i].to->exponent_shift) continue;
    experts_[i].to->exponent_shift = shift;
    NIBBLE_RETURN_IF_ERROR(place_experts(experts_[i], i));
  }
  cuda_check(cudaStreamSynchronize(stream_));
  return {};
}

}  // namespace nibble
