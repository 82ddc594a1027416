// Granules on the host, for any layout: what the device's repacking is tested against, and how the kernels
// read a weight.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>
#include <span>

#include "base/check.h"
#include "formats/bf16.h"
#include "ops/moe/cuda/granules.h"

namespace nibble {

inline constexpr int lane_elements = 16;  // of a row in a k64 block
inline constexpr int lane_code_bytes = lane_elements / 2;

// A matrix in rows: codes [rows, cols / 2], scales [rows, cols / scale_group].
template <class Layout>
struct CodeRows {
  const std::uint8_t* codes;
  const typename Layout::Stored* scales;
};

template <class Layout>
void pack_code_rows(const CodeRows<Layout>& matrix, const GranuleShapeOf<Layout>& shape,
                    const typename Layout::ScalePacking& packing, std::span<std::uint8_t> out) {
  using Stored = typename Layout::Stored;
  NIBBLE_CHECK(shape.legal() && out.size() == shape.bytes());
  constexpr int scales = granule_scales<Layout>;
  const int groups = shape.cols / Layout::scale_group;
  const auto scale_of = [&](int row, int group) -> Stored {
    return group < groups ? matrix.scales[static_cast<std::ptrdiff_t>(row) * groups + group] : Stored{0};
  };
  // A lane's codes in a row, of zero past the end of K.
  const auto codes_of = [&](int row, int block, int t, std::uint8_t(&codes)[lane_code_bytes]) {
    std::fill_n(codes, lane_code_bytes, static_cast<std::uint8_t>(Layout::Pairs::zeros));
    const int col = block * granule_k + t * lane_elements;
    if (col >= shape.cols) return;
    const CodeChange change = packing.change(scale_of(row, col / Layout::scale_group));
    const std::uint8_t* const from = matrix.codes + (static_cast<std::ptrdiff_t>(row) * shape.cols + col) / 2;
    for (int i = 0; i < lane_code_bytes; ++i)
      codes[i] = static_cast<std::uint8_t>((from[i] & change.keep) ^ change.flip);
  };
  for (int granule = 0; granule < shape.granules(); ++granule) {
    std::uint8_t* base =
        out.data() + static_cast<std::size_t>(granule) * static_cast<std::size_t>(shape.granule_bytes());
    for (int block = 0; block < shape.blocks(); ++block) {
      const GranulePlace place = granule_place<Layout>(block);
      for (int lane = 0; lane < 32; ++lane) {
        const int row = granule * granule_rows + lane / 4 * 2;
        std::uint8_t even[lane_code_bytes], odd[lane_code_bytes];
        codes_of(row, block, lane % 4, even);
        codes_of(row + 1, block, lane % 4, odd);
        const LaneCodes codes = pack_lane<typename Layout::Pairs>(even, odd);
        std::memcpy(base + place.codes + static_cast<std::size_t>(lane) * sizeof codes, &codes, sizeof codes);
      }
      for (int row = 0; row < granule_rows; ++row) {
        for (int group = 0; group < scales; ++group) {
          const Stored stored =
              packing.stored(scale_of(granule * granule_rows + row, scales * block + group));
          std::memcpy(base + place.scales + granule_scale_at<Layout>(row, group), &stored, sizeof stored);
        }
      }
    }
  }
}

// Before the factor of the sums. data: of the matrix.
template <class Layout>
float packed_value(const std::uint8_t* data, const GranuleShapeOf<Layout>& shape, int row, int col) {
  const std::uint8_t* granule =
      data + static_cast<std::size_t>(row / granule_rows) * static_cast<std::size_t>(shape.granule_bytes());
  const int in_block = col % granule_k;
  const int g = row % granule_rows / 2, half = row % 2, t = in_block / lane_elements;
  const int step = in_block % lane_elements / 4, pair = in_block % 4 / 2, value = in_block % 2;
  const GranulePlace place = granule_place<Layout>(col / granule_k);
  std::uint32_t words[2];
  std::memcpy(words, granule + place.codes + static_cast<std::size_t>((g * 4 + t) * 16 + step / 2 * 8),
              sizeof words);
  // Operand registers: a0 and a2 hold row g, a1 and a3 row g + 8.
  const std::uint32_t placed = Layout::Pairs::placed(words[0], words[1]).pair[step % 2 * 4 + pair * 2 + half];
  typename Layout::Stored stored;
  std::memcpy(
      &stored,
      granule + place.scales + granule_lane_scales<Layout>(g * 4 + t) + half * granule_scale_bytes<Layout>,
      sizeof stored);
  const float code = Bf16{static_cast<std::uint16_t>(placed >> (16 * value))}.to_float();
  const Bf16 scale{static_cast<std::uint16_t>(Layout::multiplier(stored))};
  if constexpr (Layout::Pairs::integers) {
    const Bf16 of_placed{static_cast<std::uint16_t>(Layout::of_placed)};
    const float multiplier = Bf16::from_float(scale.to_float() * of_placed.to_float()).to_float();
    return Bf16::from_float(std::fma(code, multiplier, -scale.to_float())).to_float();
  } else {
    return Bf16::from_float(code * scale.to_float()).to_float();
  }
}

}  // namespace nibble
