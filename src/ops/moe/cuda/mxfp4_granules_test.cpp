#include "ops/moe/cuda/mxfp4_granules.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "ops/op_test_util.h"

namespace nibble {
namespace {

struct Packed {
  Mxfp4GranuleShape shape;
  std::vector<std::uint8_t> bytes;
  Mxfp4Granules view;

  explicit Packed(const RandomMxfp4& random, int shift = 0)
      : shape{static_cast<int>(random.experts[0].rows), static_cast<int>(random.experts[0].cols)},
        bytes(shape.bytes() * random.experts.size()),
        view{bytes.data(), static_cast<int>(random.experts.size()), shape, shift} {
    for (std::size_t e = 0; e < random.experts.size(); ++e) {
      pack_granules(random.experts[e], shift, std::span(bytes).subspan(e * shape.bytes(), shape.bytes()));
    }
  }
};

TEST(Mxfp4Granules, HoldEveryWeightOfTheCheckpointWhereTheKernelsReadIt) {
  std::mt19937 random(1);
  for (const auto& [rows, cols] : {std::pair{16, 32}, {32, 96}, {48, 64}, {16, 2880}, {64, 576}}) {
    const RandomMxfp4 matrices(random, 2, rows, cols);
    const Packed packed(matrices);
    std::vector<float> exact(static_cast<std::size_t>(cols));
    for (int expert = 0; expert < 2; ++expert) {
      for (int row = 0; row < rows; ++row) {
        mxfp4_decode_row(matrices.experts[static_cast<std::size_t>(expert)], row, exact);
        for (int col = 0; col < packed.shape.padded_cols(); ++col) {
          const float expected = col < cols ? exact[static_cast<std::size_t>(col)] : 0.0f;
          ASSERT_EQ(granule_value(packed.view, expert, row, col), expected)
              << rows << " x " << cols << ", row " << row << ", column " << col;
        }
      }
    }
  }
}

TEST(Mxfp4Granules, TakeAsManyBytesAsTheCheckpointWhereKIsWholeBlocks) {
  const Mxfp4GranuleShape shape{5760, 2880};
  EXPECT_EQ(shape.bytes(), 5760u * 2880 / 32 * 17);
}

TEST(Mxfp4Granules, PlaceEveryByteOnce) {
  const Mxfp4GranuleShape shape{16, 2880};
  std::vector<int> taken(static_cast<std::size_t>(shape.granule_bytes()), 0);
  for (int block = 0; block < shape.blocks(); ++block) {
    const GranulePlace place = granule_place<Mxfp4GranuleLayout>(block);
    for (std::size_t i = 0; i < granule_code_bytes; ++i) ++taken[place.codes + i];
    for (std::size_t i = 0; i < 32; ++i) ++taken[place.scales + i];
  }
  EXPECT_TRUE(std::all_of(taken.begin(), taken.end(), [](int times) { return times == 1; }));
}

TEST(Mxfp4Granules, CutKIntoChunksWhoseBordersDependOnKAlone) {
  for (int cols = 32; cols <= 8192; cols += 32) {
    const Mxfp4GranuleShape shape{16, cols}, taller{4096, cols};
    EXPECT_EQ(shape.chunk_begin(0), 0);
    EXPECT_EQ(shape.chunk_begin(granule_k_chunks), shape.blocks());
    for (int c = 0; c < granule_k_chunks; ++c) {
      EXPECT_LE(shape.chunk_begin(c), shape.chunk_begin(c + 1));
      EXPECT_EQ(shape.chunk_begin(c), taller.chunk_begin(c));
    }
  }
}

TEST(Mxfp4Granules, PlaceAllCodesOfTwoWordsApart) {
  for (int pair = 0; pair < 8; ++pair) {
    for (int value = 0; value < 2; ++value) {
      for (std::uint8_t code = 0; code < 16; ++code) {
        std::uint8_t codes[8][2] = {};
        codes[pair][value] = code;
        const WordPair words = E2m1Pairs::words(codes);
        const PlacedPairs placed = place_pairs(words.word[0], words.word[1]);
        for (int i = 0; i < 8; ++i) {
          for (int j = 0; j < 2; ++j) {
            const Bf16 read{static_cast<std::uint16_t>(placed.pair[i] >> (16 * j))};
            const float expected = i == pair && j == value ? E2m1{code}.to_float() : 0.0f;
            EXPECT_EQ(std::ldexp(static_cast<double>(read.to_float()), 126), expected);
          }
        }
      }
    }
  }
}

TEST(Mxfp4Granules, AreExactForEveryScaleUpToTwo) {
  for (int scale = 0; scale <= 128; ++scale) {
    const float multiplier = Bf16{static_cast<std::uint16_t>(Mxfp4GranuleLayout::multiplier(
                                      granule_scale_byte(static_cast<std::uint8_t>(scale), 0)))}
                                 .to_float();
    for (std::uint8_t code = 0; code < 16; ++code) {
      const WordPair words = E2m1Pairs::words({{code, 0}});
      const Bf16 placed{static_cast<std::uint16_t>(place_pairs(words.word[0], words.word[1]).pair[0])};
      const double product = static_cast<double>(placed.to_float()) * multiplier;
      const double exact = static_cast<double>(E2m1{code}.to_float()) * std::ldexp(1.0, scale - 127);
      EXPECT_EQ(product, exact) << "scale " << scale << " code " << int{code};
      EXPECT_EQ(Bf16::from_float(static_cast<float>(product)).to_float(), exact);
    }
  }
}

TEST(Mxfp4Granules, ShiftTheExponentsOfAMatrixWithLargerScales) {
  std::mt19937 random(2);
  RandomMxfp4 matrices(random, 1, 16, 64);
  for (std::uint8_t& scale : matrices.scales) scale = static_cast<std::uint8_t>(121 + random() % 80);
  matrices.scales[3] = 254;
  const int shift = granule_exponent_shift({.largest = 254, .below_nan = 255 - 121});
  const Packed packed(matrices, shift);
  std::vector<float> exact(64);
  for (int row = 0; row < 16; ++row) {
    for (int block = 0; block < 2; ++block) {
      const std::uint8_t scale = matrices.scales[static_cast<std::size_t>(row * 2 + block)];
      for (int i = 0; i < 32; ++i) {
        const std::uint8_t byte = matrices.blocks[static_cast<std::size_t>((row * 2 + block) * 16 + i / 2)];
        const double value = E2m1{static_cast<std::uint8_t>(byte >> (4 * (i % 2)) & 15)}.to_float();
        EXPECT_EQ(std::ldexp(static_cast<double>(granule_value(packed.view, 0, row, block * 32 + i)), shift),
                  std::ldexp(value, scale - 127))
            << "row " << row << ", scale " << int{scale};
      }
    }
  }
}

TEST(Mxfp4Granules, TakeScalesUpToTwoAsTheyAreAndLargerOnesNotTooFarFromTheOthers) {
  const auto range = [](unsigned least, unsigned largest) {
    return Mxfp4ScaleRange{.largest = largest, .below_nan = 255 - least};
  };
  EXPECT_EQ(granule_exponent_shift(range(0, 128)), 0);
  EXPECT_TRUE(granule_scales_fit(range(0, 128)));
  EXPECT_TRUE(granule_scales_fit({}));  // of nothing but zeros
  EXPECT_EQ(granule_exponent_shift(range(120, 200)), 72);
  EXPECT_TRUE(granule_scales_fit(range(120, 200)));
  EXPECT_FALSE(granule_scales_fit(range(120, 254)));
}

TEST(Mxfp4Granules, KeepANotANumberOfTheScale) {
  std::mt19937 random(3);
  RandomMxfp4 matrices(random, 1, 16, 64);
  matrices.scales[5] = E8m0::nan_bits;  // row 2, the second block
  const Packed packed(matrices);
  for (int row = 0; row < 16; ++row) {
    for (int col = 0; col < 64; ++col) {
      EXPECT_EQ(std::isnan(granule_value(packed.view, 0, row, col)), row == 2 && col >= 32);
    }
  }
}

}  // namespace
}  // namespace nibble
