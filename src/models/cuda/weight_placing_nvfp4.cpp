// Experts in NVFP4: codes and scales of blocks through the granules' repacking, and each matrix's one scale,
// by which the kernels multiply its sums.
#include <algorithm>
#include <string>

#include "base/quote.h"
#include "models/cuda/weight_placing.h"
#include "ops/moe/cuda/moe_cuda.h"
#include "tensor/cuda_check.h"

namespace nibble {

Status WeightPlacing::experts(const std::vector<Weight>& from, std::int64_t first, const Nvfp4Granules& to) {
  NIBBLE_RETURN_IF_ERROR(place_matrix_scales(from, first, to));
  const std::size_t values =
      static_cast<std::size_t>(to.shape.rows) * static_cast<std::size_t>(to.shape.cols);
  const std::size_t code_bytes = values / 2, scale_bytes = values / nvfp4_block;
  const std::int64_t once = static_cast<std::int64_t>(staging_bytes / (code_bytes + scale_bytes));
  if (once == 0) return invalid_argument(from[0].name + " has experts too large to be re-laid");
  for (std::int64_t begin = 0; begin < to.experts; begin += once) {
    const std::int64_t count = std::min(once, to.experts - begin);
    const ExpertPiece piece{first + begin, count, staging_.data(),
                            staging_.data() + static_cast<std::size_t>(count) * code_bytes};
    NIBBLE_RETURN_IF_ERROR(stage_experts(from, piece));
    NIBBLE_RETURN_IF_ERROR(repack_nvfp4_cuda(
        {.codes = reinterpret_cast<const std::uint8_t*>(piece.codes),
         .scales = reinterpret_cast<const std::uint8_t*>(piece.scales),
         .experts = static_cast<int>(count),
         .shape = to.shape,
         .halves = from.size() == 2,
         .out = const_cast<std::uint8_t*>(to.data) + static_cast<std::size_t>(begin) * to.shape.bytes()},
        stream_));
  }
  return {};
}

Status WeightPlacing::place_matrix_scales(const std::vector<Weight>& from, std::int64_t first,
                                          const Nvfp4Granules& to) {
  constexpr float too_large = 0x1p120f;  // Nvfp4Granules::tensor_scales
  const std::size_t parts = from.size(), experts = static_cast<std::size_t>(to.experts);
  Status status;
  std::vector<std::string> names;
  for (std::size_t i = 0; i < experts * parts; ++i) {
    const Weight& weight = from[i % parts];
    visit_stored(weight, weight.name_of(first + static_cast<std::int64_t>(i / parts)),
                 [&](const ExpectedTensor& tensor) {
                   if (!status.ok() || !tensor.one_value || tensor.optional) return;
                   names.push_back(tensor.name);
                   status = feed_->queue(tensor, 0, sizeof(float), staging_.as<float>() + i, stream_);
                 });
  }
  NIBBLE_RETURN_IF_ERROR(status);
  std::vector<float> scales(experts * parts);
  cuda_check(cudaStreamSynchronize(stream_));
  cuda_check(
      cudaMemcpy(scales.data(), staging_.data(), scales.size() * sizeof(float), cudaMemcpyDeviceToHost));
  for (std::size_t i = 0; i < scales.size(); ++i) {
    if (from[i % parts].format == TensorFormat::nvfp4_packed) scales[i] = 1.0f / scales[i];
    if (scales[i] < too_large) continue;
    return invalid_argument(quote(names[i]) +
                            " makes weights too large for the GPU's kernels; give --device cpu");
  }
  std::vector<PairFactors> factors;
  for (std::size_t i = 0; i < scales.size(); i += parts)
    factors.push_back({scales[i], scales[i + parts - 1]});
  cuda_check(cudaMemcpy(const_cast<PairFactors*>(to.tensor_scales), factors.data(),
                        factors.size() * sizeof(PairFactors), cudaMemcpyHostToDevice));
  return {};
}

}  // namespace nibble
