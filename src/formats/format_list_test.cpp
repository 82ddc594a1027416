#include "formats/format_list.h"

#include <gtest/gtest.h>

namespace nibble {
namespace {

TEST(FormatList, CountsTheBitsOfAValueWithItsShareOfTheScale) {
  EXPECT_EQ(find_format("mxfp4")->bits_per_value(), 4.25);
  EXPECT_EQ(find_format("bf16")->bits_per_value(), 16);
  EXPECT_EQ(find_format("e2m1")->bits_per_value(), 4);
  EXPECT_EQ(find_format("nvfp4")->bits_per_value(), 4.5);
  EXPECT_EQ(find_format("mxfp8")->bits_per_value(), 8.25);
}

TEST(FormatList, KnowsTheLargestValues) {
  EXPECT_EQ(find_format("fp16")->max, 65504.0f);
  EXPECT_EQ(find_format("e4m3")->max, 448.0f);
  EXPECT_EQ(find_format("mxfp4")->max, 6.0f);
  EXPECT_EQ(find_format("bf16")->max, 0x1.fep127f);
  EXPECT_EQ(find_format("e8m0")->max, 0x1p127f);
}

TEST(FormatList, HasNoFormatTwiceAndNoneOfAnotherName) {
  for (const NumberFormat& format : format_list()) EXPECT_EQ(find_format(format.name), &format);
  EXPECT_EQ(find_format("mxfp5"), nullptr);
}

}  // namespace
}  // namespace nibble
