// Where the files of a MODEL argument lie: a directory, a name in the local Hugging Face cache
// ("openai/gpt-oss-20b"), or "demo", the model that comes with nibble. nibble never downloads.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

#include "base/status.h"

namespace nibble {

// What the search depends on outside its argument. An empty variable counts as unset.
struct LocationEnvironment {
  std::optional<std::string> hf_hub_cache;           // HF_HUB_CACHE: the cache itself
  std::optional<std::string> huggingface_hub_cache;  // HUGGINGFACE_HUB_CACHE: its older name
  std::optional<std::string> hf_home;                // HF_HOME: the cache is its folder "hub"
  std::optional<std::string> xdg_cache_home;         // XDG_CACHE_HOME: HF_HOME is its "huggingface"
  std::optional<std::string> home;                   // HOME: XDG_CACHE_HOME is its ".cache"
  bool hf_hub_offline = false;                       // HF_HUB_OFFLINE: 1, on, yes or true
  std::filesystem::path executable;                  // of this program, symbolic links resolved

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
