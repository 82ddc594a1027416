// A view of elements that somebody else owns: a pointer, an element type and a shape, dense and row-major.
// ConstTensor is for reading (weights in a mapped file), TensorView for writing as well.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>

#include "base/check.h"
#include "tensor/dtype.h"
#include "tensor/shape.h"

namespace nibble {

template <class Byte>
struct BasicTensor {
  Byte* data = nullptr;
  DType dtype = DType::u8;
  Shape shape;

  std::int64_t count() const { return shape.count(); }
  std::size_t bytes() const { return static_cast<std::size_t>(shape.count()) * dtype_bytes(dtype); }

  // The elements as T. The caller knows the dtype: another one is a broken invariant.
  template <class T>
  auto as() const {
    using Element = std::conditional_t<std::is_const_v<Byte>, const T, T>;
    NIBBLE_CHECK(dtype == DTypeOf<T>::value);
    NIBBLE_CHECK(reinterpret_cast<std::uintptr_t>(data) % alignof(T) == 0);
    return std::span<Element>(reinterpret_cast<Element*>(data), static_cast<std::size_t>(count()));
  }

  // Element i along the first axis, e.g. one expert's matrix of [experts, rows, cols].
  BasicTensor at(std::int64_t i) const {
    NIBBLE_CHECK(shape.rank() > 0 && i >= 0 && i < shape[0]);
    const Shape inner = shape.inner();
    return {data + static_cast<std::size_t>(i * inner.count()) * dtype_bytes(dtype), dtype, inner};
  }

  operator BasicTensor<const std::byte>() const requires(!std::is_const_v<Byte>) {
    return {data, dtype, shape};
  }
};

using TensorView = BasicTensor<std::byte>;
using ConstTensor = BasicTensor<const std::byte>;

}  // namespace nibble
