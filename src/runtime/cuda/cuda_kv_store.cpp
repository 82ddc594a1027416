#include "runtime/cuda/cuda_kv_store.h"

#include "tensor/device_arena.h"

namespace nibble {
namespace {

void lay_out(const ModelConfig& config, DType dtype, int page_size, const KvStore::PageCounts& page_counts,
             DeviceArena& arena, std::vector<KvCudaLayer>& layers, std::vector<LatentCudaLayer>& latents) {
  for (std::int64_t layer = 0; layer < config.num_hidden_layers; ++layer) {
    const Mixer mixer = config.layers[static_cast<std::size_t>(layer)].mixer;
    if (mixer != Mixer::attention) layers.emplace_back();
    if (mixer != Mixer::latent) latents.emplace_back();
    const int slots = page_counts[page_group_of_layer(config, layer)] * page_size;
    if (mixer == Mixer::latent) {
      LatentCudaLayer kept{.slots = slots,
                           .dtype = dtype,
                           .rank = static_cast<int>(config.latent.rank),
                           .rotated = static_cast<int>(config.latent.rotated_dim)};
      kept.vectors = arena.take<std::byte>(static_cast<std::size_t>(slots) *
                                           static_cast<std::size_t>(kept.width()) * dtype_bytes(dtype));
      latents.push_back(kept);
    }
    if (mixer != Mixer::attention) continue;
    const std::size_t bytes = static_cast<std::size_t>(config.num_key_value_heads) *
                              static_cast<std::size_t>(slots) * static_cast<std::size_t>(config.head_dim) *
                              dtype_bytes(dtype);
    void* const keys = arena.take<std::byte>(bytes);
    layers.push_back({.keys = keys,
                      .values = arena.take<std::byte>(bytes),
                      .kv_heads = static_cast<int>(config.num_key_value_heads),
                      .slots = slots,
                      .dtype = dtype,
                      .head_dim = static_cast<int>(config.head_dim)});
  }
}

}  // namespace

Result<CudaKvStore> CudaKvStore::allocate(const ModelConfig& config, DType dtype, int page_size,
                                          const KvStore::PageCounts& page_counts) {
  CudaKvStore store;
  store.page_size_ = page_size;
  DeviceArena counted;
  std::vector<KvCudaLayer> nowhere;
  std::vector<LatentCudaLayer> nor_here;
  lay_out(config, dtype, page_size, page_counts, counted, nowhere, nor_here);
  NIBBLE_ASSIGN(store.memory_, DeviceBuffer::allocate(counted.used()));
  // Not cleared: a position is written before any query may look at it.
  DeviceArena arena(store.memory_.data());
  lay_out(config, dtype, page_size, page_counts, arena, store.layers_, store.latents_);
  for (std::int64_t layer = 0; layer < config.num_hidden_layers; ++layer)
    store.groups_.push_back(page_group_of_layer(config, layer));
  return store;
}

}  // namespace nibble
