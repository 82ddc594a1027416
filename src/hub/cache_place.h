// Where the Hugging Face cache lies, and where in it a repository's files lie. The layout is
// huggingface_hub's:
//
//   <cache>/models--org--name/blobs/<name>                   contents: sha256 of large files, git's id of
//   small ones
//                             snapshots/<commit>/<file>      relative links to blobs
//                             refs/<branch or tag>           the commit it named when it was last pulled
//   <cache>/.locks/models--org--name/<blob's name>.lock      held (flock) by whoever downloads that blob
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

#include "base/status.h"

namespace nibble {

// The variables that the cache's place depends on. An empty one counts as unset.
struct HubEnvironment {
  std::optional<std::string> hf_hub_cache;           // HF_HUB_CACHE: the cache itself
  std::optional<std::string> huggingface_hub_cache;  // HUGGINGFACE_HUB_CACHE: its older name
  std::optional<std::string> hf_home;                // HF_HOME: the cache is its folder "hub"
  std::optional<std::string> xdg_cache_home;         // XDG_CACHE_HOME: HF_HOME is its "huggingface"
  std::optional<std::string> home;                   // HOME: XDG_CACHE_HOME is its ".cache"
  bool hf_hub_offline = false;  // HF_HUB_OFFLINE, or else TRANSFORMERS_OFFLINE: 1, on, yes or true

  static HubEnvironment of_this_process();
};

// The value of a variable of this process; nothing where it is unset or empty.
std::optional<std::string> variable(const char* name);
// The values that huggingface_hub takes as true: 1, on, yes and true, in any case.
bool is_true(std::string_view value);

// Nothing where none of the variables is set.
std::optional<std::filesystem::path> hub_home(const HubEnvironment& environment);
std::optional<std::filesystem::path> hub_cache(const HubEnvironment& environment);
// The same, or the error that names the variables.
Result<std::filesystem::path> required_hub_cache(const HubEnvironment& environment);

// A model as the command line has it: "org/name" or "org/name@revision".
struct HubName {
  std::string name;
  std::string revision = "main";  // a branch, a tag or a commit
  bool revision_given = false;

  std::string text() const { return revision_given ? name + "@" + revision : name; }
};

// Nothing where the text cannot be one. The characters are those the hub allows, so no path can hide in it.
std::optional<HubName> parse_hub_name(std::string_view text);
// The same, or the error that says what one looks like.
Result<HubName> read_hub_name(std::string_view text);

// 40 hexadecimal digits in lower case.
bool is_commit(std::string_view text);

// The folders of one repository.
struct RepositoryPaths {
  std::filesystem::path folder;  // <cache>/models--org--name
  std::filesystem::path blobs;
  std::filesystem::path refs;
  std::filesystem::path snapshots;
  std::filesystem::path locks;  // <cache>/.locks/models--org--name

  RepositoryPaths(const std::filesystem::path& cache, std::string_view name);
};

// The file that a pull of the repository locks, so that two take turns, and a removal waits for neither.
std::filesystem::path pull_lock(const RepositoryPaths& paths);

// "org/name" of a folder's name "models--org--name"; nothing where it is no model's.
std::optional<std::string> name_of_folder(std::string_view folder);

}  // namespace nibble
