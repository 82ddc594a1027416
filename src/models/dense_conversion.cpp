#include "models/dense_conversion.h"

#include "base/check.h"
#include "formats/mxfp4.h"
#include "formats/q8.h"

namespace nibble {
namespace {

constexpr int block = q8_block;
static_assert(block == mxfp4_block);

std::size_t aligned(std::size_t bytes) {
  return (bytes + Buffer::alignment - 1) / Buffer::alignment * Buffer::alignment;
}

// Room of one matrix: codes, then scales, each at a multiple of the alignment.
struct Room {
  std::size_t codes = 0, scales = 0;
  std::size_t bytes() const { return aligned(codes) + aligned(scales); }
};

Room room_of(const Bf16Matrix& matrix, DenseFormat format) {
  const std::size_t values = static_cast<std::size_t>(matrix.rows) * static_cast<std::size_t>(matrix.cols);
  return {.codes = format == DenseFormat::q8 ? values : values / 2, .scales = values / block};
}

void encode_q8(const Bf16Matrix& from, std::int64_t row, std::int8_t* codes, std::uint8_t* scales) {
  const std::int64_t first = row * from.cols;
  q8_encode({from.data + first, static_cast<std::size_t>(from.cols)}, codes + first, scales + first / block);
}

// Scales are rounded up, so that no value saturates.
void encode_mxfp4(const Bf16Matrix& from, std::int64_t row, std::uint8_t* codes, std::uint8_t* scales) {
  const std::int64_t first = row * from.cols;
  mxfp4_encode({from.data + first, static_cast<std::size_t>(from.cols)}, Mxfp4Scale::round_up,
               codes + first / 2, scales + first / block);
}

WeightMatrix convert(const Bf16Matrix& from, DenseFormat format, std::byte* at, ThreadPool& threads) {
  const Room room = room_of(from, format);
  std::uint8_t* codes = reinterpret_cast<std::uint8_t*>(at);
  std::uint8_t* scales = reinterpret_cast<std::uint8_t*>(at + aligned(room.codes));
  std::int8_t* signed_codes = reinterpret_cast<std::int8_t*>(at);
  threads.parallel_for(from.rows, [&](int begin, int end) {
    for (int row = begin; row < end; ++row) {
      if (format == DenseFormat::q8) {
        encode_q8(from, row, signed_codes, scales);
      } else {
        encode_mxfp4(from, row, codes, scales);
      }
    }
  });
  if (format == DenseFormat::q8) return Q8Matrix{signed_codes, scales, from.rows, from.cols};
  return Mxfp4Checkpoint{codes, scales, from.rows, from.cols};
}

// Whether a product takes it, and nothing else does.
bool is_multiplied(const Weight& weight) {
  switch (weight.role) {
    case WeightRole::query:
    case WeightRole::key:
    case WeightRole::value:
    case WeightRole::attention_output:
    case WeightRole::query_down:
    case WeightRole::latent_down:
    case WeightRole::delta_qkv_z:
    case WeightRole::delta_qkv:
    case WeightRole::delta_z:
    case WeightRole::delta_output:
    case WeightRole::dense_gate:
    case WeightRole::dense_up:
    case WeightRole::dense_down:
    case WeightRole::shared_gate:
    case WeightRole::shared_up:
    case WeightRole::shared_down:
    case WeightRole::lm_head: return true;
    default: return false;
  }
}

}  // namespace

StoredMatrices stays_as_stored(const Weight& weight) {
  if (is_multiplied(weight)) {
    if (weight.format != TensorFormat::bf16) return {.name = "", .why = "in fewer bits already"};
    if (weight.shape[1] % block != 0) return {.name = "", .why = "columns that are not whole blocks of 32"};
    return {};
  }
  switch (weight.role) {
    case WeightRole::embedding: return {.name = "", .why = "a token reads one row"};
    case WeightRole::router: return {.name = "", .why = "small, and little differences choose other experts"};
    case WeightRole::latent_heads:
      return {.name = "kv_b of attention", .why = "decoded row by row, not multiplied"};
    case WeightRole::delta_b_a:
    case WeightRole::delta_b:
    case WeightRole::delta_a:
    case WeightRole::delta_convolution:
      return {.name = "b, a and convolution of linear attention",
              .why = "small, and they decide what a state keeps"};
    case WeightRole::shared_share: return {.name = "share of the shared expert", .why = "one row"};
    default: return {.name = "", .why = "no dense matrix"};
  }
}

Result<Buffer> convert_dense(std::span<WeightMatrix* const> matrices, DenseFormat format,
                             const WeightSource& source, ThreadPool& threads,
                             const ConversionProgress& progress) {
  NIBBLE_CHECK(format != DenseFormat::bf16);
  std::size_t bytes = 0;
  double total = 0, done = 0;
  for (const WeightMatrix* matrix : matrices) {
    const Bf16Matrix& from = std::get<Bf16Matrix>(*matrix);
    NIBBLE_CHECK(from.cols % block == 0);
    bytes += room_of(from, format).bytes();
    total += static_cast<double>(from.rows) * from.cols;
  }
  NIBBLE_ASSIGN(Buffer memory, Buffer::allocate_huge(bytes));
  std::byte* at = memory.data();
  for (WeightMatrix* matrix : matrices) {
    const Bf16Matrix from = std::get<Bf16Matrix>(*matrix);
    *matrix = convert(from, format, at, threads);
    at += room_of(from, format).bytes();
    const std::size_t values = static_cast<std::size_t>(from.rows) * static_cast<std::size_t>(from.cols);
    source.release(std::as_bytes(std::span(from.data, values)));
    done += static_cast<double>(values);
    if (progress) progress(done, total);
  }
  return memory;
}

}  // namespace nibble
