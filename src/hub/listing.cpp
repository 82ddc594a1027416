#include "hub/listing.h"

#include <algorithm>
#include <set>

#include "base/json.h"
#include "base/quote.h"
#include "hub/cache_place.h"

namespace nibble {
namespace {

constexpr std::int64_t kMostFileBytes = std::int64_t{1} << 50;
constexpr std::size_t kMostPath = 512;
constexpr JsonLimits kLimits{.max_bytes = kMostListingBytes, .max_depth = 16, .max_values = 2'000'000};

constexpr std::string_view kNeeded[] = {"config.json",
                                        "generation_config.json",
                                        "tokenizer.json",
                                        "tokenizer_config.json",
                                        "tokenizer.model",
                                        "tiktoken.model",
                                        "special_tokens_map.json",
                                        "added_tokens.json",
                                        "vocab.json",
                                        "merges.txt",
                                        "chat_template.jinja",
                                        "chat_template.json",
                                        "hf_quant_config.json",
                                        kWeightsIndex};

Status bad_listing(std::string_view what) {
  return io_error("the hub's listing cannot be used: " + std::string(what));
}

bool is_hash(std::string_view text, std::size_t digits) {
  return text.size() == digits && std::all_of(text.begin(), text.end(), [](char c) {
           return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f');
         });
}

std::optional<std::string_view> text_of(JsonValue object, std::string_view key) {
  const std::optional<JsonValue> value = object.find(key);
  if (!value || !value->is_string()) return std::nullopt;
  return value->as_string();
}

std::optional<std::int64_t> size_of(JsonValue object) {
  const std::optional<JsonValue> value = object.find("size");
  if (!value || !value->is_integer() || value->as_integer() < 0 || value->as_integer() > kMostFileBytes)
    return std::nullopt;
  return value->as_integer();
}

Result<HubFile> read_file_entry(JsonValue entry) {
  const std::optional<std::string_view> path = text_of(entry, "path");
  if (!path || !is_plain_path(*path))
    return bad_listing("it names a file " + quote(path.value_or("")) + ", which no folder can hold");
  HubFile file{.path = std::string(*path)};
  std::optional<std::string_view> hash = text_of(entry, "oid");
  std::optional<std::int64_t> size = size_of(entry);
  const std::optional<JsonValue> lfs = entry.find("lfs");
  if (lfs && lfs->is_object()) {
    file.large = true;
    hash = text_of(*lfs, "oid");
    if (const std::optional<std::int64_t> whole = size_of(*lfs)) size = whole;
  }
  if (!hash || !is_hash(*hash, file.large ? 64 : 40))
    return bad_listing("it has no hash of the file " + quote(file.path));
  if (!size) return bad_listing("it has no size of the file " + quote(file.path));
  file.blob = *hash;
  file.size = *size;
  return file;
}

bool is_needed(std::string_view path) {
  if (path.find('/') != path.npos) return false;
  if (std::find(std::begin(kNeeded), std::end(kNeeded), path) != std::end(kNeeded)) return true;
  return path.ends_with(".safetensors") || path.ends_with(".tiktoken");
}

// A second copy of the same weights in the layout of who made them.
bool is_consolidated(std::string_view path) { return path.starts_with("consolidated"); }

}  // namespace

bool is_plain_path(std::string_view path) {
  if (path.empty() || path.size() > kMostPath) return false;
  if (!std::all_of(path.begin(), path.end(), [](char c) { return c >= ' ' && c < 0x7f && c != '\\'; }))
    return false;
  std::size_t at = 0;
  while (at <= path.size()) {
    const std::size_t end = std::min(path.find('/', at), path.size());
    const std::string_view part = path.substr(at, end - at);
    if (part.empty() || part == "." || part == ".." || part.size() > 200) return false;
    at = end + 1;
  }
  return true;
}

Result<std::string> parse_revision(std::string text) {
  const Result<JsonDocument> document = JsonDocument::parse(std::move(text), kLimits);
  if (!document.ok()) return bad_listing(document.status().message());
  const std::optional<std::string_view> commit = text_of(document->root(), "sha");
  if (!commit || !is_commit(*commit)) return bad_listing("it names no commit");
  return std::string(*commit);
}

Result<std::vector<HubFile>> parse_tree(std::string text) {
  const Result<JsonDocument> document = JsonDocument::parse(std::move(text), kLimits);
  if (!document.ok()) return bad_listing(document.status().message());
  const JsonValue root = document->root();
  if (!root.is_array()) return bad_listing("it is no list");
  if (root.size() > kMostHubFiles) return bad_listing("it has too many files");
  std::vector<HubFile> files;
  for (const JsonValue entry : root.elements()) {
    const std::optional<std::string_view> type = text_of(entry, "type");
    if (!type) return bad_listing("an entry has no type");
    if (*type != "file") continue;
    NIBBLE_ASSIGN(HubFile file, read_file_entry(entry));
    files.push_back(std::move(file));
  }
  return files;
}

std::optional<std::string> next_page(std::string_view link_header) {
  // <a>; rel="prev", <b>; rel="next"
  while (!link_header.empty()) {
    const std::size_t open = link_header.find('<');
    const std::size_t close = link_header.find('>', open == link_header.npos ? 0 : open);
    if (open == link_header.npos || close == link_header.npos) return std::nullopt;
    const std::string_view address = link_header.substr(open + 1, close - open - 1);
    link_header.remove_prefix(close + 1);
    const std::string_view parameters = link_header.substr(0, link_header.find('<'));
    if (parameters.find("rel=\"next\"") != parameters.npos || parameters.find("rel=next") != parameters.npos)
      return std::string(address);
  }
  return std::nullopt;
}

bool is_weights(const HubFile& file) { return file.path.ends_with(".safetensors"); }

Result<std::vector<HubFile>> choose_files(const std::vector<HubFile>& files, std::string_view name) {
  std::vector<HubFile> chosen;
  std::set<std::string_view> seen;
  bool config = false, weights = false, plain_weights = false, gguf = false;
  for (const HubFile& file : files) {
    gguf = gguf || file.path.ends_with(".gguf");
    if (!is_needed(file.path)) continue;
    if (!seen.insert(file.path).second) return bad_listing("it has the file " + quote(file.path) + " twice");
    config = config || file.path == "config.json";
    weights = weights || is_weights(file);
    plain_weights = plain_weights || (is_weights(file) && !is_consolidated(file.path));
    chosen.push_back(file);
  }
  if (!config || !weights) {
    const std::string missing = !config ? "config.json" : "weights in safetensors";
    return not_found(quote(name) + " has no " + missing +
                     (gguf ? ", but GGUF files, which nibble does not read" : "") +
                     "; take a repository as transformers reads it, for example openai/gpt-oss-20b");
  }
  if (plain_weights)
    std::erase_if(chosen, [](const HubFile& file) { return is_weights(file) && is_consolidated(file.path); });
  std::sort(chosen.begin(), chosen.end(), [](const HubFile& a, const HubFile& b) { return a.path < b.path; });
  return chosen;
}

Result<std::vector<std::string>> files_of_index(std::string text) {
  const Result<JsonDocument> document = JsonDocument::parse(std::move(text), kLimits);
  if (!document.ok()) return broken_model(std::string(kWeightsIndex) + ": " + document.status().message());
  const std::optional<JsonValue> map = document->root().find("weight_map");
  if (!map || !map->is_object()) return broken_model(std::string(kWeightsIndex) + " has no weight_map");
  std::set<std::string> files;
  for (const auto [tensor, file] : map->members()) {
    if (!file.is_string()) return broken_model(std::string(kWeightsIndex) + " names no file for a tensor");
    files.insert(std::string(file.as_string()));
  }
  return std::vector<std::string>(files.begin(), files.end());
}

Result<std::vector<HubFile>> keep_indexed(const std::vector<HubFile>& files, std::string index) {
  NIBBLE_ASSIGN(const std::vector<std::string> wanted, files_of_index(std::move(index)));
  std::vector<HubFile> kept;
  std::size_t found = 0;
  for (const HubFile& file : files) {
    const bool named = std::binary_search(wanted.begin(), wanted.end(), file.path);
    if (is_weights(file) && !named) continue;
    found += is_weights(file) ? 1 : 0;
    kept.push_back(file);
  }
  if (found == wanted.size()) return kept;
  for (const std::string& name : wanted) {
    const bool there =
        std::any_of(kept.begin(), kept.end(), [&](const HubFile& file) { return file.path == name; });
    if (!there)
      return broken_model(std::string(kWeightsIndex) + " names " + quote(name) +
                          ", which the repository has not");
  }
  return broken_model(std::string(kWeightsIndex) + " names a file that is not in safetensors");
}

}  // namespace nibble
