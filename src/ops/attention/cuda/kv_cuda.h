// Keys and values as the kernels on a GPU keep them, for heads of 64 dimensions.
//
// Slots are numbered through all pages of the pool: slot = page * page_size + position % page_size. 64 of
// them that begin at a multiple of 64, a chunk, lie together for each head: 8 KB of keys and 8 KB of values,
// each the image that the tensor core's operands have in shared memory, so that a bulk copy of a whole chunk
// is all there is to do. The image is made of core matrices of 8 x 16 bytes: of keys 8 slots x 8 dimensions,
// of values 8 dimensions x 8 slots, eight of them along the sixteen bytes' side one after the other.
#pragma once

#include <cstdint>

#include "formats/bf16.h"
#include "ops/cuda/host_device.h"

namespace nibble {

inline constexpr int kv_head_dim = 64;
inline constexpr int kv_chunk_slots = 64;
inline constexpr int kv_chunk_elements = kv_chunk_slots * kv_head_dim;
inline constexpr int kv_group_elements = 8 * 64;  // eight slots of keys, eight dimensions of values

// Where a chunk has an element.
NIBBLE_HOST_DEVICE constexpr int kv_key_at(int slot, int dimension) {
  return slot / 8 * kv_group_elements + dimension / 8 * 64 + slot % 8 * 8 + dimension % 8;
}
NIBBLE_HOST_DEVICE constexpr int kv_value_at(int slot, int dimension) { return kv_key_at(dimension, slot); }

struct KvCudaLayer {
  Bf16* keys = nullptr;    // [kv_heads, slots / 64, kv_chunk_elements]
  Bf16* values = nullptr;  // [kv_heads, slots / 64, kv_chunk_elements]
  int kv_heads = 0;
  int slots = 0;  // of the pool, a multiple of 64
};

}  // namespace nibble
