// Latent attention (ops/latent_attention/latent_attention.h) on a GPU of compute capability 9.0, for bfloat16
// activations: what lies around the products with matrices that all heads share.
//
// A position's vector lies as on the CPU, in the slot that kv_cuda.h numbers, in bfloat16 or e4m3. A head's
// two matrices lie for themselves, in bfloat16; of codes each value is rounded to it once.
//
// Order, a contract.
//   norms          Of 256 threads, thread i adds the squares of columns i, i + 256, ... in order. Lanes of a
//                  warp are added as a butterfly (16, 8, 4, 2, 1 apart), then warps in order.
//   K_h^T q, V_h o the tensor core's chain over steps of 16 columns from zero
//   attend         Positions are cut into steps of 64 from position 0 on. Of the first 1,024 positions 256
//                  each are a split, behind them 1,024. A split's total (m, l, o) of a query begins at (-inf,
//                  0, 0) and takes in its steps in order:
//                    s, scores: the tensor core's chain over the vector in steps of 16, whose groups of 64
//                    come as latent_group_at has them. What is not seen has -inf.
//                    m' = max(m, the largest s times c, rounded up), where c = scale * log2 e.
//                    Weights are 2^(s * c - m'); the argument is rounded once.
//                    l' = l * 2^(m - m') + the weights' sum; even and odd steps and lanes for themselves.
//                    o' begins with o * 2^(m - m'). The tensor core's chain adds weights, rounded to
//                    bfloat16, times vectors, over 4 steps of 16 positions.
//                  A query's total begins likewise and takes in the splits in order: m' = max, both sides
//                  times 2^(their m - m'), rounded once. What is attended to is o / l.
// Powers of two being exact, a row's bits depend on its position and what it sees alone: not on the batch,
// the prompt's cutting, or on whether one block took a query's splits or several did.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "base/status.h"
#include "ops/attention/cuda/attention_cuda.h"
#include "ops/latent_attention/latent_room.h"

namespace nibble {

inline constexpr int latent_step = 64;         // positions
inline constexpr int latent_early_splits = 4;  // from position 0 on, of as many steps each, an even number:
inline constexpr int latent_early_steps = 4;
inline constexpr int latent_split_steps = 16;  // of a later one
NIBBLE_HOST_DEVICE constexpr int latent_split_of(int position) {
  const int step = position / latent_step, early = latent_early_splits * latent_early_steps;
  return step < early ? step / latent_early_steps : latent_early_splits + (step - early) / latent_split_steps;
}
NIBBLE_HOST_DEVICE constexpr int latent_split_begin(int split) {  // its first step
  return split < latent_early_splits
             ? split * latent_early_steps
             : latent_early_splits * latent_early_steps + (split - latent_early_splits) * latent_split_steps;
}

struct LatentCudaLayer {
  void* vectors = nullptr;  // [slots, rank + rotated] of dtype
  int slots = 0;
  DType dtype = DType::bf16;  // or f8_e4m3
  int rank = 0, rotated = 0;  // multiples of 16

  NIBBLE_HOST_DEVICE int width() const { return rank + rotated; }
};

NIBBLE_HOST_DEVICE constexpr int latent_padded(int columns) {
  return static_cast<int>(latent_columns(columns));
}
// Whether the kernels have room for such vectors.
bool latent_cuda_takes(int rank, int rotated);

// All pointers are to device memory.

// A row of the products with what leads to the latents: the norm of what queries come from, and the latent,
// normed, with its key, rotated, into the cache.
struct LatentRowsCudaArgs {
  const float* down = nullptr;  // [rows, stride]
  int stride = 0;
  int rows = 0;
  float eps = 0;
  int query_rank = 0;                          // columns from 0 on that are normed; 0: none
  const Bf16* query_norm = nullptr;            // [query_rank]
  std::uint8_t* query_tiles = nullptr;         // token tiles of query_rank columns
  int latent_at = 0;                           // the first column of latents
  const Bf16* latent_norm = nullptr;           // [rank]
  const float *cos = nullptr, *sin = nullptr;  // [rows, rotated / 2]
  const std::int32_t* kv_slots = nullptr;      // [rows]; -1: nowhere
  LatentCudaLayer cache;
};
Status latent_rows_cuda(const LatentRowsCudaArgs& args, cudaStream_t stream);

// A row's heads of queries: the plain part into rows for their product, the rotated one to its place.
struct SplitQueriesCudaArgs {
  const float* q = nullptr;  // [rows, stride]: heads of plain + rotated columns
  int stride = 0;
  int rows = 0;
  int heads = 0;
  int plain = 0, rotated = 0;
  const float *cos = nullptr, *sin = nullptr;  // [rows, rotated / 2]
  Bf16* plain_rows = nullptr;                  // [rows, heads, latent_padded(plain)], zeros past plain
  int rank = 0;
  Bf16* absorbed = nullptr;  // [rows, heads, rank + rotated]
};
Status split_queries_cuda(const SplitQueriesCudaArgs& args, cudaStream_t stream);

// y_h = W_h x_h for each head h.
struct HeadProductsCudaArgs {
  const Bf16* weights = nullptr;  // [heads, n, latent_padded(k)], zeros past k
  int heads = 0;
  int n = 0;  // a multiple of 16
  int k = 0;
  const Bf16* x = nullptr;  // [rows, heads, latent_padded(k)], finite
  int rows = 0;
  // One of the two.
  Bf16* y = nullptr;              // [rows, heads, y_head]
  int y_head = 0;                 // at least n, even
  std::uint8_t* tiles = nullptr;  // token tiles of heads * n columns
};
Status head_products_cuda(const HeadProductsCudaArgs& args, cudaStream_t stream);

// Which matrix kv_b is in, as its checkpoint has it: rows of heads, each plain keys and then values.
struct LatentHeadsRepack {
  enum class Format : std::uint8_t { bf16, e4m3_tiles, e4m3_rows, nvfp4 };
  Format format = Format::bf16;
  const void* codes = nullptr;   // of heads [first_head, first_head + heads)
  const void* scales = nullptr;  // e4m3_tiles, e4m3_rows: of all rows; nvfp4: of those heads
  bool narrow = false;           // those of all rows are in bfloat16
  float factor = 1;              // nvfp4: of the whole matrix
  int first_head = 0, heads = 0;
  int first_kept = 0;  // the head that comes first where keys and values go
  int plain = 0, value_dim = 0, rank = 0;
  Bf16* keys = nullptr;    // [kept heads, rank, latent_padded(plain)]
  Bf16* values = nullptr;  // [kept heads, value_dim, latent_padded(rank)]
};
void repack_latent_heads_cuda(const LatentHeadsRepack& repack, cudaStream_t stream);

// What a launch of attention does, made once a step for all layers.
//
// Queries are numbered row * heads + head. A tile has up to latent_tile neighbours of one sequence; a block
// takes a tile with all its splits or with one of them, whose totals are then joined by a launch behind.
// Where that is faster, a tile has up to latent_few_tile, and a cluster of blocks takes what a block would:
// the bits are the same.
struct alignas(16) LatentItem {
  std::int32_t query, count;  // the tile's first, and how many
  std::int32_t shift;         // a query's position is query / heads + shift
  std::int32_t pages_at;
  std::int32_t split_begin, split_end;
  std::int32_t partial;  // where totals of its queries go; -1: they are whole
  std::int32_t splits;   // of the tile
};
// A launch's list: the header, its items (whole splits of the later kind first, so that what is short fills
// up the end), then the first of each tile that is cut.
struct alignas(16) LatentWorkHeader {
  std::int32_t items, cut_tiles;
};
static_assert(sizeof(LatentItem) == latent_item_bytes && sizeof(LatentWorkHeader) == latent_header_bytes);
// Whether tiles of a launch may be cut: there are too few of them for all processors.
constexpr bool latent_cuts(int rows, int heads, int processors) {
  return rows * heads / latent_tile < 2 * processors;
}
// Which kernel takes a launch's tiles: blocks with tiles of latent_tile, clusters, or what is faster.
enum class LatentPath : std::uint8_t { faster, tiles, clusters };
inline constexpr int latent_short_positions = 2048;
inline constexpr int latent_few_queries = 512;  // that clusters take at most, rows x heads
inline constexpr int latent_few_blocks = 4;     // of a cluster
inline constexpr int latent_few_tile = 16;      // queries that it takes at once
// What both the list and the attention of a launch are told.
struct LatentCudaKernels {
  LatentPath path = LatentPath::faster;
  // Of one sequence, which sees latent_short_positions at most.
  bool short_context = false;

  // Several sequences have tiles enough for all multiprocessors. How long a context is that is not short,
  // only the device knows, and it does not choose. On few multiprocessors clusters come one behind the other.
  NIBBLE_HOST_DEVICE constexpr bool are_clusters(int rows, int heads, int processors) const {
    constexpr int short_queries = 128, fewest_processors = 64;
    const int queries = rows * heads;
    if (path == LatentPath::clusters) return queries <= latent_few_queries;
    return path == LatentPath::faster && short_context && queries <= short_queries &&
           processors >= fewest_processors;
  }
};
struct LatentWorkCudaArgs {
  LatentCudaKernels kernels;
  const SequenceCuda* sequences = nullptr;
  int sequence_count = 0;
  int heads = 0;
  int rows = 0;          // of the step
  int rows_at_once = 0;  // of a launch: launch i has those from i * rows_at_once on, and numbers them from 0
  std::uint8_t* work = nullptr;  // of each launch, latent_work_bytes(rows_at_once, ..) apart
};
void latent_work_cuda(const LatentWorkCudaArgs& args, cudaStream_t stream);

struct LatentAttentionCudaArgs {
  LatentCudaKernels kernels;
  const Bf16* q = nullptr;  // [rows, heads, rank + rotated], absorbed
  int rows = 0;
  int heads = 0;
  const std::uint8_t* work = nullptr;  // of this launch
  // As of latent_work_cuda's.
  int sequence_count = 0;
  int rows_at_once = 0;
  const std::int32_t* page_table = nullptr;
  int page_size = 0;  // a multiple of 64
  LatentCudaLayer cache;
  // The list, the table, and vectors of positions before each sequence's rows were in memory before the
  // kernel ahead in the stream began.
  bool settled = false;
  float scale = 1;
  Bf16* out = nullptr;        // [rows, heads, latent_padded(rank)], zeros past rank
  float* totals = nullptr;    // [latent_total_floats(..)]: what a block keeps of a tile between splits
  float* partials = nullptr;  // [latent_partial_floats(..)]
};
Status latent_attention_cuda(const LatentAttentionCudaArgs& args, cudaStream_t stream);

}  // namespace nibble
