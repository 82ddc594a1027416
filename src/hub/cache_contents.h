// What lies in the Hugging Face cache, whoever put it there, and how it is removed.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace nibble {

struct CachedRevision {
  std::string commit;             // the folder's name in snapshots/
  std::vector<std::string> refs;  // branches and tags that name it, ascending
  std::filesystem::path folder;
  std::vector<std::filesystem::path> contents;  // blobs it links to, or its own files; ascending
  std::int64_t bytes = 0;
  bool whole = true;  // every link leads somewhere
};

struct CachedBlob {
  std::filesystem::path path;
  std::int64_t bytes = 0;  // of what it links to, where huggingface_hub keeps the content in its shared store
  bool shared = false;     // a link into that store: removing it frees nothing by itself
  bool unfinished = false;  // of a download that was interrupted, or is under way
};

struct CachedRepository {
  std::string name;  // "org/name"
  std::filesystem::path folder;
  std::vector<CachedRevision> revisions;  // ascending by commit
  std::vector<CachedBlob> blobs;          // ascending by path

  std::int64_t bytes() const;             // of whole blobs
  std::int64_t unfinished_bytes() const;  // of the others
};

// Ascending by name; what is no model's folder is passed over. No cache is an empty one.
Result<std::vector<CachedRepository>> scan_cache(const std::filesystem::path& cache);
// Nothing where the cache has no such model.
Result<std::optional<CachedRepository>> scan_repository(const std::filesystem::path& cache,
                                                        std::string_view name);

// The revision that a branch, a tag, a commit or the beginning of one (4 digits or more) names; null where
// none does. More than one: an error.
Result<const CachedRevision*> find_revision(const CachedRepository& repository, std::string_view revision);

// What goes when a repository, or one of its revisions, is removed.
struct Removal {
  std::vector<std::filesystem::path> refs;
  std::vector<std::filesystem::path> snapshots;
  std::vector<std::filesystem::path> blobs;  // those that no other revision uses
  std::filesystem::path folder;              // the repository's own, when nothing is left in it; else empty
  std::int64_t bytes = 0;                    // that become free
  std::int64_t shared_bytes = 0;             // that stay in huggingface_hub's shared store
};

// `revision` is one of the repository's; null removes all.
Removal plan_removal(const CachedRepository& repository, const CachedRevision* revision);

// References go first and blobs last, so that a removal that is interrupted leaves nothing that looks whole.
Status remove(const Removal& removal);

}  // namespace nibble
