// One parse function an architecture, from config.json's fields; model_config.cpp lists them. The eos ids
// and the architecture's name are filled in by the caller.
#pragma once

#include "base/status.h"
#include "checkpoint/config_fields.h"
#include "checkpoint/model_config.h"

namespace nibble {

Result<ModelConfig> parse_gpt_oss_config(const ConfigFields& fields);

}  // namespace nibble
