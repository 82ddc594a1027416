#include "runtime/kv_store.h"

#include <gtest/gtest.h>

namespace nibble {
namespace {

ModelConfig config_of(std::vector<LayerType> layers) {
  ModelConfig config;
  config.num_hidden_layers = static_cast<std::int64_t>(layers.size());
  config.layer_types = std::move(layers);
  config.sliding_window = 128;
  config.num_key_value_heads = 2;
  config.head_dim = 64;
  return config;
}

constexpr LayerType slides = LayerType::sliding_attention, full = LayerType::full_attention;
constexpr WindowDemand demand{.page_size = 16, .sequences = 4, .step_tokens = 512};

TEST(KvStore, LayersOfAGroupHaveItsPages) {
  const ModelConfig config = config_of({slides, full, full});
  const auto store = KvStore::allocate(config, DType::bf16, 16, {100, 20});
  ASSERT_TRUE(store.ok());
  EXPECT_EQ(store->group_of(0), window_pages);
  EXPECT_EQ(store->group_of(1), full_pages);
  EXPECT_EQ(store->layers()[0].pages, 20);
  EXPECT_EQ(store->layers()[2].pages, 100);
  EXPECT_EQ(store->layers()[1].keys - store->layers()[0].keys, 2 * 20 * 16 * 2 * 64 * 2) << "keys and values";
  EXPECT_EQ(kv_page_bytes(config, DType::bf16, 16, full_pages) +
                kv_page_bytes(config, DType::bf16, 16, window_pages),
            kv_page_bytes(config, DType::bf16, 16));
}

TEST(KvStore, AModelWithOneKindOfLayersHasOneGroup) {
  for (const LayerType type : {slides, full}) {
    const ModelConfig config = config_of({type, type});
    EXPECT_EQ(page_window(config), 0);
    EXPECT_EQ(window_page_count(config, demand, 1000), 0);
    EXPECT_EQ(kv_page_bytes(config, DType::f32, 16, window_pages), 0);
  }
}

TEST(KvStore, WindowsNeedPagesForWhatRunsHoweverLongItIs) {
  const ModelConfig config = config_of({slides, full});
  EXPECT_EQ(window_page_count(config, demand, 800), 2 * (4 * 10 + 2 * 32)) << "twice what runs";
  EXPECT_EQ(window_page_count(config, demand, 8000), 2000) << "a quarter, for prefixes";
  EXPECT_EQ(window_page_count(config, demand, 50), 50) << "no more than there are others";
  EXPECT_EQ(window_page_count(config, demand, 1), 10) << "one sequence can go on";
}

TEST(KvStore, AffordablePagesFitWithTheirWindowPagesAndOneMoreDoesNot) {
  const ModelConfig config = config_of({slides, full});
  const auto bytes_of = [&](std::int64_t pages) {
    return pages * kv_page_bytes(config, DType::bf16, 16, full_pages) +
           window_page_count(config, demand, pages) * kv_page_bytes(config, DType::bf16, 16, window_pages);
  };
  for (const std::int64_t bytes : {std::int64_t{1} << 20, std::int64_t{1} << 24, std::int64_t{1} << 30}) {
    const std::int64_t pages = affordable_page_count(config, DType::bf16, demand, bytes);
    EXPECT_LE(bytes_of(pages), bytes);
    EXPECT_GT(bytes_of(pages + 1), bytes);
  }
}

}  // namespace
}  // namespace nibble
