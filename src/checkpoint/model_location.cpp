#include "checkpoint/model_location.h"

#include <algorithm>
#include <cstdlib>
#include <system_error>
#include <vector>

#include "base/quote.h"
#include "checkpoint/text_file.h"

namespace nibble {
namespace {

namespace fs = std::filesystem;

bool is_folder(const fs::path& path) {
  std::error_code ignored;
  return fs::is_directory(path, ignored);
}

bool is_there(const fs::path& path) {
  std::error_code ignored;
  return fs::exists(path, ignored);
}

std::optional<std::string> variable(const char* name) {
  const char* value = std::getenv(name);
  if (value == nullptr || *value == '\0') return std::nullopt;
  return value;
}

// The values huggingface_hub takes as true.
bool is_true(std::string value) {
  std::transform(value.begin(), value.end(), value.begin(),
                 [](char c) { return c >= 'a' && c <= 'z' ? static_cast<char>(c - 'a' + 'A') : c; });
  return value == "1" || value == "ON" || value == "YES" || value == "TRUE";
}

// "~" and "~/x" as huggingface_hub expands them.
fs::path expand_home(const std::string& path, const LocationEnvironment& environment) {
  if (path.starts_with("~") && environment.home && (path.size() == 1 || path[1] == '/')) {
    return fs::path(*environment.home + path.substr(1));
  }
  return path;
}

std::optional<fs::path> hub_cache(const LocationEnvironment& environment) {
  for (const std::optional<std::string>* direct :
       {&environment.hf_hub_cache, &environment.huggingface_hub_cache}) {
    if (*direct) return expand_home(**direct, environment);
  }
  if (environment.hf_home) return expand_home(*environment.hf_home, environment) / "hub";
  if (environment.xdg_cache_home)
    return expand_home(*environment.xdg_cache_home, environment) / "huggingface" / "hub";
  if (environment.home) return fs::path(*environment.home) / ".cache" / "huggingface" / "hub";
  return std::nullopt;
}

// "org/name" in the characters the hub allows: no path can hide in it.
bool is_hub_name(std::string_view model) {
  const std::size_t slash = model.find('/');
  if (slash == model.npos || model.find('/', slash + 1) != model.npos) return false;
  for (const std::string_view part : {model.substr(0, slash), model.substr(slash + 1)}) {
    const bool plain = std::all_of(part.begin(), part.end(), [](char c) {
      return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' ||
             c == '_' || c == '.';
    });
    if (part.empty() || !plain || part == "." || part == "..") return false;
  }
  return true;
}

// The snapshot that refs/main names; where the cache has no refs/main, its only snapshot.
Result<fs::path> find_snapshot(const fs::path& repository, std::string_view model) {
  const fs::path reference = repository / "refs" / "main";
  if (is_there(reference)) {
    NIBBLE_ASSIGN(std::string commit, read_text_file(reference, 256));
    while (!commit.empty() && (commit.back() == '\n' || commit.back() == '\r')) commit.pop_back();
    const bool hexadecimal = !commit.empty() && std::all_of(commit.begin(), commit.end(), [](char c) {
      return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f');
    });
    if (!hexadecimal)
      return broken_model(quote(reference.native()) + " holds " + quote(commit) + ", not a commit");
    return repository / "snapshots" / commit;
  }
  std::vector<fs::path> snapshots;
  std::error_code error;
  for (fs::directory_iterator entry(repository / "snapshots", error), end; !error && entry != end;
       entry.increment(error)) {
    snapshots.push_back(entry->path());
  }
  if (snapshots.size() == 1) return snapshots.front();
  return not_found("the cache of " + quote(model) + " at " + quote(repository.native()) +
                   " has no refs/main and " + std::to_string(snapshots.size()) +
                   " snapshots; give the folder of a snapshot as MODEL");
}

Result<ModelLocation> locate_in_cache(std::string_view model, const LocationEnvironment& environment) {
  const std::string download = "; nibble never downloads: get it with \"hf download " + std::string(model) +
                               "\"" + (environment.hf_hub_offline ? " (with HF_HUB_OFFLINE unset)" : "") +
                               ", or give a directory";
  const std::optional<fs::path> cache = hub_cache(environment);
  if (!cache) {
    return not_found(
        "there is no model " + quote(model) +
        " here, and no Hugging Face cache to look in: none of HF_HUB_CACHE, HF_HOME, XDG_CACHE_HOME "
        "and HOME is set" +
        download);
  }
  std::string folder = "models--" + std::string(model);
  folder.replace(folder.find('/'), 1, "--");
  const fs::path repository = *cache / folder;
  if (!is_folder(repository)) {
    return not_found("model " + quote(model) + " is neither a directory nor in the Hugging Face cache " +
                     quote(cache->native()) + download);
  }
  NIBBLE_ASSIGN(const fs::path snapshot, find_snapshot(repository, model));
  if (!is_there(snapshot / "config.json")) {
    return not_found("the download of " + quote(model) + " is incomplete: there is no config.json in " +
                     quote(snapshot.native()) + download);
  }
  return ModelLocation{.folder = snapshot, .name = std::string(model)};
}

Result<ModelLocation> locate_demo(const LocationEnvironment& environment) {
  const fs::path folder = environment.executable.parent_path();
  const std::vector<fs::path> places = {folder / "models" / "demo",
                                        folder / ".." / "share" / "nibble" / "models" / "demo",
                                        folder / ".." / ".." / "models" / "demo"};
  std::string tried;
  for (const fs::path& place : places) {
    const fs::path plain = place.lexically_normal();
    if (is_there(plain / "config.json")) return ModelLocation{.folder = plain, .name = "demo"};
    tried += (tried.empty() ? "" : ", ") + quote(plain.native());
  }
  return not_found("the bundled model is in none of " + tried +
                   "; run nibble from its build or installation folder, or give the model's directory");
}

}  // namespace

LocationEnvironment LocationEnvironment::of_this_process() {
  LocationEnvironment environment;
  environment.hf_hub_cache = variable("HF_HUB_CACHE");
  environment.huggingface_hub_cache = variable("HUGGINGFACE_HUB_CACHE");
  environment.hf_home = variable("HF_HOME");
  environment.xdg_cache_home = variable("XDG_CACHE_HOME");
  environment.home = variable("HOME");
  environment.hf_hub_offline = is_true(variable("HF_HUB_OFFLINE").value_or(""));
  std::error_code ignored;
  environment.executable = fs::read_symlink("/proc/self/exe", ignored);
  return environment;
}

Result<ModelLocation> locate_model(std::string_view model, const LocationEnvironment& environment) {
  if (model == "demo") return locate_demo(environment);
  const fs::path path(model);
  if (is_folder(path)) {
    std::error_code ignored;
    const fs::path full = fs::canonical(path, ignored);
    return ModelLocation{.folder = path, .name = full.filename().native()};
  }
  if (is_there(path)) {
    return invalid_argument(quote(model) +
                            " is a file; MODEL is the folder that holds config.json and the weights");
  }
  if (is_hub_name(model)) return locate_in_cache(model, environment);
  return not_found(
      "there is no model at " + quote(model) +
      "; MODEL is a directory, a name in the local Hugging Face cache such as openai/gpt-oss-20b, or "
      "demo");
}

}  // namespace nibble
