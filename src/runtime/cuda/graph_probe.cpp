#include "runtime/cuda/graph_probe.h"

#include <algorithm>

namespace nibble {

GraphProbe::GraphProbe(int sequences, const ModelConfig& config, const WorkerLimits& limits)
    : tables_(static_cast<std::size_t>(sequences)) {
  const bool windowed = limits.page_counts[window_pages] > 0;
  const int pages = windowed ? *std::min_element(limits.page_counts.begin(), limits.page_counts.end())
                             : limits.page_counts[full_pages];
  const bool states =
      std::any_of(config.layers.begin(), config.layers.end(),
                  [](const LayerDescription& layer) { return layer.mixer == Mixer::gated_delta; });
  for (int i = 0; i < sequences; ++i) {
    tables_[static_cast<std::size_t>(i)] = i % pages;
    const std::span<const PageId> table(&tables_[static_cast<std::size_t>(i)], 1);
    batch_.tokens.push_back(static_cast<TokenId>((states ? i % pages : i) * 7919 % config.vocab_size));
    batch_.sequences.push_back({.row_begin = i,
                                .row_count = 1,
                                .first_position = states ? 0 : i / pages % limits.page_size,
                                .pages = {table, windowed ? table : std::span<const PageId>()},
                                .state = i,
                                .sampling = &greedy_,
                                .logit_begin = i,
                                .logit_count = 1,
                                .samples = true});
    batch_.logit_rows.push_back({.row = i});
  }
}

}  // namespace nibble
