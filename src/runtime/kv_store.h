// The KV cache's memory: every layer's pages, taken once at the start.
#pragma once

#include <array>
#include <span>
#include <vector>

#include "base/status.h"
#include "checkpoint/model_config.h"
#include "core/batch.h"
#include "ops/attention/paged_kv.h"
#include "tensor/buffer.h"

namespace nibble {

// Positions that the layers of the window group see; 0: the model has no such group.
int page_window(const ModelConfig& config);

// Bytes of one page over all layers, or over those of one group, keys and values.
std::int64_t kv_page_bytes(const ModelConfig& config, DType dtype, int page_size);
std::int64_t kv_page_bytes(const ModelConfig& config, DType dtype, int page_size, PageGroup group);

// What runs needs so many window pages however long its sequences are; as many again, and at least a quarter
// of `full_count`, are for prefixes that may be asked for again.
struct WindowDemand {
  int page_size = 0;
  int sequences = 0;    // that run at once
  int step_tokens = 0;  // of all of them in one step
};
std::int64_t window_page_count(const ModelConfig& config, const WindowDemand& demand,
                               std::int64_t full_count);
// The most pages of full attention that fit `bytes` together with their window pages.
std::int64_t affordable_page_count(const ModelConfig& config, DType dtype, const WindowDemand& demand,
                                   std::int64_t bytes);

class KvStore {
 public:
  using PageCounts = std::array<int, page_groups>;
  static Result<KvStore> allocate(const ModelConfig& config, DType dtype, int page_size,
                                  const PageCounts& page_counts);

  std::span<const KvLayer> layers() const { return layers_; }
  PageGroup group_of(std::size_t layer) const { return groups_[layer]; }

 private:
  Buffer memory_;
  std::vector<KvLayer> layers_;
  std::vector<PageGroup> groups_;  // [layers]
};

}  // namespace nibble
