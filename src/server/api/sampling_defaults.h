// How a request is sampled that does not say so: as the model's makers write in generation_config.json.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "base/status.h"
#include "server/api/generation_request.h"

namespace nibble::api {

struct SamplingDefaults {
  std::optional<double> temperature, top_p, min_p, repetition_penalty;
  std::optional<int> top_k;

  // What the client did not set.
  void fill(Sampling& asked) const;
  // "temperature 0.6, top_p 0.95"; empty where there are none.
  std::string text() const;
};

// None where the folder has no such file. A value that a request could not have is refused by its name. Only
// these five fields count: do_sample does not, for a client of this API asks for greedy answers by
// temperature 0.
Result<SamplingDefaults> read_sampling_defaults(const std::filesystem::path& folder);

}  // namespace nibble::api
