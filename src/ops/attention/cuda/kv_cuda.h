// Keys and values as the kernels on a GPU keep them, for heads of 64 dimensions.
//
// Slots are numbered through all pages of the pool: slot = page * page_size + position % page_size. 64 of
// them that begin at a multiple of 64, a chunk, lie together for each head: the keys one after the other, the
// values dimension by dimension. So a lane of the tensor core's operands finds what it needs of a key, and of
// a dimension of the values, in two pieces of 16 bytes, four lanes' pieces beside one another.
#pragma once

#include <cstdint>

#include "formats/bf16.h"

namespace nibble {

inline constexpr int kv_head_dim = 64;
inline constexpr int kv_chunk_slots = 64;
inline constexpr int kv_chunk_elements = kv_chunk_slots * kv_head_dim;

struct KvCudaLayer {
  Bf16* keys = nullptr;    // [kv_heads, slots / 64, 64 slots, 64 dimensions]
  Bf16* values = nullptr;  // [kv_heads, slots / 64, 64 dimensions, 64 slots]
  int kv_heads = 0;
  int slots = 0;  // of the pool, a multiple of 64
};

}  // namespace nibble
