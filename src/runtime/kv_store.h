// The KV cache's memory: every layer's pages, taken once at the start.
#pragma once

#include <span>
#include <vector>

#include "base/status.h"
#include "checkpoint/model_config.h"
#include "ops/attention/paged_kv.h"
#include "tensor/buffer.h"

namespace nibble {

// Bytes of one page over all layers, keys and values.
std::int64_t kv_page_bytes(const ModelConfig& config, DType dtype, int page_size);

class KvStore {
 public:
  static Result<KvStore> allocate(const ModelConfig& config, DType dtype, int page_size, int page_count);

  std::span<const KvLayer> layers() const { return layers_; }

 private:
  Buffer memory_;
  std::vector<KvLayer> layers_;
};

}  // namespace nibble
