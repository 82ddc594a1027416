// Keys and values as attention finds them: pages of one layer's cache, the layout inside them, and which
// rows of a step belong to which sequence.
//
// A page holds, for each KV head, page_size keys and page_size values. A head's parts of all pages lie
// together: one head is read at a time, so that neighbouring pages make one stream and not every so many
// kilobytes of memory, which would fall into few sets of a processor's cache. kv_append writes the layout and
// the attention kernels read it; nobody else looks inside.
//
//   Keys lie in runs of kv_run positions, so that scores have a lane a position and a query's element is
//   broadcast to all of them. Within a run the dimensions that share a 32-bit word (one float32, two
//   bfloat16, four e4m3) stand together, words of the kv_run positions one after the other: a line of 64
//   bytes holds one, two or four dimensions of a whole run.
//   Values lie one position after the other, so that a weight is broadcast to all dimensions. Within 32
//   dimensions i and i + 16 share a word (bfloat16: low and high half) or a half word (e4m3: high and low
//   byte), so that one shift or mask yields sixteen consecutive dimensions.
#pragma once

#include <cstdint>
#include <span>

#include "tensor/dtype.h"

namespace nibble {

inline constexpr int kv_run = 16;    // positions; a page is a whole number of runs
inline constexpr int kv_chunk = 32;  // dimensions of a value that are stored together

struct KvLayer {
  std::byte* keys = nullptr;    // [kv_heads, pages, page_size / kv_run, head_dim * kv_run]
  std::byte* values = nullptr;  // [kv_heads, pages, page_size, head_dim]
  DType dtype = DType::f32;     // f32, bf16 or f8_e4m3
  int pages = 0;
  int page_size = 0;
  int kv_heads = 0;
  int head_dim = 0;

  // The first element of the run that begins at `slot` of the page, a multiple of kv_run.
  std::int64_t run(std::int32_t page, int head, int slot) const {
    return ((static_cast<std::int64_t>(head) * pages + page) * page_size + slot) * head_dim;
  }
};

// Element of dimension `dimension` of the key at `slot` of its run, counted from the run's first.
constexpr int key_element(DType dtype, int slot, int dimension) {
  switch (dtype) {
    case DType::bf16: return dimension / 2 * 2 * kv_run + slot * 2 + dimension % 2;
    case DType::f8_e4m3:
      // Odd bytes hold the first two dimensions of a line, even ones the other two.
      return dimension / 4 * 4 * kv_run + 2 * (slot + kv_run * (dimension % 2)) + (dimension % 4 < 2 ? 1 : 0);
    default: return dimension * kv_run + slot;
  }
}

// Element of dimension `dimension` of a value, counted from the value's first.
constexpr int value_element(DType dtype, int dimension) {
  const int chunk = dimension / kv_chunk * kv_chunk, within = dimension % kv_chunk;
  switch (dtype) {
    case DType::bf16: return chunk + within % 16 * 2 + within / 16;
    case DType::f8_e4m3: return chunk + within % 16 * 2 + (within < 16 ? 1 : 0);
    default: return dimension;
  }
}

// Rows [row_begin, row_begin + row_count) of the step are positions first_position, ... of one sequence.
struct SequenceRows {
  int row_begin = 0;
  int row_count = 0;
  int first_position = 0;
  std::span<const std::int32_t> pages;  // page i holds positions [i * page_size, (i + 1) * page_size)
};

}  // namespace nibble
