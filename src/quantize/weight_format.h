// The formats that a checkpoint can be quantized to, as what others read: which tensors a matrix becomes, and
// what config.json says of them.
//
//   mxfp4      gpt-oss: X_blocks u8 [experts, rows, cols / 32, 16], X_scales u8 [experts, rows, cols / 32];
//              elsewhere compressed-tensors' mxfp4-pack-quantized: X.weight_packed u8 [rows, cols / 2],
//              X.weight_scale u8 [rows, cols / 32]
//   nvfp4      compressed-tensors' nvfp4-pack-quantized, weights alone: X.weight_packed u8 [rows, cols / 2],
//              X.weight_scale f8_e4m3 [rows, cols / 16], X.weight_global_scale f32 [1]
//   fp8_block  DeepSeek's: X.weight f8_e4m3 [rows, cols], X.weight_scale_inv f32 [rows / 128, cols / 128]
//              rounded up; beside another format compressed-tensors' float-quantized, which calls its scales
//              X.weight_scale
//   mxfp8      compressed-tensors' mxfp8-quantized, weights alone: X.weight f8_e4m3 [rows, cols],
//              X.weight_scale u8 [rows, cols / 32]
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "formats/mxfp4.h"
#include "tensor/dtype.h"
#include "tensor/shape.h"

namespace nibble {

enum class WeightFormat : std::uint8_t { mxfp4, nvfp4, fp8_block, mxfp8 };

std::string_view weight_format_name(WeightFormat format);

// Columns must be a multiple of this; 1 where any number will do.
std::int64_t column_multiple(WeightFormat format);
// Rows that are encoded together: a band of tiles, or one.
std::int64_t rows_together(WeightFormat format);

// Of `rows` rows, a multiple of rows_together or the last ones of a matrix.
std::int64_t code_bytes(WeightFormat format, std::int64_t rows, std::int64_t cols);
std::int64_t scale_bytes_of(WeightFormat format, std::int64_t rows, std::int64_t cols);

// What a tensor that is made of one matrix is called behind the module's name, and looks like.
struct MatrixPart {
  std::string_view suffix;
  DType dtype = DType::u8;
  Shape shape;
};
MatrixPart codes_part(WeightFormat format, std::int64_t rows, std::int64_t cols);
MatrixPart scales_part(WeightFormat format, std::int64_t rows, std::int64_t cols);

// The value of config.json's quantization_config. `kept` are the modules that could have been converted and
// were not, by name; gpt_oss_experts means the fused tensors of gpt-oss in mxfp4.
std::string quantization_config(WeightFormat format, bool gpt_oss_experts,
                                const std::vector<std::string>& kept);
// The same where experts are in one format and all else that was converted is in another.
std::string mixed_quantization_config(WeightFormat experts, WeightFormat rest,
                                      const std::vector<std::string>& kept);

}  // namespace nibble
