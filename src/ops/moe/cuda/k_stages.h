// How the kernels bring a chunk of K: in as few stages of a ring as hold it, of equal numbers of k64 blocks
// but for one more in the first ones. A full stage followed by a small one would leave the ring half empty,
// and stages of one number of blocks alone would bring what no product needs.
#pragma once

#include "ops/cuda/host_device.h"
#include "ops/moe/cuda/granules.h"

namespace nibble {

struct KChunk {
  int begin = 0, blocks = 0;  // k64 blocks
  int stage = 0, longer = 0;  // blocks of a stage; how many of the first stages have one more

  NIBBLE_HOST_DEVICE constexpr int stage_blocks(int index) const { return stage + (index < longer ? 1 : 0); }
};

struct KChunks {
  KChunk chunk[granule_k_chunks];

  constexpr bool has_stage_of(int count) const {
    for (const KChunk& of : chunk) {
      if (count == of.stage + 1 && of.longer > 0) return true;
      if (count == of.stage && of.blocks > of.longer * (of.stage + 1)) return true;
    }
    return false;
  }
};

// most: blocks that a stage has room for.
template <class Layout>
constexpr KChunks k_chunks(const GranuleShapeOf<Layout>& shape, int most) {
  KChunks made;
  for (int index = 0; index < granule_k_chunks; ++index) {
    KChunk& chunk = made.chunk[index];
    chunk.begin = shape.chunk_begin(index);
    chunk.blocks = shape.chunk_begin(index + 1) - chunk.begin;
    if (chunk.blocks == 0) continue;
    const int stages = (chunk.blocks + most - 1) / most;
    chunk.stage = chunk.blocks / stages;
    chunk.longer = chunk.blocks % stages;
  }
  return made;
}

}  // namespace nibble
