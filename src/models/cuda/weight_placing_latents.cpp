// The matrix of latents' heads, in bf16 or in codes, to a place for each head.
#include <algorithm>
#include <string>

#include "base/check.h"
#include "formats/fp8_block.h"
#include "formats/nvfp4.h"
#include "models/cuda/weight_placing.h"

namespace nibble {
namespace {

std::size_t size(std::int64_t count) { return static_cast<std::size_t>(count); }

LatentHeadsRepack::Format repack_format(TensorFormat format) {
  switch (format) {
    case TensorFormat::bf16: return LatentHeadsRepack::Format::bf16;
    case TensorFormat::fp8_block: return LatentHeadsRepack::Format::e4m3_tiles;
    case TensorFormat::fp8_row: return LatentHeadsRepack::Format::e4m3_rows;
    default: return LatentHeadsRepack::Format::nvfp4;
  }
}

// Of tiles or of rows: those of a few heads are not told apart.
std::size_t scales_of_all_rows(const Weight& weight) {
  if (weight.format == TensorFormat::fp8_row) return size(weight.shape[0]);
  return weight.format == TensorFormat::fp8_block
             ? size(fp8_tiles(weight.shape[0]) * fp8_tiles(weight.shape[1]))
             : 0;
}

}  // namespace

Status WeightPlacing::latent_heads(const Weight& weight, const LatentHeadsRepack& to) {
  const std::int64_t rows_a_head = to.plain + to.value_dim, cols = weight.shape[1];
  const std::int64_t past = to.first_kept + to.heads;
  NIBBLE_CHECK(cols == to.rank && weight.shape[0] >= past * rows_a_head);
  LatentHeadsRepack repack = to;
  repack.format = repack_format(weight.format);
  const bool of_all_rows = repack.format == LatentHeadsRepack::Format::e4m3_tiles ||
                           repack.format == LatentHeadsRepack::Format::e4m3_rows;
  if (repack.format == LatentHeadsRepack::Format::nvfp4) {
    NIBBLE_ASSIGN(const std::vector<float> scales, matrix_scales({weight}, 0, 1));
    repack.factor = scales[0];
  }
  // Of a head: two bytes a value in bf16, and of codes no more.
  const std::size_t of_head = size(rows_a_head * cols) * sizeof(Bf16),
                    all_scales = scales_of_all_rows(weight) * sizeof(float);
  if (of_head + all_scales > staging_bytes)
    return invalid_argument(weight.name + " has heads too large to be re-laid");
  const std::int64_t once = static_cast<std::int64_t>((staging_bytes - all_scales) / of_head);
  std::byte* const scales = staging_.data() + (staging_bytes - all_scales) / 16 * 16;
  for (std::int64_t head = to.first_kept; head < past; head += once) {
    repack.first_head = static_cast<int>(head);
    repack.heads = static_cast<int>(std::min(once, past - head));
    repack.codes = staging_.data();
    repack.scales = scales;
    const std::int64_t first = head * rows_a_head, rows = repack.heads * rows_a_head;
    Status status;
    visit_stored(weight, weight.name, [&](const ExpectedTensor& tensor) {
      if (!status.ok() || tensor.one_value) return;
      const bool is_codes = tensor.scales == ScaleKind::none;
      if (!is_codes && of_all_rows) {
        const Result<DType> dtype = feed_->dtype_of(tensor);
        status = dtype.status();
        if (!status.ok()) return;
        repack.narrow = *dtype == DType::bf16;
        status = feed_->queue(tensor, 0, size(tensor.shape.count()) * dtype_bytes(*dtype), scales, stream_);
        return;
      }
      const std::size_t row_bytes = size(tensor.bytes() / weight.shape[0]);
      // Scales of sixteens come behind the codes, of which four bits are a value's.
      std::byte* const at = is_codes ? staging_.data() : staging_.data() + size(rows * cols / 2);
      if (!is_codes) repack.scales = at;
      status = feed_->queue(tensor, size(first) * row_bytes, size(rows) * row_bytes, at, stream_);
    });
    NIBBLE_RETURN_IF_ERROR(status);
    repack_latent_heads_cuda(repack, stream_);
  }
  return {};
}

}  // namespace nibble
