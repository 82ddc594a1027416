// Keys and values as attention finds them: pages of one layer's cache, and which rows of a step belong to
// which sequence.
#pragma once

#include <cstdint>
#include <span>

#include "tensor/dtype.h"

namespace nibble {

// One layer's cache. Keys and values of a page: [kv_heads, page_size, head_dim], so that a head's keys of a
// page lie together.
struct KvLayer {
  std::byte* keys = nullptr;    // [pages, kv_heads, page_size, head_dim]
  std::byte* values = nullptr;  // [pages, kv_heads, page_size, head_dim]
  DType dtype = DType::f32;     // f32 or bf16
  int page_size = 0;
  int kv_heads = 0;
  int head_dim = 0;

  std::int64_t element(std::int32_t page, int head, int slot) const {
    return ((static_cast<std::int64_t>(page) * kv_heads + head) * page_size + slot) * head_dim;
  }
};

// Rows [row_begin, row_begin + row_count) of the step are positions first_position, ... of one sequence.
struct SequenceRows {
  int row_begin = 0;
  int row_count = 0;
  int first_position = 0;
  std::span<const std::int32_t> pages;  // page i holds positions [i * page_size, (i + 1) * page_size)
};

}  // namespace nibble
