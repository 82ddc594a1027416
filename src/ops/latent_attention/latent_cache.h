// What latent attention keeps of a position in one layer: one vector for all heads, the normed latent and
// behind it the rotated key. Vectors lie one position after the other, their dimensions in order.
#pragma once

#include <cstddef>
#include <cstdint>

#include "tensor/dtype.h"

namespace nibble {

struct LatentLayer {
  std::byte* vectors = nullptr;  // [pages, page_size, rank + rotated]
  DType dtype = DType::f32;      // f32, bf16 or f8_e4m3
  int pages = 0;
  int page_size = 0;
  int rank = 0;     // of the latent, from which a head has its plain keys and its values
  int rotated = 0;  // dimensions of the one rotated key

  int width() const { return rank + rotated; }
  // The first byte of the vector at `slot` of the page.
  std::size_t at(std::int32_t page, int slot) const {
    return (static_cast<std::size_t>(page) * static_cast<std::size_t>(page_size) +
            static_cast<std::size_t>(slot)) *
           static_cast<std::size_t>(width()) * dtype_bytes(dtype);
  }
};

}  // namespace nibble
