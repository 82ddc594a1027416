// The KV cache's memory on a GPU: every layer's pages, taken once at the start.
#pragma once

#include <span>
#include <vector>

#include "base/status.h"
#include "checkpoint/model_config.h"
#include "ops/attention/cuda/kv_cuda.h"
#include "ops/latent_attention/cuda/latent_cuda.h"
#include "runtime/kv_store.h"
#include "tensor/device_buffer.h"

namespace nibble {

class CudaKvStore {
 public:
  // dtype: bf16 or f8_e4m3.
  static Result<CudaKvStore> allocate(const ModelConfig& config, DType dtype, int page_size,
                                      const KvStore::PageCounts& page_counts);

  // [layers] each; without memory of layers of another kind.
  std::span<const KvCudaLayer> layers() const { return layers_; }
  std::span<const LatentCudaLayer> latents() const { return latents_; }
  std::span<const int> groups() const { return groups_; }  // [layers]
  int page_size() const { return page_size_; }
  std::size_t bytes() const { return memory_.size(); }

 private:
  DeviceBuffer memory_;
  std::vector<KvCudaLayer> layers_;
  std::vector<LatentCudaLayer> latents_;
  std::vector<int> groups_;
  int page_size_ = 0;
};

}  // namespace nibble
