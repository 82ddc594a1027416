// Where the files of a MODEL argument lie: a directory, a name in the local Hugging Face cache
// ("openai/gpt-oss-20b", or with a revision "openai/gpt-oss-20b@main"), or "demo", the model that comes with
// nibble. Nothing is downloaded here; `nibble pull` does that.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

#include "base/status.h"
#include "hub/cache_place.h"

namespace nibble {

// What the search depends on outside its argument.
struct LocationEnvironment : HubEnvironment {
  std::filesystem::path executable;  // of this program, symbolic links resolved

  static LocationEnvironment of_this_process();
};

struct ModelLocation {
  std::filesystem::path folder;
  std::string name;  // what a user calls the model: the cache's name, "demo", or the directory's own name
};

// The bundled model is looked for, in this order, in models/demo beside the program (a bundle), in
// ../share/nibble/models/demo (an installed bin/nibble) and in ../../models/demo (build/release/nibble in a
// source tree), all relative to the program's folder.
Result<ModelLocation> locate_model(std::string_view model, const LocationEnvironment& environment);

}  // namespace nibble
