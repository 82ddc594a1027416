// What quantization.cpp takes from the readers of those who write configs, and they from it.
#pragma once

#include <cstdint>
#include <string_view>

#include "checkpoint/quantization.h"

namespace nibble {

inline constexpr std::int64_t most_module_names = 1 << 16;

// A list of names, patterns and expressions of modules that stay as they are; none where there is no list.
Status read_exclusions(const ConfigFields& fields, std::string_view name, QuantizationScheme& scheme);

// `config_groups` or a format for all.
Status read_compressed_tensors(const ConfigFields& fields, QuantizationScheme& scheme);
// Two spellings: hf_quant_config.json has the fields in `quantization`, config.json has them flat.
Status read_modelopt(const ConfigFields& fields, QuantizationScheme& scheme);

}  // namespace nibble
