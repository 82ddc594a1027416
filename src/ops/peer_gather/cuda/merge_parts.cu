// A block takes pieces of rows, a vector a thread, as gather_columns does. Bytes: those of the buffer, and
// latency where they are few.
#include <algorithm>

#include "ops/cuda/launch.cuh"
#include "ops/peer_gather/cuda/merge_parts_cuda.h"
#include "ops/ptx/grid.cuh"

namespace nibble {
namespace {

constexpr int own_columns_threads = 256;
constexpr std::size_t own_columns_blocks = 1056;

__device__ __forceinline__ void make_zero(uint4& word) { word = {0, 0, 0, 0}; }
__device__ __forceinline__ void make_zero(std::uint32_t& word) { word = 0; }

// In words of one size.
template <class Word>
struct OwnWords {
  const Word* from;
  Word* to;
  std::size_t rows, row_words, first, count;
};

template <class Word>
__global__ void __launch_bounds__(own_columns_threads) place_own_columns(const OwnWords<Word> own) {
  ptx::grid_launch_dependents();
  ptx::grid_dependency_wait();
  const std::size_t pieces = (own.row_words + own_columns_threads - 1) / own_columns_threads;
  for (std::size_t unit = blockIdx.x; unit < own.rows * pieces; unit += gridDim.x) {
    const std::size_t row = unit / pieces, word = unit % pieces * own_columns_threads + threadIdx.x;
    if (word >= own.row_words) continue;
    Word value;
    make_zero(value);
    const std::size_t column = word - own.first;  // of the rank's own; before them it wraps round
    if (column < own.count) value = __ldcg(own.from + row * own.count + column);
    own.to[row * own.row_words + word] = value;
  }
}

bool whole_in(std::size_t unit, const OwnColumns& own) {
  return (reinterpret_cast<std::uintptr_t>(own.from) | reinterpret_cast<std::uintptr_t>(own.to) |
          own.row_bytes | own.first | own.bytes) %
             unit ==
         0;
}

template <class Word>
void launch(const OwnColumns& own, cudaStream_t stream) {
  const OwnWords<Word> words{.from = static_cast<const Word*>(own.from),
                             .to = static_cast<Word*>(own.to),
                             .rows = static_cast<std::size_t>(own.rows),
                             .row_words = own.row_bytes / sizeof(Word),
                             .first = own.first / sizeof(Word),
                             .count = own.bytes / sizeof(Word)};
  const std::size_t pieces = (words.row_words + own_columns_threads - 1) / own_columns_threads;
  launch_kernel({.blocks = dim3(static_cast<unsigned>(std::min(words.rows * pieces, own_columns_blocks))),
                 .threads = own_columns_threads,
                 .stream = stream,
                 .overlaps = true},
                place_own_columns<Word>, words);
}

}  // namespace

Status place_own_columns_cuda(const OwnColumns& own, cudaStream_t stream) {
  if (!whole_in(sizeof(std::uint32_t), own))
    return invalid_argument("columns that ranks merge begin and end at multiples of 4 bytes");
  if (own.rows == 0 || own.row_bytes == 0) return {};
  if (whole_in(sizeof(uint4), own)) {
    launch<uint4>(own, stream);
  } else {
    launch<std::uint32_t>(own, stream);
  }
  return {};
}

}  // namespace nibble
