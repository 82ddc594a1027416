#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <vector>

#include "comm/leaves.h"
#include "formats/e4m3.h"
#include "formats/e4m3_row.h"
#include "formats/nvfp4.h"
#include "ops/all_reduce_norm/all_reduce_norm.h"

namespace nibble {
namespace {

void write_row(const OpContext& context, float* out, std::size_t row, std::span<const float> norm) {
  std::transform(norm.begin(), norm.end(), out + row * norm.size(),
                 [&](float value) { return context.activation(value); });
}

void write_row(const OpContext&, const E4m3Rows& out, std::size_t row, std::span<const float> norm) {
  float largest = 0, scale = std::ldexp(1.0f, least_e4m3_row_exponent), divisor = 1;
  bool finite = true;
  for (const float value : norm) {
    const float magnitude = std::fabs(Bf16::from_float(value).to_float());
    finite = finite && std::isfinite(magnitude);
    largest = std::max(largest, magnitude);
  }
  if (!finite) {
    scale = std::numeric_limits<float>::quiet_NaN();
  } else {
    while (largest / scale > E4m3::max) scale *= 2;
    divisor = scale = largest == 0 ? 1.0f : scale;
  }
  out.scales[row] = scale;
  for (std::size_t i = 0; i < norm.size(); ++i) {
    const float value = Bf16::from_float(norm[i]).to_float() / divisor;
    out.codes[row * norm.size() + i] = std::isnan(value) ? 0x7f : E4m3::from_float(value).bits;
  }
}

void write_row(const OpContext&, const Nvfp4Rows& out, std::size_t row, std::span<const float> norm) {
  for (std::size_t i = 0; i < norm.size(); i += nvfp4_block) {
    float values[nvfp4_block];
    for (std::size_t j = 0; j < nvfp4_block; ++j) values[j] = Bf16::from_float(norm[i + j]).to_float();
    const std::size_t block = (row * norm.size() + i) / nvfp4_block;
    out.scales[block] = nvfp4_encode_block(values, out.global_scales[out.global_count == 1 ? 0 : row],
                                           out.codes + block * nvfp4_block_bytes)
                            .bits;
  }
}

}  // namespace

// The sum of squares in the sixteen lanes of ops/row/row_kernels.h.
void all_reduce_norm_ref(const OpContext& context, std::span<const float* const> parts,
                         const AllReduceNormArgs& args) {
  constexpr int lanes = 16;
  const std::size_t hidden = static_cast<std::size_t>(args.hidden);
  std::vector<float> x(hidden);
  for (std::size_t row = 0; row < static_cast<std::size_t>(args.rows); ++row) {
    float squares[lanes] = {};
    for (std::size_t i = 0; i < hidden; ++i) {
      const std::size_t at = row * hidden + i;
      x[i] = tree_sum(static_cast<int>(parts.size()),
                      [&](int rank) { return parts[static_cast<std::size_t>(rank)][at]; });
      if (args.residual != nullptr) x[i] = args.residual[at] += x[i];
      squares[i % lanes] += x[i] * x[i];
    }
    if (args.weight == nullptr) continue;
    for (int apart = lanes / 2; apart > 0; apart /= 2) {
      for (int lane = 0; lane < apart; ++lane) squares[lane] += squares[lane + apart];
    }
    const float mean = squares[0] / static_cast<float>(args.hidden);
    const float scale = 1.0f / std::sqrt(mean + args.eps);
    for (std::size_t i = 0; i < hidden; ++i) {
      const float weight = args.weight[i].to_float();
      x[i] = x[i] * scale * (args.weight_less_one ? 1.0f + weight : weight);
    }
    std::visit([&](const auto& out) { write_row(context, out, row, x); }, args.out);
  }
}

}  // namespace nibble
