#include "tensor/tensor.h"

#include <gtest/gtest.h>

#include <limits>
#include <type_traits>
#include <utility>
#include <vector>

#include "tensor/buffer.h"

namespace nibble {
namespace {

TEST(Shape, CountsItsElements) {
  EXPECT_EQ(Shape().count(), 1);
  EXPECT_EQ(Shape({6, 448, 5, 16}).count(), 6 * 448 * 5 * 16);
  EXPECT_EQ(Shape({6, 0, 5}).count(), 0);
  EXPECT_EQ(Shape({6, 448}).to_string(), "[6, 448]");
  EXPECT_EQ(Shape().to_string(), "[]");
}

TEST(Shape, ComparesRankAndExtents) {
  EXPECT_EQ(Shape({2, 3}), Shape({2, 3}));
  EXPECT_NE(Shape({2, 3}), Shape({3, 2}));
  EXPECT_NE(Shape({2, 3}), Shape({2, 3, 1}));
  EXPECT_NE(Shape({2, 0}), Shape({2}));
  EXPECT_EQ(Shape({2, 3, 4}).inner(), Shape({3, 4}));
}

TEST(Shape, RefusesWhatAFileMayClaim) {
  const auto refused = [](std::vector<std::int64_t> extents) {
    return Shape::from_untrusted(extents).status().message();
  };
  EXPECT_EQ(refused({1, 1, 1, 1, 1, 1, 1, 1, 1}), "a shape of 9 dimensions; at most 8 are supported");
  EXPECT_EQ(refused({4, -1}), "a shape with the negative extent -1");
  const std::int64_t half = std::int64_t{1} << 32;
  EXPECT_EQ(refused({half, half}), "a shape with more elements than 64 bits can count");
  EXPECT_EQ(refused({std::numeric_limits<std::int64_t>::max()}),
            "a shape with more elements than 64 bits can count");
  // A zero does not hide what the other extents would overflow.
  EXPECT_EQ(refused({half, 0, half}), "a shape with more elements than 64 bits can count");
  EXPECT_TRUE(Shape::from_untrusted(std::vector<std::int64_t>{Shape::max_count}).ok());
}

TEST(Shape, ByteSizesOfTheLargestShapeFit) {
  const ConstTensor widest{nullptr, DType::f64, Shape({Shape::max_count})};
  EXPECT_EQ(widest.bytes(), static_cast<std::size_t>(Shape::max_count) * 8);
}

TEST(Tensor, SlicesAlongTheFirstAxis) {
  Buffer buffer = *Buffer::zeroed(24);
  const TensorView all = buffer.tensor(DType::f32, {2, 3});
  for (std::size_t i = 0; i < 6; ++i) all.as<float>()[i] = static_cast<float>(i);
  const ConstTensor second = all.at(1);
  EXPECT_EQ(second.shape, Shape({3}));
  EXPECT_EQ(second.as<float>()[0], 3.0f);
  EXPECT_EQ(second.as<float>()[2], 5.0f);
}

TEST(TensorDeathTest, AnotherElementTypeIsABrokenInvariant) {
  Buffer buffer = *Buffer::zeroed(16);
  const TensorView view = buffer.tensor(DType::f32, {4});
  EXPECT_DEATH((void)view.as<std::int32_t>(), "dtype");
  EXPECT_DEATH((void)view.at(4), "invariant");
  EXPECT_DEATH((void)buffer.tensor(DType::f32, {5}), "invariant");
}

TEST(Buffer, IsAlignedAndMovesWithoutMovingItsMemory) {
  static_assert(!std::is_copy_constructible_v<Buffer>);
  Buffer first = *Buffer::allocate(100);
  const std::byte* memory = first.data();
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(memory) % Buffer::alignment, 0u);
  const Buffer second = std::move(first);
  EXPECT_EQ(second.data(), memory);
  EXPECT_EQ(second.size(), 100u);
  EXPECT_EQ(Buffer::allocate(0)->data(), nullptr);
}

TEST(Buffer, AnImpossibleSizeIsAStatus) {
  const std::size_t all = std::numeric_limits<std::size_t>::max();
  EXPECT_EQ(Buffer::allocate(all).status().code(), StatusCode::resource_exhausted);
  EXPECT_EQ(Buffer::allocate(all / 2).status().code(), StatusCode::resource_exhausted);
}

}  // namespace
}  // namespace nibble
