// What a plan knows of a model: shapes, formats and what each part of its weights takes. Read from
// config.json alone (models/model_traits.h), so a plan needs no weights.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "ops/gated_delta/delta_state.h"
#include "tensor/dtype.h"

namespace nibble {

enum class StoredFormat : std::uint8_t { bf16, mxfp4, nvfp4, fp8_block, fp8_row, int4 };
std::string_view stored_format_name(StoredFormat format);
constexpr bool is_fp8(StoredFormat format) {
  return format == StoredFormat::fp8_block || format == StoredFormat::fp8_row;
}

// When weights are read.
enum class WeightUse : std::uint8_t {
  every_token,  // each step, whatever its tokens
  by_expert,    // the experts that the router chose
  one_row,      // a row a token: the embedding
  last_token,   // each step, for the rows whose logits are wanted: lm_head
};

// How ranks of a CPU divide a matrix. Heads of keys are whole, so ranks may have the same ones.
enum class MatrixCut : std::uint8_t { rows, kv_heads, none };

// Matrices of one shape that --quantization brings into fewer bits.
struct ConvertibleMatrices {
  std::int64_t rows = 0, cols = 0;
  MatrixCut cut = MatrixCut::rows;
  std::int64_t count = 0;

  std::int64_t values() const { return count * rows * cols; }
  bool operator==(const ConvertibleMatrices&) const = default;
};

// What --quantization leaves as it is stored, and why; literals.
struct StoredMatrices {
  std::string_view name, why;
  bool operator==(const StoredMatrices&) const = default;
};

struct WeightGroup {
  std::string_view name;    // "attention", "experts"; a literal
  std::int64_t values = 0;  // weights, of all layers together
  std::int64_t bytes = 0;   // as stored, with scales and biases
  WeightUse use = WeightUse::every_token;
  bool split = true;  // over the ranks; else each rank holds all of it
  std::vector<ConvertibleMatrices> convertible;

  std::int64_t convertible_values() const {
    std::int64_t sum = 0;
    for (const ConvertibleMatrices& each : convertible) sum += each.values();
    return sum;
  }
  bool operator==(const WeightGroup&) const = default;
};

enum class AttentionKind : std::uint8_t {
  grouped,
  latent
};  // keys and values by head; one latent vector (MLA)

// Of latent attention: queries through one bottleneck, keys and values through another.
struct LatentTraits {
  std::int64_t query_rank = 0;  // 0: queries have none
  std::int64_t rank = 0;
  std::int64_t rotated_dim = 0;  // of the key that all heads share

  std::int64_t width() const { return rank + rotated_dim; }  // of a position's vector
  bool operator==(const LatentTraits&) const = default;
};

struct ModelTraits {
  std::string name;
  std::string architecture;
  bool runs = false;  // the engine has this architecture
  DType dtype = DType::bf16;
  std::int64_t layers = 0;
  std::int64_t hidden = 0;
  std::int64_t vocabulary = 0;
  std::int64_t max_positions = 0;
  bool tied = false;  // the embedding is lm_head as well

  AttentionKind attention = AttentionKind::grouped;
  std::int64_t full_layers = 0;    // that see the whole context
  std::int64_t window_layers = 0;  // that see `window` positions
  std::int64_t window = 0;
  std::int64_t linear_layers = 0;  // with a state instead (Gated DeltaNet)
  std::int64_t heads = 0;
  std::int64_t kv_heads = 0;
  std::int64_t query_dim = 0;       // of one head: what a score sums over
  std::int64_t value_dim = 0;       // of one head
  bool normed_heads = false;        // q and k, each head by itself
  bool gated_heads = false;         // each head's queries have a gate beside them
  std::int64_t kv_values = 0;       // of one position in one layer with keys and values
  LatentTraits latent;              // where attention is latent
  DeltaShape delta;                 // of the linear layers
  std::int64_t snapshot_bytes = 0;  // of a sequence at a border of its chunks, over all linear layers
  std::int64_t state_token_bytes =
      0;                          // of a state, what a token reads and writes, in the mean over positions
  std::int64_t linear_flops = 0;  // of one token in the state's recurrence, over all linear layers

  std::int64_t experts = 0;  // of one layer; 0: none
  std::int64_t experts_per_token = 0;
  std::int64_t expert_width = 0;
  std::int64_t expert_layers = 0;
  std::int64_t shared_width = 0;  // of an expert that every token visits; 0: none
  std::int64_t dense_width = 0;   // of layers with one feed-forward instead; 0: none
  StoredFormat expert_format = StoredFormat::bf16;
  StoredFormat dense_format = StoredFormat::bf16;

  std::vector<WeightGroup> weights;
  std::vector<StoredMatrices> as_stored;
  // Of those that ranks divide, what each of several GPUs has whole all the same: the embedding, what mixers'
  // outputs and dense layers' inner values are multiplied by, what leads to latents, and shared experts.
  std::int64_t whole_on_gpus = 0;

  std::int64_t weight_bytes() const {
    std::int64_t bytes = 0;
    for (const WeightGroup& group : weights) bytes += group.bytes;
    return bytes;
  }
  bool is_convertible() const {
    for (const WeightGroup& group : weights) {
      if (!group.convertible.empty()) return true;
    }
    return false;
  }
  std::int64_t attention_layers() const { return full_layers + window_layers; }
  bool operator==(const ModelTraits&) const = default;
};

}  // namespace nibble
