// Rows of outputs that one expert's matrix gives.
#pragma once

#include <cstdint>

namespace nibble::block_products {

struct alignas(16) RowGroup {
  std::int32_t expert, first, count, unused;
};

}  // namespace nibble::block_products
