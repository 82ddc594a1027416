#include "ops/moe/cuda/mxfp4_granules.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "formats/bf16.h"

namespace nibble {
namespace {

constexpr int lane_elements = 16;
constexpr int lane_code_bytes = lane_elements / 2;

}  // namespace

void pack_granules(const Mxfp4Checkpoint& matrix, int exponent_shift, std::span<std::uint8_t> out) {
  const GranuleShape shape{static_cast<int>(matrix.rows), static_cast<int>(matrix.cols)};
  NIBBLE_CHECK(shape.rows % granule_rows == 0 && shape.cols % mxfp4_block == 0);
  NIBBLE_CHECK(out.size() == shape.bytes());
  const std::size_t groups = static_cast<std::size_t>(shape.cols / mxfp4_block);
  const auto scale_of = [&](std::size_t row, std::size_t group) -> std::uint8_t {
    return group < groups ? matrix.scales[row * groups + group] : std::uint8_t{0};
  };
  // The 8 bytes of a lane in row `row`; zeros past the end of K and where the scale is NaN.
  const auto codes_of = [&](std::size_t row, int block, int t, std::uint8_t(&codes)[lane_code_bytes]) {
    const std::size_t group = static_cast<std::size_t>(2 * block + t / 2);
    std::fill_n(codes, lane_code_bytes, std::uint8_t{0});
    if (group >= groups || scale_of(row, group) == E8m0::nan_bits) return;
    const std::uint8_t* bytes = matrix.blocks + (row * groups + group) * mxfp4_block_bytes;
    std::copy_n(bytes + (t % 2) * lane_code_bytes, lane_code_bytes, codes);
  };
  for (int granule = 0; granule < shape.granules(); ++granule) {
    std::uint8_t* base =
        out.data() + static_cast<std::size_t>(granule) * static_cast<std::size_t>(shape.granule_bytes());
    for (int block = 0; block < shape.blocks(); ++block) {
      const GranulePlace place = granule_place(block);
      for (int lane = 0; lane < 32; ++lane) {
        const std::size_t row = static_cast<std::size_t>(granule * granule_rows + lane / 4 * 2);
        std::uint8_t even[lane_code_bytes], odd[lane_code_bytes];
        codes_of(row, block, lane % 4, even);
        codes_of(row + 1, block, lane % 4, odd);
        const LaneCodes codes = pack_lane(even, odd);
        std::memcpy(base + place.codes + static_cast<std::size_t>(lane) * sizeof codes, &codes, sizeof codes);
      }
      for (int row = 0; row < granule_rows; ++row) {
        for (int half = 0; half < 2; ++half) {
          base[place.scales + static_cast<std::size_t>(row / 2 * 4 + half * 2 + row % 2)] =
              granule_scale_byte(scale_of(static_cast<std::size_t>(granule * granule_rows + row),
                                          static_cast<std::size_t>(2 * block + half)),
                                 exponent_shift);
        }
      }
    }
  }
}

float granule_value(const Mxfp4Granules& matrices, int expert, int row, int col) {
  const GranuleShape& shape = matrices.shape;
  const std::uint8_t* granule =
      matrices.data + static_cast<std::size_t>(expert) * shape.bytes() +
      static_cast<std::size_t>(row / granule_rows) * static_cast<std::size_t>(shape.granule_bytes());
  const int block = col / granule_k, in_block = col % granule_k;
  const int g = row % granule_rows / 2, half = row % 2, t = in_block / lane_elements;
  const int step = in_block % lane_elements / 4, pair = in_block % 4 / 2, value = in_block % 2;
  const GranulePlace place = granule_place(block);
  std::uint32_t words[2];
  std::memcpy(words, granule + place.codes + static_cast<std::size_t>((g * 4 + t) * 16 + step / 2 * 8),
              sizeof words);
  // Operand registers: a0 and a2 hold row g, a1 and a3 row g + 8.
  const std::uint32_t placed = place_pairs(words[0], words[1]).pair[step % 2 * 4 + pair * 2 + half];
  const std::uint32_t multiplier =
      granule_multiplier(granule[place.scales + static_cast<std::size_t>(g * 4 + t / 2 * 2 + half)]);
  const Bf16 code{static_cast<std::uint16_t>(placed >> (16 * value))};
  const Bf16 scale{static_cast<std::uint16_t>(multiplier)};
  return Bf16::from_float(code.to_float() * scale.to_float()).to_float();
}

}  // namespace nibble
