#include <algorithm>

#include "base/check.h"
#include "formats/bf16.h"
#include "formats/e4m3.h"
#include "ops/attention/attention.h"

namespace nibble {
namespace {

struct Floats {
  using Element = float;
  static constexpr DType dtype = DType::f32;
  static float encode(float value) { return value; }
};
struct Bf16s {
  using Element = Bf16;
  static constexpr DType dtype = DType::bf16;
  static Bf16 encode(float value) { return Bf16::from_float(value); }
};
struct E4m3s {
  using Element = E4m3;
  static constexpr DType dtype = DType::f8_e4m3;
  static E4m3 encode(float value) { return E4m3::from_float(value); }
};

template <class Stored>
void store_row(const float* keys, const float* values, const KvLayer& cache, std::int32_t page, int slot) {
  using Element = typename Stored::Element;
  const int head_dim = cache.head_dim, in_run = slot % kv_run;
  for (int head = 0; head < cache.kv_heads; ++head, keys += head_dim, values += head_dim) {
    const std::int64_t run = cache.run(page, head, slot - in_run);
    Element* key = reinterpret_cast<Element*>(cache.keys) + run;
    Element* value = reinterpret_cast<Element*>(cache.values) + run + in_run * head_dim;
    for (int d = 0; d < head_dim; ++d) {
      key[key_element(Stored::dtype, in_run, d)] = Stored::encode(keys[d]);
      value[value_element(Stored::dtype, d)] = Stored::encode(values[d]);
    }
  }
}

}  // namespace

void kv_append(OpContext& context, const KvAppendArgs& args) {
  const KvLayer& cache = args.cache;
  NIBBLE_CHECK(attention_takes_page_size(cache.page_size) && attention_takes_head_dim(cache.head_dim));
  const auto store = cache.dtype == DType::bf16      ? store_row<Bf16s>
                     : cache.dtype == DType::f8_e4m3 ? store_row<E4m3s>
                                                     : store_row<Floats>;
  const std::int64_t width = static_cast<std::int64_t>(cache.kv_heads) * cache.head_dim;
  int rows = 0;
  for (const SequenceRows& sequence : args.sequences) rows += sequence.row_count;
  context.threads.parallel_for(rows, [&](int begin, int end) {
    int before = 0;  // rows of the sequences already passed
    for (const SequenceRows& sequence : args.sequences) {
      const int first = std::max(begin - before, 0), last = std::min(end - before, sequence.row_count);
      for (int i = first; i < last; ++i) {
        const int position = sequence.first_position + i;
        const std::int64_t at = (sequence.row_begin + i) * width;
        store(args.keys + at, args.values + at, cache,
              sequence.pages[static_cast<std::size_t>(position / cache.page_size)],
              position % cache.page_size);
      }
      before += sequence.row_count;
    }
  });
}

}  // namespace nibble
