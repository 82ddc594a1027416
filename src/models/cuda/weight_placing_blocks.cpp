// Matrices in blocks of 128 columns: experts in bf16 and in FP8, and attention's in FP8, whose scales of
// tiles become the factors of their rows; those of rows lie beside them.
#include <algorithm>
#include <string>

#include "base/check.h"
#include "models/cuda/weight_placing.h"
#include "ops/linear/cuda/block_linear_cuda.h"

namespace nibble {
namespace {

std::size_t size(std::int64_t count) { return static_cast<std::size_t>(count); }

// That a matrix of so many rows has, as `to` says: tiles or rows.
template <class Codes>
std::size_t scales_of(const BlockMatrices<Codes>& to, std::int64_t rows) {
  if (!Codes::scaled) return 0;
  return to.row_scales != nullptr ? size(rows) : size((rows + 127) / 128 * to.shape.scale_blocks());
}

// From `first` on; null where rows have none.
template <class Codes>
float* row_scales_of(const BlockMatrices<Codes>& to, std::size_t first) {
  return to.row_scales == nullptr ? nullptr : const_cast<float*>(to.row_scales) + first;
}

}  // namespace

Result<bool> WeightPlacing::stage_blocks(const std::vector<Weight>& from, const BlockPiece& piece) {
  bool narrow = false, known = false;
  if (from[0].is_bare) {  // all experts in one tensor of bfloat16
    Status queued;
    visit_stored(from[0], from[0].name, [&](const ExpectedTensor& tensor) {
      queued = feed_->queue(tensor, size(piece.first) * piece.part_bytes,
                            size(piece.count) * piece.part_bytes, piece.codes, stream_);
    });
    NIBBLE_RETURN_IF_ERROR(queued);
    return false;
  }
  for (std::size_t i = 0; i < size(piece.count) * from.size(); ++i) {
    const Weight& weight = from[i % from.size()];
    const std::string name = weight.own_experts > 0
                                 ? weight.name_of(piece.first + static_cast<std::int64_t>(i / from.size()))
                                 : weight.name;
    Status status;
    visit_stored(weight, name, [&](const ExpectedTensor& tensor) {
      if (!status.ok()) return;
      if (tensor.scales == ScaleKind::none) {
        status = feed_->queue(tensor, piece.skipped_bytes, piece.part_bytes,
                              piece.codes + i * piece.part_bytes, stream_);
        return;
      }
      const Result<DType> dtype = feed_->dtype_of(tensor);
      if (!dtype.ok()) {
        status = dtype.status();
      } else if (known && narrow != (*dtype == DType::bf16)) {
        status = invalid_argument(tensor.name + " is in another type than the scales of other experts");
      } else {
        known = true;
        narrow = *dtype == DType::bf16;
        const std::size_t bytes = piece.part_scales * dtype_bytes(*dtype);
        status = feed_->queue(tensor, 0, bytes, piece.scales + i * bytes, stream_);
      }
    });
    NIBBLE_RETURN_IF_ERROR(status);
  }
  return narrow;
}

template <class Codes>
Status WeightPlacing::experts(const std::vector<Weight>& from, std::int64_t first,
                              const BlockMatrices<Codes>& to) {
  const std::size_t parts = from.size(), rows = size(to.shape.rows), cols = size(to.shape.cols);
  BlockPiece piece{.first = first,
                   .count = 0,
                   .skipped_bytes = 0,
                   .part_bytes = rows / parts * cols * Codes::bytes,
                   .part_scales = scales_of(to, to.shape.rows / static_cast<int>(parts)),
                   .codes = staging_.data(),
                   .scales = nullptr};
  const std::size_t of_expert = parts * (piece.part_bytes + piece.part_scales * sizeof(float));
  const std::int64_t once = static_cast<std::int64_t>(staging_bytes / of_expert);
  if (once == 0) return invalid_argument(from[0].name + " has experts too large to be re-laid");
  for (std::int64_t begin = 0; begin < to.experts; begin += once) {
    piece.first = first + begin;
    piece.count = std::min(once, to.experts - begin);
    piece.scales = piece.codes + size(piece.count) * parts * piece.part_bytes;
    NIBBLE_ASSIGN([[maybe_unused]] const bool narrow, stage_blocks(from, piece));
    const int count = static_cast<int>(piece.count);
    const bool halves = parts == 2 || from[0].role == WeightRole::expert_gates_ups;
    BlockFactors* factors = nullptr;
    if constexpr (Codes::scaled) {
      factors = const_cast<BlockFactors*>(to.factors) + size(begin) * to.shape.factors();
      place_block_scales_cuda({.scales = piece.scales,
                               .narrow = narrow,
                               .experts = count,
                               .shape = to.shape,
                               .halves = halves,
                               .factors = factors,
                               .row_scales = row_scales_of(to, size(begin) * rows)},
                              stream_);
    }
    NIBBLE_RETURN_IF_ERROR(repack_blocks_cuda(
        BlockRepack<Codes>{.codes = reinterpret_cast<const std::uint8_t*>(piece.codes),
                           .experts = count,
                           .shape = to.shape,
                           .halves = halves,
                           .out = const_cast<std::uint8_t*>(to.data) + size(begin) * to.shape.bytes(),
                           .factors = factors},
        stream_));
  }
  return {};
}
template Status WeightPlacing::experts(const std::vector<Weight>&, std::int64_t,
                                       const BlockMatrices<Bf16Codes>&);
template Status WeightPlacing::experts(const std::vector<Weight>&, std::int64_t,
                                       const BlockMatrices<E4m3Codes>&);

Status WeightPlacing::dense(const Weight& weight, const Run& rows, const DenseBlocks& to, int to_row) {
  return std::visit([&](const auto& of_format) { return dense_in(weight, rows, of_format, to_row); }, to);
}

Status WeightPlacing::dense_in(const Weight& weight, const Run& rows, const BlockMatrices<E4m3Codes>& to,
                               int to_row) {
  const std::int64_t cols = weight.shape[1];
  NIBBLE_CHECK(to_row % block_granule_rows == 0 && cols == to.shape.cols &&
               to_row + rows.count <= to.shape.rows);
  const BlockPiece piece{.first = 0,
                         .count = 1,
                         .skipped_bytes = size(rows.begin * cols),
                         .part_bytes = size(rows.count * cols),
                         .part_scales = scales_of(to, weight.shape[0]),
                         .codes = staging_.data(),
                         .scales = staging_.data() + size(rows.count * cols)};
  if (piece.part_bytes + piece.part_scales * sizeof(float) > staging_bytes)
    return invalid_argument(weight.name + " is too large to be re-laid");
  NIBBLE_ASSIGN(const bool narrow, stage_blocks({weight}, piece));
  const BlockShape<E4m3Codes> shape{static_cast<int>(rows.count), static_cast<int>(cols)};
  const std::size_t granule = size(to_row / block_granule_rows);
  BlockFactors* const factors = const_cast<BlockFactors*>(to.factors) + granule * size(shape.scale_blocks());
  place_block_scales_cuda({.scales = piece.scales,
                           .narrow = narrow,
                           .shape = shape,
                           .first_row = static_cast<int>(rows.begin),
                           .factors = factors,
                           .row_scales = row_scales_of(to, size(to_row))},
                          stream_);
  return repack_blocks_cuda(
      BlockRepack<E4m3Codes>{.codes = reinterpret_cast<const std::uint8_t*>(piece.codes),
                             .shape = shape,
                             .order = ColumnOrder::steps,
                             .out = const_cast<std::uint8_t*>(to.data) + granule * shape.granule_bytes(),
                             .factors = factors},
      stream_);
}

}  // namespace nibble
