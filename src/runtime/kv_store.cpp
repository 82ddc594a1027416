#include "runtime/kv_store.h"

namespace nibble {

std::int64_t kv_page_bytes(const ModelConfig& config, DType dtype, int page_size) {
  return 2 * config.num_hidden_layers * config.num_key_value_heads * config.head_dim * page_size *
         static_cast<std::int64_t>(dtype_bytes(dtype));
}

Result<KvStore> KvStore::allocate(const ModelConfig& config, DType dtype, int page_size, int page_count) {
  const std::size_t total = static_cast<std::size_t>(kv_page_bytes(config, dtype, page_size) * page_count);
  KvStore store;
  // Not cleared: a position is written before any query may look at it.
  NIBBLE_ASSIGN(store.memory_, Buffer::allocate(total));
  const std::size_t half_layer = total / static_cast<std::size_t>(2 * config.num_hidden_layers);
  std::byte* at = store.memory_.data();
  for (std::int64_t layer = 0; layer < config.num_hidden_layers; ++layer, at += 2 * half_layer) {
    store.layers_.push_back({.keys = at,
                             .values = at + half_layer,
                             .dtype = dtype,
                             .pages = page_count,
                             .page_size = page_size,
                             .kv_heads = static_cast<int>(config.num_key_value_heads),
                             .head_dim = static_cast<int>(config.head_dim)});
  }
  return store;
}

}  // namespace nibble
