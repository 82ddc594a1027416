// Formats that weights are stored in, and what a checkpoint's configuration says of them. A format is a
// tensor's, not a model's: a scheme names one format, modules that it leaves alone, and modules that have
// another.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/status.h"
#include "checkpoint/config_fields.h"

namespace nibble {

// How one module's weights are stored, by the tensors beside its name X.
enum class TensorFormat : std::uint8_t {
  bf16,          // X.weight
  mxfp4_blocks,  // gpt-oss's experts, all in one: X_blocks u8 [.., cols / 32, 16], X_scales u8 [.., cols /
                 // 32]
  mxfp4_packed,  // X.weight_packed u8 [rows, cols / 2], X.weight_scale u8 [rows, cols / 32]
  fp8_block,     // X.weight f8_e4m3, X.weight_scale_inv f32 or bf16 a tile of 128 x 128; value = code * scale
  nvfp4,         // ModelOpt: X.weight u8 [rows, cols / 2], X.weight_scale f8_e4m3 [rows, cols / 16],
                 // X.weight_scale_2 f32; value = code * scale * scale_2
  nvfp4_packed,  // compressed-tensors: X.weight_packed, X.weight_scale, X.weight_global_scale f32;
                 // value = code * scale / global scale
  int4_packed,   // compressed-tensors' pack-quantized: X.weight_packed i32 [rows, cols / 8], eight codes a
                 // word from the low bits on, X.weight_scale bf16 [rows, cols / 32]; value = (code - 8) *
                 // scale
};
std::string_view tensor_format_name(TensorFormat format);
// Columns that share a scale and must be whole; 1 where any number of columns will do.
std::int64_t block_columns(TensorFormat format);

struct QuantizationScheme {
  std::string method;  // "mxfp4", "fp8", "modelopt", "compressed-tensors"; empty: none
  TensorFormat format = TensorFormat::bf16;
  std::vector<std::string> exclude;                           // patterns of modules that stay as they are
  std::vector<std::pair<std::string, TensorFormat>> modules;  // those with formats of their own, by name

  // Of a module that the architecture allows to be quantized.
  TensorFormat format_of(std::string_view module) const;
  // Whether experts of a layer could have different formats by what is said.
  bool tells_experts_apart() const;
  // From now on these modules have these formats.
  void set_formats(std::vector<std::pair<std::string, TensorFormat>> formats);
};

// quantization_config of config.json or the object of hf_quant_config.json. What is not known is refused by
// its name, with what would work.
Result<QuantizationScheme> read_quantization(const ConfigFields& fields);

}  // namespace nibble
