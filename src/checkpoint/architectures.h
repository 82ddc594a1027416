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
std::string_view left_alone_by_qwen3_next(std::string_view tensor);

}  // namespace nibble
