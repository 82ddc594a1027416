// What architecture.cpp lists: an architecture's reader and its weights.
#pragma once

#include "checkpoint/architecture.h"

namespace nibble {

Result<ModelConfig> parse_gpt_oss_config(const ConfigFields& fields, QuantizationScheme quantization);
void visit_gpt_oss_weights(const ModelConfig& config, const VisitWeight& visit);

Result<ModelConfig> parse_qwen3_moe_config(const ConfigFields& fields, QuantizationScheme quantization);
void visit_qwen3_moe_weights(const ModelConfig& config, const VisitWeight& visit);

Result<ModelConfig> parse_qwen3_next_config(const ConfigFields& fields, QuantizationScheme quantization);
Result<ModelConfig> parse_qwen3_5_moe_config(const ConfigFields& fields, QuantizationScheme quantization);
void visit_qwen3_next_weights(const ModelConfig& config, const VisitWeight& visit);
std::string_view left_alone_by_qwen3_next(const ModelConfig& config, std::string_view tensor);

Result<ModelConfig> parse_deepseek_v3_config(const ConfigFields& fields, QuantizationScheme quantization);
Result<ModelConfig> parse_qwen3_5_config(const ConfigFields& fields, QuantizationScheme quantization);
Result<ModelConfig> parse_kimi_k2_5_config(const ConfigFields& fields, QuantizationScheme quantization);
void visit_deepseek_v3_weights(const ModelConfig& config, const VisitWeight& visit);
std::string_view left_alone_by_deepseek_v3(const ModelConfig& config, std::string_view tensor);

}  // namespace nibble
