#include "models/cuda/weight_placing.h"

#include <algorithm>
#include <string>
#include <utility>

#include "base/check.h"
#include "formats/mxfp4.h"
#include "ops/linear/cuda/linear_cuda.h"
#include "ops/moe/cuda/moe_cuda.h"
#include "tensor/cuda_check.h"

namespace nibble {
namespace {

constexpr std::size_t most_experts = 1024;  // tensors of experts, two a layer

}  // namespace

Result<WeightPlacing> WeightPlacing::begin(WeightFeed& feed, cudaStream_t stream) {
  WeightPlacing placing(feed, stream);
  NIBBLE_ASSIGN(placing.staging_, DeviceBuffer::allocate(staging_bytes));
  NIBBLE_ASSIGN(placing.ranges_, DeviceBuffer::allocate(most_experts * sizeof(Mxfp4ScaleRange)));
  placing.ranges_.fill(0);
  NIBBLE_ASSIGN(placing.int4_ranges_, DeviceBuffer::allocate(most_experts * sizeof(Int4ScaleRange)));
  placing.int4_ranges_.fill(0);
  return placing;
}

Status WeightPlacing::queue(const TensorRows& from, std::int64_t begin, std::int64_t count, void* to) {
  const std::int64_t at = from.rows.begin * from.a_row() + begin;
  return feed_->queue(from.tensor, static_cast<std::size_t>(at) * sizeof(Bf16),
                      static_cast<std::size_t>(count) * sizeof(Bf16), to, stream_);
}

Status WeightPlacing::plain(const TensorRows& from, Bf16* to) { return queue(from, 0, from.elements(), to); }

Status WeightPlacing::spread(const TensorRows& from, std::int64_t part, std::int64_t apart, Bf16* to) {
  for (std::int64_t at = 0; at < from.elements(); at += part)
    NIBBLE_RETURN_IF_ERROR(queue(from, at, part, to + at / part * apart));
  return {};
}

Status WeightPlacing::spread_floats(const TensorRows& from, std::int64_t part, std::int64_t apart,
                                    float* to) {
  const std::int64_t count = from.elements();
  const std::size_t size = static_cast<std::size_t>(count);
  NIBBLE_RETURN_IF_ERROR(queue(from, 0, count, staging_.data()));
  std::vector<Bf16> stored(size);
  cuda_check(cudaStreamSynchronize(stream_));
  cuda_check(cudaMemcpy(stored.data(), staging_.data(), size * sizeof(Bf16), cudaMemcpyDeviceToHost));
  std::vector<float> values(static_cast<std::size_t>(count / part * apart));
  for (std::int64_t i = 0; i < count; ++i) {
    values[static_cast<std::size_t>(i / part * apart + i % part)] =
        stored[static_cast<std::size_t>(i)].to_float();
  }
  cuda_check(cudaMemcpy(to, values.data(), values.size() * sizeof(float), cudaMemcpyHostToDevice));
  return {};
}

Result<std::vector<float>> WeightPlacing::floats(const ExpectedTensor& tensor) {
  NIBBLE_ASSIGN(const DType dtype, feed_->dtype_of(tensor));
  std::vector<float> values(static_cast<std::size_t>(tensor.shape.count()));
  const std::size_t bytes = values.size() * dtype_bytes(dtype);
  if (bytes > staging_bytes) return invalid_argument(tensor.name + " is too large for a list of numbers");
  NIBBLE_RETURN_IF_ERROR(feed_->queue(tensor, 0, bytes, staging_.data(), stream_));
  cuda_check(cudaStreamSynchronize(stream_));
  if (dtype == DType::f32) {
    cuda_check(cudaMemcpy(values.data(), staging_.data(), bytes, cudaMemcpyDeviceToHost));
    return values;
  }
  std::vector<Bf16> stored(values.size());
  cuda_check(cudaMemcpy(stored.data(), staging_.data(), bytes, cudaMemcpyDeviceToHost));
  std::transform(stored.begin(), stored.end(), values.begin(), [](Bf16 value) { return value.to_float(); });
  return values;
}

Status WeightPlacing::dense(const TensorRows& from, const DenseTiles& to, int to_row) {
  return place_rows(from.tensor, from.rows.begin, from.rows.count, to, to_row);
}

Status WeightPlacing::spread_rows(const TensorRows& from, std::int64_t part, std::int64_t apart,
                                  const DenseTiles& to) {
  if (part == apart) return dense(from, to);
  for (std::int64_t row = 0; row < from.rows.count; row += part) {
    NIBBLE_RETURN_IF_ERROR(place_rows(from.tensor, from.rows.begin + row, part, to, row / part * apart));
  }
  return {};
}

Status WeightPlacing::place_rows(const ExpectedTensor& tensor, std::int64_t first, std::int64_t count,
                                 const DenseTiles& to, std::int64_t to_row) {
  const std::int64_t cols = tensor.shape[1];
  NIBBLE_CHECK(to_row % dense_tile_rows == 0 && cols == to.shape.cols && to_row + count <= to.shape.rows);
  const std::size_t row_bytes = static_cast<std::size_t>(cols) * sizeof(Bf16);
  const std::int64_t rows_once = static_cast<std::int64_t>(staging_bytes / row_bytes) / dense_tile_rows *
                                 static_cast<std::int64_t>(dense_tile_rows);
  if (rows_once == 0) return invalid_argument(tensor.name + " is too wide to be re-laid");
  for (std::int64_t row = 0; row < count; row += rows_once) {
    const std::int64_t rows = std::min(rows_once, count - row);
    NIBBLE_RETURN_IF_ERROR(feed_->queue(tensor, static_cast<std::size_t>(first + row) * row_bytes,
                                        static_cast<std::size_t>(rows) * row_bytes, staging_.data(),
                                        stream_));
    const std::size_t tile = static_cast<std::size_t>((to_row + row) / dense_tile_rows);
    NIBBLE_RETURN_IF_ERROR(
        repack_dense_cuda(staging_.as<Bf16>(), {static_cast<int>(rows), static_cast<int>(cols)},
                          const_cast<std::uint8_t*>(to.data) + tile * to.shape.tile_bytes(), stream_));
  }
  return {};
}

Status WeightPlacing::spread_columns(const ExpectedTensor& tensor, std::int64_t part, std::int64_t apart,
                                     const DenseTiles& to) {
  if (part == apart) return dense(tensor, to);
  const std::int64_t rows = tensor.shape[0], cols = tensor.shape[1];
  const std::size_t bytes = static_cast<std::size_t>(rows * cols) * sizeof(Bf16);
  const std::size_t wide_bytes = static_cast<std::size_t>(rows * to.shape.cols) * sizeof(Bf16);
  NIBBLE_CHECK(cols / part * apart == to.shape.cols && rows == to.shape.rows);
  if (bytes + wide_bytes > staging_bytes) return invalid_argument(tensor.name + " is too large to be spread");
  NIBBLE_RETURN_IF_ERROR(feed_->queue(tensor, 0, bytes, staging_.data(), stream_));
  std::byte* const wide = staging_.data() + bytes;
  const auto width = [](std::int64_t columns) { return static_cast<std::size_t>(columns) * sizeof(Bf16); };
  cuda_check(cudaMemsetAsync(wide, 0, wide_bytes, stream_));
  for (std::int64_t i = 0; i < cols / part; ++i) {
    cuda_check(cudaMemcpy2DAsync(wide + width(i * apart), width(to.shape.cols),
                                 staging_.data() + width(i * part), width(cols), width(part),
                                 static_cast<std::size_t>(rows), cudaMemcpyDeviceToDevice, stream_));
  }
  return repack_dense_cuda(reinterpret_cast<const Bf16*>(wide), to.shape, const_cast<std::uint8_t*>(to.data),
                           stream_);
}

Status WeightPlacing::experts(std::vector<Weight> from, std::int64_t first, Mxfp4Granules& to) {
  if (experts_.size() == most_experts) return invalid_argument("a model has too many layers of experts");
  to.exponent_shift = 0;
  experts_.push_back({std::move(from), first, &to});
  return place_experts(experts_.back(), experts_.size() - 1);
}

Status WeightPlacing::stage_fused(const Weight& from, const ExpertPiece& piece) {
  Status status;
  visit_stored(from, from.name, [&](const ExpectedTensor& tensor) {
    if (!status.ok()) return;
    const std::size_t expert = static_cast<std::size_t>(tensor.bytes() / tensor.shape[0]);
    std::byte* const to = tensor.scales == ScaleKind::none ? piece.codes : piece.scales;
    status = feed_->queue(tensor, static_cast<std::size_t>(piece.first) * expert,
                          static_cast<std::size_t>(piece.count) * expert, to, stream_);
  });
  return status;
}

Status WeightPlacing::stage_experts(const std::vector<Weight>& from, const ExpertPiece& piece) {
  if (from.front().own_experts == 0) return stage_fused(from.front(), piece);
  const std::size_t parts = from.size();
  Status status;
  for (std::int64_t i = 0; i < piece.count; ++i) {
    for (std::size_t part = 0; part < parts; ++part) {
      const Weight& weight = from[part];
      visit_stored(weight, weight.name_of(piece.first + i), [&](const ExpectedTensor& tensor) {
        if (!status.ok() || tensor.one_value || tensor.optional) return;
        const std::size_t bytes = static_cast<std::size_t>(tensor.bytes());
        std::byte* const to = (tensor.scales == ScaleKind::none ? piece.codes : piece.scales) +
                              (static_cast<std::size_t>(i) * parts + part) * bytes;
        status = feed_->queue(tensor, 0, bytes, to, stream_);
      });
    }
  }
  return status;
}

Status WeightPlacing::place_experts(const PlacedExperts& placed, std::size_t index) {
  const Mxfp4Granules& to = *placed.to;
  return relay_experts(placed.from, placed.first, to, [&](const ExpertPiece& piece, std::uint8_t* out) {
    return repack_mxfp4_cuda({.blocks = reinterpret_cast<const std::uint8_t*>(piece.codes),
                              .scales = reinterpret_cast<const std::uint8_t*>(piece.scales),
                              .experts = static_cast<int>(piece.count),
                              .shape = to.shape,
                              .halves = placed.from.size() == 2,
                              .exponent_shift = to.exponent_shift,
                              .out = out,
                              .range = ranges_.as<Mxfp4ScaleRange>() + index},
                             stream_);
  });
}

Status WeightPlacing::experts(const std::vector<Weight>& from, std::int64_t first, const Int4Granules& to) {
  if (int4_names_.size() == most_experts) return invalid_argument("a model has too many layers of experts");
  Int4ScaleRange* const range = int4_ranges_.as<Int4ScaleRange>() + int4_names_.size();
  int4_names_.push_back(from[0].name);
  return relay_experts(from, first, to, [&](const ExpertPiece& piece, std::uint8_t* out) {
    return repack_int4_cuda({.codes = reinterpret_cast<const std::uint8_t*>(piece.codes),
                             .scales = reinterpret_cast<const Bf16*>(piece.scales),
                             .experts = static_cast<int>(piece.count),
                             .shape = to.shape,
                             .halves = from.size() == 2,
                             .out = out,
                             .range = range},
                            stream_);
  });
}

Status WeightPlacing::finish() {
  cuda_check(cudaStreamSynchronize(stream_));
  std::vector<Mxfp4ScaleRange> ranges(most_experts);
  ranges_.copy_to(std::span(ranges));
  for (std::size_t i = 0; i < experts_.size(); ++i) {
    if (!granule_scales_fit(ranges[i])) {
      return invalid_argument("the scales of " + experts_[i].from[0].name + " go from 2^" +
                              std::to_string(ranges[i].least() - 127) + " to 2^" +
                              std::to_string(static_cast<int>(ranges[i].largest) - 127) +
                              ", too far apart for the GPU's kernels; give --device cpu");
    }
    const int shift = granule_exponent_shift(ranges[i]);
    if (shift == experts_[i].to->exponent_shift) continue;
    experts_[i].to->exponent_shift = shift;
    NIBBLE_RETURN_IF_ERROR(place_experts(experts_[i], i));
  }
  std::vector<Int4ScaleRange> int4_ranges(most_experts);
  int4_ranges_.copy_to(std::span(int4_ranges));
  for (std::size_t i = 0; i < int4_names_.size(); ++i) {
    if (int4_scales_fit(int4_ranges[i])) continue;
    return invalid_argument(
        "the scales of " + int4_names_[i] +
        " are not all between 2^-123 and 2, as the GPU's kernels take them; give --device cpu");
  }
  cuda_check(cudaStreamSynchronize(stream_));
  return {};
}

}  // namespace nibble
