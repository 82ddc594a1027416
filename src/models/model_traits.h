// A model's traits for planning, from its config.json alone.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

#include "base/status.h"
#include "checkpoint/model_config.h"
#include "plan/model_traits.h"

namespace nibble {

// Of a model that the engine reads.
Result<ModelTraits> traits_of(const ModelConfig& config, std::string name);

// Of a folder with a config.json.
Result<ModelTraits> read_model_traits(const std::filesystem::path& folder, std::string name);

}  // namespace nibble
