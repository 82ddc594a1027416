// The KV cache's memory: every layer's pages, taken once at the start.
#pragma once

#include <array>
#include <span>
#include <vector>

#include "base/status.h"
#include "checkpoint/model_config.h"
#include "core/batch.h"
#include "ops/attention/paged_kv.h"
#include "ops/latent_attention/latent_cache.h"
#include "tensor/buffer.h"

namespace nibble {

// Positions that the layers of the window group see; 0: the model has no such group.
int page_window(const ModelConfig& config);

// Whose page tables a layer reads.
PageGroup page_group_of_layer(const ModelConfig& config, std::int64_t layer);

// Bytes of one page over the layers of one group, keys and values or latents.
std::int64_t kv_page_bytes(const ModelConfig& config, DType dtype, int page_size, PageGroup group);

class KvStore {
 public:
  using PageCounts = std::array<int, page_groups>;
  static Result<KvStore> allocate(const ModelConfig& config, DType dtype, int page_size,
                                  const PageCounts& page_counts);

  // [layers]; empty where a layer keeps the other, or neither.
  std::span<const KvLayer> layers() const { return layers_; }
  std::span<const LatentLayer> latents() const { return latents_; }
  PageGroup group_of(std::size_t layer) const { return groups_[layer]; }

 private:
  Buffer memory_;
  std::vector<KvLayer> layers_;
  std::vector<LatentLayer> latents_;
  std::vector<PageGroup> groups_;  // [layers]
};

}  // namespace nibble
