#include "hub/cache_contents.h"

#include <algorithm>
#include <system_error>

#include "base/file.h"
#include "base/quote.h"
#include "hub/cache_place.h"

namespace nibble {
namespace {

namespace fs = std::filesystem;

// Far beyond any cache; a folder with more entries is somebody's mistake.
constexpr std::size_t kMostEntries = 200'000;
constexpr std::size_t kMostReference = 256;
constexpr std::size_t kLeastDigits = 4;

Status unreadable(const fs::path& folder, const std::error_code& error) {
  return io_error("cannot read the folder " + quote(folder.native()) + ": " + error.message());
}

// The entries of a folder, ascending; none where the folder is absent.
Result<std::vector<fs::path>> entries_of(const fs::path& folder) {
  std::vector<fs::path> entries;
  std::error_code error;
  fs::directory_iterator entry(folder, error);
  if (error == std::errc::no_such_file_or_directory || error == std::errc::not_a_directory) return entries;
  for (const fs::directory_iterator end; !error && entry != end; entry.increment(error)) {
    if (entries.size() == kMostEntries)
      return io_error("the folder " + quote(folder.native()) + " has more than " +
                      std::to_string(kMostEntries) + " entries");
    entries.push_back(entry->path());
  }
  if (error) return unreadable(folder, error);
  std::sort(entries.begin(), entries.end());
  return entries;
}

// All files and links below a folder, ascending. The iterator follows no links to folders.
Result<std::vector<fs::path>> files_below(const fs::path& folder) {
  std::vector<fs::path> files;
  std::error_code error;
  fs::recursive_directory_iterator entry(folder, error);
  if (error == std::errc::no_such_file_or_directory || error == std::errc::not_a_directory) return files;
  std::size_t seen = 0;
  for (const fs::recursive_directory_iterator end; !error && entry != end; entry.increment(error)) {
    if (++seen > kMostEntries)
      return io_error("the folder " + quote(folder.native()) + " has more than " +
                      std::to_string(kMostEntries) + " entries");
    std::error_code ignored;
    if (entry->symlink_status(ignored).type() != fs::file_type::directory) files.push_back(entry->path());
  }
  if (error) return unreadable(folder, error);
  std::sort(files.begin(), files.end());
  return files;
}

// Bytes of a file, links followed; nothing where it leads nowhere.
std::optional<std::int64_t> size_of(const fs::path& path) {
  std::error_code error;
  const std::uintmax_t size = fs::file_size(path, error);
  if (error) return std::nullopt;
  return static_cast<std::int64_t>(size);
}

Result<CachedRevision> scan_revision(const fs::path& folder) {
  CachedRevision revision{.commit = folder.filename().native(), .folder = folder};
  NIBBLE_ASSIGN(const std::vector<fs::path> files, files_below(folder));
  for (const fs::path& file : files) {
    std::error_code error;
    const fs::path target = fs::read_symlink(file, error);
    const fs::path content =
        error || target.empty() ? file : (file.parent_path() / target).lexically_normal();
    revision.contents.push_back(content);
  }
  std::sort(revision.contents.begin(), revision.contents.end());
  revision.contents.erase(std::unique(revision.contents.begin(), revision.contents.end()),
                          revision.contents.end());
  for (const fs::path& content : revision.contents) {
    const std::optional<std::int64_t> size = size_of(content);
    revision.whole = revision.whole && size.has_value();
    revision.bytes += size.value_or(0);
  }
  return revision;
}

Result<CachedRepository> scan_folder(const fs::path& cache, std::string_view name) {
  const RepositoryPaths paths(cache, name);
  CachedRepository repository{.name = std::string(name), .folder = paths.folder};
  NIBBLE_ASSIGN(const std::vector<fs::path> snapshots, entries_of(paths.snapshots));
  std::error_code ignored;
  for (const fs::path& snapshot : snapshots) {
    if (!fs::is_directory(snapshot, ignored)) continue;
    NIBBLE_ASSIGN(CachedRevision revision, scan_revision(snapshot));
    repository.revisions.push_back(std::move(revision));
  }
  NIBBLE_ASSIGN(const std::vector<fs::path> references, files_below(paths.refs));
  for (const fs::path& reference : references) {
    const Result<std::string> text = read_file(reference, kMostReference);
    if (!text.ok()) continue;
    const std::string commit = text->substr(0, text->find_last_not_of("\r\n") + 1);
    for (CachedRevision& revision : repository.revisions) {
      if (revision.commit == commit)
        revision.refs.push_back(reference.lexically_relative(paths.refs).native());
    }
  }
  NIBBLE_ASSIGN(const std::vector<fs::path> blobs, entries_of(paths.blobs));
  for (const fs::path& blob : blobs) {
    repository.blobs.push_back({.path = blob,
                                .bytes = size_of(blob).value_or(0),
                                .shared = fs::is_symlink(blob, ignored),
                                .unfinished = blob.native().ends_with(".incomplete")});
  }
  return repository;
}

// A folder that may not be empty yet is left where it is.
void remove_if_empty(const fs::path& folder) {
  std::error_code ignored;
  fs::remove(folder, ignored);
}

Status remove_all_of(const fs::path& path) {
  std::error_code error;
  fs::remove_all(path, error);
  if (error) return io_error("cannot remove " + quote(path.native()) + ": " + error.message());
  return {};
}

}  // namespace

std::int64_t CachedRepository::bytes() const {
  std::int64_t total = 0;
  for (const CachedBlob& blob : blobs) total += blob.unfinished ? 0 : blob.bytes;
  return total;
}

std::int64_t CachedRepository::unfinished_bytes() const {
  std::int64_t total = 0;
  for (const CachedBlob& blob : blobs) total += blob.unfinished ? blob.bytes : 0;
  return total;
}

Result<std::vector<CachedRepository>> scan_cache(const fs::path& cache) {
  std::vector<CachedRepository> repositories;
  NIBBLE_ASSIGN(const std::vector<fs::path> entries, entries_of(cache));
  for (const fs::path& entry : entries) {
    const std::optional<std::string> name = name_of_folder(entry.filename().native());
    std::error_code ignored;
    if (!name || !fs::is_directory(entry, ignored)) continue;
    NIBBLE_ASSIGN(CachedRepository repository, scan_folder(cache, *name));
    repositories.push_back(std::move(repository));
  }
  std::sort(repositories.begin(), repositories.end(),
            [](const CachedRepository& a, const CachedRepository& b) { return a.name < b.name; });
  return repositories;
}

Result<std::optional<CachedRepository>> scan_repository(const fs::path& cache, std::string_view name) {
  std::error_code ignored;
  if (!fs::is_directory(RepositoryPaths(cache, name).folder, ignored))
    return std::optional<CachedRepository>();
  NIBBLE_ASSIGN(CachedRepository repository, scan_folder(cache, name));
  return std::optional(std::move(repository));
}

Result<const CachedRevision*> find_revision(const CachedRepository& repository, std::string_view revision) {
  const CachedRevision* found = nullptr;
  for (const CachedRevision& each : repository.revisions) {
    if (std::find(each.refs.begin(), each.refs.end(), revision) != each.refs.end()) return &each;
  }
  for (const CachedRevision& each : repository.revisions) {
    if (each.commit == revision) return &each;
    if (revision.size() < kLeastDigits || !each.commit.starts_with(revision)) continue;
    if (found != nullptr)
      return invalid_argument(quote(revision) + " begins more than one commit of " + repository.name +
                              "; give more of its digits");
    found = &each;
  }
  return found;
}

Removal plan_removal(const CachedRepository& repository, const CachedRevision* revision) {
  Removal removal;
  const bool all =
      revision == nullptr || (repository.revisions.size() == 1 && revision == &repository.revisions.front());
  std::vector<fs::path> kept;
  for (const CachedRevision& each : repository.revisions) {
    if (!all && &each != revision) {
      kept.insert(kept.end(), each.contents.begin(), each.contents.end());
      continue;
    }
    removal.snapshots.push_back(each.folder);
    for (const std::string& reference : each.refs)
      removal.refs.push_back(repository.folder / "refs" / reference);
  }
  for (const CachedBlob& blob : repository.blobs) {
    const bool named = std::find(kept.begin(), kept.end(), blob.path) != kept.end();
    const bool ours = all || (!blob.unfinished && std::binary_search(revision->contents.begin(),
                                                                     revision->contents.end(), blob.path));
    if (named || !ours) continue;
    removal.blobs.push_back(blob.path);
    (blob.shared ? removal.shared_bytes : removal.bytes) += blob.bytes;
  }
  if (all) removal.folder = repository.folder;
  return removal;
}

Status remove(const Removal& removal) {
  for (const fs::path& reference : removal.refs) NIBBLE_RETURN_IF_ERROR(remove_all_of(reference));
  for (const fs::path& snapshot : removal.snapshots) {
    // Without its config.json a half-removed snapshot is seen to be incomplete.
    NIBBLE_RETURN_IF_ERROR(remove_all_of(snapshot / "config.json"));
    NIBBLE_RETURN_IF_ERROR(remove_all_of(snapshot));
  }
  for (const fs::path& blob : removal.blobs) NIBBLE_RETURN_IF_ERROR(remove_all_of(blob));
  if (removal.folder.empty()) return {};
  NIBBLE_RETURN_IF_ERROR(remove_all_of(removal.folder));
  const fs::path locks = removal.folder.parent_path() / ".locks" / removal.folder.filename();
  std::error_code ignored;
  fs::remove_all(locks, ignored);
  remove_if_empty(locks.parent_path());
  return {};
}

}  // namespace nibble
