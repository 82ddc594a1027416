#include "checkpoint/model_location.h"

#include <sys/auxv.h>

#include <algorithm>
#include <optional>
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

// How to get a model that is not there, or not whole.
std::string how_to_get(const HubName& model, const LocationEnvironment& environment) {
  return "; get it with \"nibble pull " + model.text() + "\"" +
         (environment.hf_hub_offline ? " (with HF_HUB_OFFLINE unset)" : "") + ", or give a directory";
}

// The snapshot of a revision: a commit's own folder, or the one that the reference of this name holds. Where
// the cache has no refs/main and none was asked for, its only snapshot.
Result<fs::path> find_snapshot(const RepositoryPaths& paths, const HubName& model, const std::string& get) {
  if (is_commit(model.revision)) return paths.snapshots / model.revision;
  const fs::path reference = paths.refs / model.revision;
  if (is_there(reference)) {
    NIBBLE_ASSIGN(std::string commit, read_text_file(reference, 256));
    while (!commit.empty() && (commit.back() == '\n' || commit.back() == '\r')) commit.pop_back();
    const bool hexadecimal = !commit.empty() && std::all_of(commit.begin(), commit.end(), [](char c) {
      return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f');
    });
    if (!hexadecimal)
      return broken_model(quote(reference.native()) + " holds " + quote(commit) + ", not a commit");
    return paths.snapshots / commit;
  }
  if (model.revision_given)
    return not_found("the cache has no revision " + quote(model.revision) + " of " + quote(model.name) + get);
  std::vector<fs::path> snapshots;
  std::error_code error;
  for (fs::directory_iterator entry(paths.snapshots, error), end; !error && entry != end;
       entry.increment(error)) {
    snapshots.push_back(entry->path());
  }
  if (snapshots.size() == 1) return snapshots.front();
  if (snapshots.empty())
    return not_found("the download of " + quote(model.name) + " is incomplete: there is no snapshot in " +
                     quote(paths.folder.native()) + get);
  return not_found("the cache of " + quote(model.name) + " at " + quote(paths.folder.native()) +
                   " has no refs/main and " + std::to_string(snapshots.size()) +
                   " snapshots; give the folder of a snapshot as MODEL");
}

Result<ModelLocation> locate_in_cache(const HubName& model, const LocationEnvironment& environment) {
  const std::string get = how_to_get(model, environment);
  const std::optional<fs::path> cache = hub_cache(environment);
  if (!cache) {
    return not_found(
        "there is no model " + quote(model.name) +
        " here, and no Hugging Face cache to look in: none of HF_HUB_CACHE, HF_HOME, XDG_CACHE_HOME "
        "and HOME is set; set one, or give a directory");
  }
  const RepositoryPaths paths(*cache, model.name);
  if (!is_folder(paths.folder)) {
    return not_found("model " + quote(model.name) + " is neither a directory nor in the Hugging Face cache " +
                     quote(cache->native()) + get);
  }
  NIBBLE_ASSIGN(const fs::path snapshot, find_snapshot(paths, model, get));
  if (!is_there(snapshot / "config.json")) {
    return not_found("the download of " + quote(model.name) + " is incomplete: there is no config.json in " +
                     quote(snapshot.native()) + get);
  }
  return ModelLocation{.folder = snapshot, .name = model.text()};
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
  static_cast<HubEnvironment&>(environment) = HubEnvironment::of_this_process();
  std::error_code ignored;
  environment.executable = fs::read_symlink("/proc/self/exe", ignored);
  if (environment.executable.empty()) {  // where no /proc is mounted: as it was started
    const auto* const path = reinterpret_cast<const char*>(getauxval(AT_EXECFN));
    if (path != nullptr) environment.executable = fs::absolute(path, ignored);
  }
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
  if (const std::optional<HubName> name = parse_hub_name(model)) return locate_in_cache(*name, environment);
  return not_found(
      "there is no model at " + quote(model) +
      "; MODEL is a directory, a name in the local Hugging Face cache such as openai/gpt-oss-20b, or "
      "demo");
}

}  // namespace nibble
