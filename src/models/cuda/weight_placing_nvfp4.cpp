// Experts and attention in NVFP4: codes and scales of blocks through the granules' repacking, and each
// matrix's one scale, by which the kernels multiply its sums.
#include <algorithm>
#include <string>

#include "base/check.h"
#include "base/quote.h"
#include "models/cuda/weight_placing.h"
#include "ops/moe/cuda/moe_cuda.h"
#include "tensor/cuda_check.h"

namespace nibble {

Status WeightPlacing::experts(const std::vector<Weight>& from, std::int64_t first, const Nvfp4Granules& to) {
  NIBBLE_ASSIGN(const std::vector<float> of_matrices, matrix_scales(from, first, to.experts));
  std::vector<PairFactors> factors;
  for (std::size_t i = 0; i < of_matrices.size(); i += from.size())
    factors.push_back({of_matrices[i], of_matrices[i + from.size() - 1]});
  cuda_check(cudaMemcpy(const_cast<PairFactors*>(to.tensor_scales), factors.data(),
                        factors.size() * sizeof(PairFactors), cudaMemcpyHostToDevice));
  return relay_experts(from, first, to, [&](const ExpertPiece& piece, std::uint8_t* out) {
    return repack_nvfp4_cuda({.codes = reinterpret_cast<const std::uint8_t*>(piece.codes),
                              .scales = reinterpret_cast<const std::uint8_t*>(piece.scales),
                              .experts = static_cast<int>(piece.count),
                              .shape = to.shape,
                              .halves = from.size() == 2,
                              .out = out},
                             stream_);
  });
}

Result<std::vector<float>> WeightPlacing::matrix_scales(const std::vector<Weight>& from, std::int64_t first,
                                                        int experts) {
  constexpr float too_large = 0x1p120f;  // Nvfp4Granules::tensor_scales
  const std::size_t parts = from.size(), all = static_cast<std::size_t>(experts) * parts;
  Status status;
  std::vector<std::string> names;
  for (std::size_t i = 0; i < all; ++i) {
    const Weight& weight = from[i % parts];
    const auto queue = [&](const ExpectedTensor& tensor) {
      if (!status.ok() || !tensor.one_value || tensor.optional) return;
      names.push_back(tensor.name);
      status = feed_->queue(tensor, 0, sizeof(float), staging_.as<float>() + i, stream_);
    };
    const std::int64_t expert = first + static_cast<std::int64_t>(i / parts);
    visit_stored(weight, weight.own_experts > 0 ? weight.name_of(expert) : weight.name, queue);
  }
  NIBBLE_RETURN_IF_ERROR(status);
  std::vector<float> scales(all);
  cuda_check(cudaStreamSynchronize(stream_));
  cuda_check(cudaMemcpy(scales.data(), staging_.data(), all * sizeof(float), cudaMemcpyDeviceToHost));
  for (std::size_t i = 0; i < all; ++i) {
    if (from[i % parts].format == TensorFormat::nvfp4_packed) scales[i] = 1.0f / scales[i];
    if (scales[i] < too_large) continue;
    return invalid_argument(quote(names[i]) +
                            " makes weights too large for the GPU's kernels; give --device cpu");
  }
  return scales;
}

Status WeightPlacing::dense_in(const Weight& weight, const Run& rows, const BlockMatrices<Nvfp4Codes>& to,
                               int to_row) {
  constexpr float of_products = 128;  // that granules have 2^-7 of
  const std::int64_t cols = weight.shape[1];
  NIBBLE_CHECK(to_row % block_granule_rows == 0 && cols == to.shape.cols &&
               to_row + rows.count <= to.shape.rows);
  const std::size_t values = static_cast<std::size_t>(rows.count * cols);
  if (values / 2 + values / nvfp4_block > staging_bytes)
    return invalid_argument(weight.name + " is too large to be re-laid");
  NIBBLE_ASSIGN(const std::vector<float> scales, matrix_scales({weight}, 0, 1));
  std::byte* const block_scales = staging_.data() + values / 2;
  Status status;
  visit_stored(weight, weight.name, [&](const ExpectedTensor& tensor) {
    if (!status.ok() || tensor.one_value) return;
    const std::size_t row_bytes = static_cast<std::size_t>(tensor.bytes() / weight.shape[0]);
    std::byte* const at = tensor.scales == ScaleKind::none ? staging_.data() : block_scales;
    status = feed_->queue(tensor, static_cast<std::size_t>(rows.begin) * row_bytes,
                          static_cast<std::size_t>(rows.count) * row_bytes, at, stream_);
  });
  NIBBLE_RETURN_IF_ERROR(status);
  const std::size_t granule = static_cast<std::size_t>(to_row / block_granule_rows);
  NIBBLE_RETURN_IF_ERROR(
      repack_nvfp4_cuda({.codes = staging_.as<std::uint8_t>(),
                         .scales = reinterpret_cast<const std::uint8_t*>(block_scales),
                         .experts = 1,
                         .shape = {static_cast<int>(rows.count), static_cast<int>(cols)},
                         .out = const_cast<std::uint8_t*>(to.data) + granule * to.shape.granule_bytes()},
                        stream_));
  const std::size_t blocks = static_cast<std::size_t>(to.shape.scale_blocks());
  const float factor = of_products * scales[0];
  const std::vector<BlockFactors> factors(static_cast<std::size_t>(rows.count / block_granule_rows) * blocks,
                                          {factor, factor});
  cuda_check(cudaMemcpy(const_cast<BlockFactors*>(to.factors) + granule * blocks, factors.data(),
                        factors.size() * sizeof(BlockFactors), cudaMemcpyHostToDevice));
  return {};
}

}  // namespace nibble
