// Keys and values as the kernels on a GPU keep them, for heads of 64 dimensions or a multiple of them.
//
// Slots are numbered through all pages of the pool: slot = page * page_size + position % page_size. 64 of
// them that begin at a multiple of 64, a chunk, lie together for each head, keys and values apart, so that a
// bulk copy of a whole chunk is all there is to do. Of heads of 64 dimensions a chunk is 64 rows of 64
// columns, keys with their slots as rows and values with their dimensions, in groups of eight rows:
//
//   bfloat16: the image that the tensor core's operands have in shared memory, core matrices of 8 rows x 16
//     bytes, eight of them along the columns one after the other. A chunk is 8 KB.
//   e4m3: as the lanes of a warp take operands from it. Lane 4g + t has 16 bytes, of row g the columns 2t and
//     2t + 1 of each eight. A chunk is 4 KB. Values as the CPU keeps them (kv_append in
//     ops/attention/attention.h): without a scale, saturated at 448.
//
// Wider heads' keys have groups of eight rows x 64 columns as well, those of the same rows one after the
// other; their values have more rows.
#pragma once

#include <cstdint>

#include "formats/bf16.h"
#include "formats/e4m3.h"
#include "ops/cuda/host_device.h"

namespace nibble {

inline constexpr int kv_head_dim = 64;  // what constants below are of
inline constexpr int kv_chunk_slots = 64;
inline constexpr int kv_chunk_elements = kv_chunk_slots * kv_head_dim;
inline constexpr int kv_group_elements = 8 * 64;  // eight slots of keys, eight dimensions of values

// Where a chunk has an element.
struct KvBf16 {
  using Element = Bf16;
  static constexpr DType dtype = DType::bf16;
  NIBBLE_HOST_DEVICE static constexpr int key_at(int slot, int dimension, int head_dim = kv_head_dim) {
    return slot / 8 * (head_dim * 8) + dimension / 8 * 64 + slot % 8 * 8 + dimension % 8;
  }
  NIBBLE_HOST_DEVICE static constexpr int value_at(int slot, int dimension) {
    return key_at(dimension, slot);
  }
};
struct KvE4m3 {
  using Element = E4m3;
  static constexpr DType dtype = DType::f8_e4m3;
  NIBBLE_HOST_DEVICE static constexpr int key_at(int slot, int dimension, int head_dim = kv_head_dim) {
    return slot / 8 * (head_dim * 8) + dimension / 64 * kv_group_elements + slot % 8 * 64 +
           dimension % 8 / 2 * 16 + dimension % 64 / 8 * 2 + dimension % 2;
  }
  NIBBLE_HOST_DEVICE static constexpr int value_at(int slot, int dimension) {
    return key_at(dimension, slot);
  }
};

template <class Kv>
inline constexpr int kv_chunk_bytes = kv_chunk_elements* static_cast<int>(sizeof(typename Kv::Element));
template <class Kv>
inline constexpr int kv_group_bytes = kv_group_elements* static_cast<int>(sizeof(typename Kv::Element));

struct KvCudaLayer {
  void* keys = nullptr;    // [kv_heads, slots / 64, 64 * head_dim] of dtype
  void* values = nullptr;  // [kv_heads, slots / 64, 64 * head_dim] of dtype
  int kv_heads = 0;
  int slots = 0;              // of the pool, a multiple of 64
  DType dtype = DType::bf16;  // or f8_e4m3
  int head_dim = kv_head_dim;
};

}  // namespace nibble
