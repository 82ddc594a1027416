// The extents of a tensor, outermost first. The element count of every Shape that exists is known to fit:
// count() times the widest element cannot overflow std::int64_t.
#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <limits>
#include <span>
#include <string>

#include "base/check.h"
#include "base/status.h"

namespace nibble {

class Shape {
 public:
  static constexpr int max_rank = 8;
  static constexpr std::int64_t max_count = std::numeric_limits<std::int64_t>::max() / 16;

  Shape() = default;  // a scalar: rank 0, one element
  // Extents of our own making; what a file says goes through from_untrusted.
  Shape(std::initializer_list<std::int64_t> extents) {
    const Result<Shape> made = from_untrusted({extents.begin(), extents.size()});
    NIBBLE_CHECK(made.ok(), made.status().message());
    *this = *made;
  }

  // Refuses a rank above max_rank, a negative extent, and extents whose product (zeros aside) is too large.
  static Result<Shape> from_untrusted(std::span<const std::int64_t> extents) {
    if (extents.size() > max_rank) {
      return invalid_argument("a shape of " + std::to_string(extents.size()) + " dimensions; at most " +
                              std::to_string(max_rank) + " are supported");
    }
    Shape shape;
    std::int64_t product = 1;
    bool empty = false;
    for (const std::int64_t extent : extents) {
      if (extent < 0) return invalid_argument("a shape with the negative extent " + std::to_string(extent));
      if (extent > 0 && product > max_count / extent) {
        return invalid_argument("a shape with more elements than 64 bits can count");
      }
      if (extent == 0) empty = true;
      if (extent > 0) product *= extent;
      shape.extents_[static_cast<std::size_t>(shape.rank_++)] = extent;
    }
    shape.count_ = empty ? 0 : product;
    return shape;
  }

  int rank() const { return rank_; }
  std::int64_t operator[](int axis) const {
    NIBBLE_CHECK(axis >= 0 && axis < rank_);
    return extents_[static_cast<std::size_t>(axis)];
  }
  std::span<const std::int64_t> extents() const { return {extents_.data(), static_cast<std::size_t>(rank_)}; }
  std::int64_t count() const { return count_; }

  // The shape of one element along the first axis.
  Shape inner() const {
    NIBBLE_CHECK(rank_ > 0);
    return *from_untrusted(extents().subspan(1));
  }

  // "[6, 448, 5, 16]"
  std::string to_string() const {
    std::string text = "[";
    for (int axis = 0; axis < rank_; ++axis) {
      if (axis > 0) text += ", ";
      text += std::to_string((*this)[axis]);
    }
    return text + "]";
  }

  // Extents beyond the rank are zero in both.
  friend bool operator==(const Shape& a, const Shape& b) = default;

 private:
  std::array<std::int64_t, max_rank> extents_{};
  int rank_ = 0;
  std::int64_t count_ = 1;
};

}  // namespace nibble
