// Sampling as a user asks for it: on the command line, or in a line of a prompts file. Both are held to the
// same ranges, and what is out of range is refused by name.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "base/options.h"
#include "core/request.h"

namespace nibble {

struct GenerationParams {
  SamplingParams sampling;  // stop_ids are those beside the model's own
  std::vector<std::string> stop;
  bool ignore_eos = false;
};

// temperature 0.7: what a small model's text needs to stay together.
GenerationParams default_generation_params();

// --temperature, --top-p, --top-k, --min-p, --stop. The target outlives the rows.
std::vector<OptionSpec> sampling_option_specs(GenerationParams& params);

// Whether a JSON member of this name is a sampling parameter; then it is read into `params`.
Result<bool> read_sampling_member(std::string_view name, JsonValue value, GenerationParams& params);

// The names that read_sampling_member knows, for messages.
std::string sampling_member_names();

}  // namespace nibble
