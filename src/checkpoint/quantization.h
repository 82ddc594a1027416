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
#include "checkpoint/name_expression.h"

namespace nibble {

// How one module's weights are stored, by the tensors beside its name X.
enum class TensorFormat : std::uint8_t {
  bf16,          // X.weight
  mxfp4_blocks,  // gpt-oss's experts, all in one: X_blocks u8 [.., cols / 32, 16], X_scales u8 [.., cols /
                 // 32]
  mxfp4_packed,  // X.weight_packed u8 [rows, cols / 2], X.weight_scale u8 [rows, cols / 32]
  fp8_block,     // X.weight f8_e4m3, and f32 or bf16 a tile of 128 x 128 (Fp8Scales); value = code * scale
  fp8_row,       // X.weight f8_e4m3, X.weight_scale f32 or bf16 [rows, 1] or [rows]; value = code * scale
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

// What the scales of fp8_block are called, and their shape.
enum class Fp8Scales : std::uint8_t {
  inverse,  // X.weight_scale_inv [tiles of rows, tiles of columns]
  plain,    // compressed-tensors: X.weight_scale, the same shape
  either,   // ModelOpt: X.weight_scale [tiles of rows, 1, tiles of columns, 1], or one of those above
  single,   // both: X.weight_scale [] or [1], of all tiles
};

struct ModuleFormat {
  TensorFormat format = TensorFormat::bf16;
  Fp8Scales fp8_scales = Fp8Scales::inverse;
  bool operator==(const ModuleFormat&) const = default;
};

struct QuantizationScheme {
  std::string method;  // "mxfp4", "fp8", "modelopt", "compressed-tensors"; empty: none
  // Of modules that nothing else is said of.
  TensorFormat format = TensorFormat::bf16;
  Fp8Scales fp8_scales = Fp8Scales::inverse;
  // Of modules that stay as they are: patterns on their names or on those of modules that they are in, and
  // expressions.
  std::vector<std::string> exclude;
  std::vector<NameExpression> exclude_expressions;
  // Those with formats of their own, by name; the expressions of modules that have formats of their own
  // behind them.
  std::vector<std::pair<std::string, ModuleFormat>> modules;
  bool names_hold = false;  // a name among them stands for all modules in that one
  std::vector<std::pair<NameExpression, ModuleFormat>> expressions;

  // Of a module that the architecture allows to be quantized: what is said of its name, else whether it stays
  // as it is, else what is said of a module that it is in or by an expression, else what is said of all.
  ModuleFormat format_of(std::string_view module) const;
  // That no two expressions say different things of a module of which nothing goes before them.
  Status check_claims(const std::string& module) const;
  bool excludes(std::string_view module) const;
  // Whether experts of a layer could have different formats by what is said.
  bool tells_experts_apart() const;
  // From now on these modules have these formats.
  void set_formats(std::vector<std::pair<std::string, ModuleFormat>> formats);

 private:
  // Null where nothing is said of its name; of a module that it is in, the nearest.
  const ModuleFormat* own_format(std::string_view module) const;
  const ModuleFormat* format_around(std::string_view module) const;
};

// quantization_config of config.json or the object of hf_quant_config.json. What is not known is refused by
// its name, with what would work.
Result<QuantizationScheme> read_quantization(const ConfigFields& fields);

}  // namespace nibble
