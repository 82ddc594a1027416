#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "formats/e4m3.h"
#include "ops/attention/attention.h"
#include "ops/latent_attention/latent_attention.h"
#include "ops/latent_attention/turn_pairs.h"
#include "ops/row/row_kernels.h"

namespace nibble {
namespace {

template <class Element, class Encode>
void store(const float* vector, int width, std::byte* to, const Encode& encode) {
  Element* elements = reinterpret_cast<Element*>(to);
  for (int d = 0; d < width; ++d) elements[d] = encode(vector[d]);
}

void store_vector(const float* vector, int width, DType dtype, std::byte* to) {
  switch (dtype) {
    case DType::bf16: return store<Bf16>(vector, width, to, Bf16::from_float);
    case DType::f8_e4m3: return store<E4m3>(vector, width, to, E4m3::from_float);
    default: return store<float>(vector, width, to, [](float value) { return value; });
  }
}

}  // namespace

void latent_append(OpContext& context, const LatentAppendArgs& args) {
  const LatentLayer& cache = args.cache;
  NIBBLE_CHECK(attention_takes_page_size(cache.page_size) &&
               latent_attention_takes(cache.rank, cache.rotated));
  const auto store_row = [&](const SequenceRows& sequence, int i) {
    const std::int64_t row = sequence.row_begin + i;
    float* vector = args.latents + row * cache.width();
    const float mean =
        context.rows.add_and_square(vector, nullptr, cache.rank) / static_cast<float>(cache.rank);
    context.rows.scale(vector, 1.0f / std::sqrt(mean + args.eps), args.norm, false, cache.rank, vector);
    const int pairs = cache.rotated / 2;
    turn_pairs(vector + cache.rank, args.cos + row * pairs, args.sin + row * pairs, pairs,
               vector + cache.rank);
    const int position = sequence.first_position + i;
    const std::int32_t page = sequence.pages[static_cast<std::size_t>(position / cache.page_size)];
    store_vector(vector, cache.width(), cache.dtype,
                 cache.vectors + cache.at(page, position % cache.page_size));
  };
  int rows = 0;
  for (const SequenceRows& sequence : args.sequences) rows += sequence.row_count;
  context.threads.parallel_for(rows, [&](int begin, int end) {
    int before = 0;  // rows of the sequences already passed
    for (const SequenceRows& sequence : args.sequences) {
      const int first = std::max(begin - before, 0), last = std::min(end - before, sequence.row_count);
      for (int i = first; i < last; ++i) store_row(sequence, i);
      before += sequence.row_count;
    }
  });
}

}  // namespace nibble
