#include "hub/cache_place.h"

#include <algorithm>
#include <cstdlib>

#include "base/quote.h"

namespace nibble {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kFolderPrefix = "models--";
constexpr std::size_t kMostName = 96;
constexpr std::size_t kMostRevision = 200;

bool is_word(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
}

// "$NAME" and "${NAME}" of variables that are set, as Python's os.path.expandvars does.
std::string expand_variables(const std::string& text) {
  std::string expanded;
  std::size_t at = 0;
  while (at < text.size()) {
    const bool braced = text[at] == '$' && at + 1 < text.size() && text[at + 1] == '{';
    const std::size_t begin = at + (braced ? 2 : 1);
    std::size_t end = begin;
    if (text[at] == '$')
      while (end < text.size() && (braced ? text[end] != '}' : is_word(text[end]))) ++end;
    const bool whole = text[at] == '$' && end > begin && (!braced || end < text.size());
    const char* const value = whole ? std::getenv(text.substr(begin, end - begin).c_str()) : nullptr;
    if (value == nullptr) {
      expanded += text[at++];
    } else {
      expanded += value;
      at = end + (braced ? 1 : 0);
    }
  }
  return expanded;
}

fs::path expand(const std::string& path, const HubEnvironment& environment) {
  if (path.starts_with("~") && environment.home && (path.size() == 1 || path[1] == '/'))
    return expand_variables(*environment.home + path.substr(1));
  return expand_variables(path);
}

bool is_name_part(std::string_view part) {
  const bool plain =
      std::all_of(part.begin(), part.end(), [](char c) { return is_word(c) || c == '-' || c == '.'; });
  return plain && !part.empty() && part.front() != '.' && part.front() != '-' && part.back() != '.' &&
         part.back() != '-' && part.find("--") == part.npos && part.find("..") == part.npos;
}

// What git allows, less the characters that a shell or a URL reads otherwise.
bool is_revision(std::string_view revision) {
  const bool plain = std::all_of(revision.begin(), revision.end(), [](char c) {
    return is_word(c) || c == '-' || c == '.' || c == '/' || c == '+';
  });
  if (!plain || revision.empty() || revision.size() > kMostRevision || revision.front() == '-') return false;
  std::size_t at = 0;
  while (at <= revision.size()) {
    const std::size_t end = std::min(revision.find('/', at), revision.size());
    const std::string_view part = revision.substr(at, end - at);
    if (part.empty() || part.front() == '.' || part.ends_with(".lock") || part.find("..") != part.npos)
      return false;
    at = end + 1;
  }
  return true;
}

}  // namespace

std::optional<std::string> variable(const char* name) {
  const char* value = std::getenv(name);
  if (value == nullptr || *value == '\0') return std::nullopt;
  return value;
}

bool is_true(std::string_view value) {
  std::string upper(value);
  for (char& c : upper)
    if (c >= 'a' && c <= 'z') c = static_cast<char>(c - 'a' + 'A');
  return upper == "1" || upper == "ON" || upper == "YES" || upper == "TRUE";
}

HubEnvironment HubEnvironment::of_this_process() {
  HubEnvironment environment;
  environment.hf_hub_cache = variable("HF_HUB_CACHE");
  environment.huggingface_hub_cache = variable("HUGGINGFACE_HUB_CACHE");
  environment.hf_home = variable("HF_HOME");
  environment.xdg_cache_home = variable("XDG_CACHE_HOME");
  environment.home = variable("HOME");
  const std::optional<std::string> offline = variable("HF_HUB_OFFLINE");
  environment.hf_hub_offline = is_true(offline ? *offline : variable("TRANSFORMERS_OFFLINE").value_or(""));
  return environment;
}

std::optional<fs::path> hub_home(const HubEnvironment& environment) {
  if (environment.hf_home) return expand(*environment.hf_home, environment);
  if (environment.xdg_cache_home) return expand(*environment.xdg_cache_home, environment) / "huggingface";
  if (environment.home) return fs::path(*environment.home) / ".cache" / "huggingface";
  return std::nullopt;
}

std::optional<fs::path> hub_cache(const HubEnvironment& environment) {
  for (const std::optional<std::string>* direct :
       {&environment.hf_hub_cache, &environment.huggingface_hub_cache}) {
    if (*direct) return expand(**direct, environment);
  }
  const std::optional<fs::path> home = hub_home(environment);
  if (!home) return std::nullopt;
  return *home / "hub";
}

Result<fs::path> required_hub_cache(const HubEnvironment& environment) {
  const std::optional<fs::path> cache = hub_cache(environment);
  if (cache) return *cache;
  return not_found(
      "there is no Hugging Face cache: none of HF_HUB_CACHE, HF_HOME, XDG_CACHE_HOME and HOME is set; set "
      "one");
}

std::optional<HubName> parse_hub_name(std::string_view text) {
  HubName parsed;
  const std::size_t sign = text.find('@');
  if (sign != text.npos) {
    parsed.revision = text.substr(sign + 1);
    parsed.revision_given = true;
    if (!is_revision(parsed.revision)) return std::nullopt;
  }
  const std::string_view name = text.substr(0, sign);
  const std::size_t slash = name.find('/');
  if (slash == name.npos || name.size() > kMostName) return std::nullopt;
  if (!is_name_part(name.substr(0, slash)) || !is_name_part(name.substr(slash + 1))) return std::nullopt;
  parsed.name = name;
  return parsed;
}

Result<HubName> read_hub_name(std::string_view text) {
  std::optional<HubName> name = parse_hub_name(text);
  if (name) return *std::move(name);
  return invalid_argument(quote(text) +
                          " is no model's name on the hub; give org/name or org/name@revision, for example "
                          "openai/gpt-oss-20b");
}

bool is_commit(std::string_view text) {
  return text.size() == 40 && std::all_of(text.begin(), text.end(), [](char c) {
           return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f');
         });
}

RepositoryPaths::RepositoryPaths(const fs::path& cache, std::string_view name) {
  std::string short_name = std::string(kFolderPrefix) + std::string(name);
  short_name.replace(short_name.find('/'), 1, "--");
  folder = cache / short_name;
  blobs = folder / "blobs";
  refs = folder / "refs";
  snapshots = folder / "snapshots";
  locks = cache / ".locks" / short_name;
}

fs::path pull_lock(const RepositoryPaths& paths) { return paths.locks / "nibble-pull.lock"; }

std::optional<std::string> name_of_folder(std::string_view folder) {
  if (!folder.starts_with(kFolderPrefix)) return std::nullopt;
  std::string name(folder.substr(kFolderPrefix.size()));
  const std::size_t middle = name.find("--");
  if (middle == name.npos) return std::nullopt;
  name.replace(middle, 2, "/");
  if (!parse_hub_name(name)) return std::nullopt;
  return name;
}

}  // namespace nibble
