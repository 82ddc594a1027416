#include "runtime/kv_store.h"

#include <gtest/gtest.h>

namespace nibble {
namespace {

ModelConfig config_of(std::initializer_list<std::int64_t> windows) {
  ModelConfig config;
  config.num_hidden_layers = static_cast<std::int64_t>(windows.size());
  for (const std::int64_t window : windows) config.layers.push_back({.window = window});
  config.num_key_value_heads = 2;
  config.head_dim = 64;
  return config;
}

constexpr std::int64_t slides = 128, full = 0;

TEST(KvStore, LayersOfAGroupHaveItsPages) {
  const ModelConfig config = config_of({slides, full, full});
  const auto store = KvStore::allocate(config, DType::bf16, 16, {100, 20});
  ASSERT_TRUE(store.ok());
  EXPECT_EQ(page_window(config), 128);
  EXPECT_EQ(store->group_of(0), window_pages);
  EXPECT_EQ(store->group_of(1), full_pages);
  EXPECT_EQ(store->layers()[0].pages, 20);
  EXPECT_EQ(store->layers()[2].pages, 100);
  EXPECT_EQ(store->layers()[1].keys - store->layers()[0].keys, 2 * 20 * 16 * 2 * 64 * 2) << "keys and values";
  EXPECT_EQ(kv_page_bytes(config, DType::bf16, 16, full_pages), 2 * 16 * 2 * 2 * 64 * 2) << "of two layers";
  EXPECT_EQ(kv_page_bytes(config, DType::bf16, 16, window_pages), 16 * 2 * 2 * 64 * 2);
}

TEST(KvStore, ALatentIsOneVectorAPosition) {
  ModelConfig config = config_of({full, full});
  for (LayerDescription& layer : config.layers) layer.mixer = Mixer::latent;
  config.latent = {.rank = 48, .plain_dim = 8, .rotated_dim = 16, .value_dim = 8};
  const auto store = KvStore::allocate(config, DType::bf16, 16, {10, 0});
  ASSERT_TRUE(store.ok());
  EXPECT_EQ(kv_page_bytes(config, DType::bf16, 16, full_pages), 2 * 16 * 64 * 2) << "of two layers";
  EXPECT_EQ(store->latents()[0].width(), 64);
  EXPECT_EQ(store->latents()[1].vectors - store->latents()[0].vectors, 10 * 16 * 64 * 2);
  EXPECT_EQ(store->layers()[0].keys, nullptr);
}

TEST(KvStore, AModelWithOneKindOfLayersHasOneGroup) {
  for (const std::int64_t type : {slides, full}) {
    const ModelConfig config = config_of({type, type});
    EXPECT_EQ(page_window(config), 0);
    EXPECT_EQ(kv_page_bytes(config, DType::f32, 16, window_pages), 0);
  }
}

}  // namespace
}  // namespace nibble
