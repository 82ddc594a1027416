// What the hub says of a repository, read from its JSON. A hub's answers are strangers' bytes: names cannot
// leave a folder, sizes and counts are bounded, and a name of content is a hash or it is refused.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace nibble {

struct HubFile {
  std::string path;       // "model.safetensors"; '/' between folders
  std::int64_t size = 0;  // bytes
  std::string blob;       // its name in blobs/: sha256 of a large file, git's id of a small one
  bool large = false;     // kept by git-lfs or Xet: `blob` is a sha256

  bool operator==(const HubFile&) const = default;
};

inline constexpr std::size_t kMostListingBytes = std::size_t{32} << 20;
inline constexpr std::size_t kMostHubFiles = 50'000;

// The commit that /api/models/org/name/revision/R names.
Result<std::string> parse_revision(std::string text);

// Files of a page of /api/models/org/name/tree/COMMIT?recursive=true; folders are left out.
Result<std::vector<HubFile>> parse_tree(std::string text);

// The address of the next page in a Link header: <https://...>; rel="next".
std::optional<std::string> next_page(std::string_view link_header);

// Whether a path can be made below a folder: no part is empty, "." or "..", and all are plain printable text.
bool is_plain_path(std::string_view path);

// The files that nibble needs: configuration, tokenizer, chat template, weights with their index, all from
// the repository's top folder. Weights in other formats and in subfolders are left out. An error says what is
// missing.
Result<std::vector<HubFile>> choose_files(const std::vector<HubFile>& files, std::string_view name);

bool is_weights(const HubFile& file);
inline constexpr std::string_view kWeightsIndex = "model.safetensors.index.json";

// The files of weights that an index names, ascending.
Result<std::vector<std::string>> files_of_index(std::string text);

// The weights that an index names; all others of the list stay. An error names what the index has and the
// list has not.
Result<std::vector<HubFile>> keep_indexed(const std::vector<HubFile>& files, std::string index);

}  // namespace nibble
