#include "hub/pull.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <optional>

#include "base/file.h"
#include "base/quote.h"
#include "hub/file_lock.h"

namespace nibble {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t kSpareBytes = std::int64_t{64} << 20;  // that a full disk keeps for others
constexpr std::size_t kMostConfig = std::size_t{4} << 20;
constexpr std::string_view kTag =
    "Signature: 8a477f597d28d172789f06886806bc55\n"
    "# This folder is a cache, which backups may leave out (https://bford.info/cachedir/).\n";

Status make_folder(const fs::path& folder) {
  std::error_code error;
  fs::create_directories(folder, error);
  if (!error) return {};
  return io_error("cannot make the folder " + quote(folder.native()) + ": " + error.message() +
                  "; HF_HOME or HF_HUB_CACHE names another place for the cache");
}

// Names of what is about to be renamed to its place. They lie among the blobs, where huggingface_hub expects
// unfinished files; in refs/ it would take one for a reference.
constexpr std::string_view kBesideEnd = ".nibble-new.incomplete";

fs::path beside(const RepositoryPaths& paths, const std::string& name) {
  return paths.blobs / (name + "." + std::to_string(getpid()) + std::string(kBesideEnd));
}

// Whole or not at all, for whoever reads it meanwhile.
Status write_file(const RepositoryPaths& paths, const fs::path& path, std::string_view text) {
  NIBBLE_RETURN_IF_ERROR(make_folder(path.parent_path()));
  const fs::path written = beside(paths, "text");
  std::ofstream file(written, std::ios::binary | std::ios::trunc);
  file << text;
  file.close();
  std::error_code error;
  if (file) fs::rename(written, path, error);
  if (file && !error) return {};
  std::error_code ignored;
  fs::remove(written, ignored);
  return io_error("cannot write " + quote(path.native()) + (error ? ": " + error.message() : ""));
}

// A lock that another process holds is waited for; the sentence is said once.
Result<FileLock> wait_for(const fs::path& path, const PullOptions& options, const PullObserver& observer,
                          const std::string& sentence) {
  for (bool said = false;; said = true) {
    NIBBLE_ASSIGN(std::optional<FileLock> lock, FileLock::try_file(path));
    if (lock) return std::move(*lock);
    if (!said && observer.note) observer.note(sentence);
    if (!sleep_for(std::chrono::milliseconds(200), options.settings.cancelled))
      return Status(StatusCode::cancelled, "interrupted while another process downloads the same");
  }
}

std::int64_t total_of(const std::vector<HubFile>& files) {
  std::int64_t total = 0;
  for (const HubFile& file : files) total += file.size;
  return total;
}

class Pull {
 public:
  Pull(const PullOptions& options, const PullPlan& plan, const PullObserver& observer)
      : options_(options),
        plan_(plan),
        observer_(observer),
        paths_(options.cache, options.name.name),
        files_(plan.files) {}

  Result<PullReport> run() {
    NIBBLE_RETURN_IF_ERROR(make_folder(paths_.blobs));
    tag_cache();
    NIBBLE_ASSIGN(const FileLock turn,
                  wait_for(pull_lock(paths_), options_, observer_,
                           "another nibble pulls " + options_.name.name + "; waiting for it"));
    remove_leftovers();
    std::vector<HubFile> small, weights;
    for (const HubFile& file : files_) (is_weights(file) ? weights : small).push_back(file);
    NIBBLE_RETURN_IF_ERROR(fetch(small, false));
    NIBBLE_RETURN_IF_ERROR(look_at_config());
    NIBBLE_RETURN_IF_ERROR(leave_out_what_the_index_has_not());
    weights.clear();
    for (const HubFile& file : files_)
      if (is_weights(file)) weights.push_back(file);
    NIBBLE_RETURN_IF_ERROR(fetch(weights, true));
    NIBBLE_RETURN_IF_ERROR(link_snapshot());
    return PullReport{.snapshot = paths_.snapshots / plan_.commit,
                      .commit = plan_.commit,
                      .bytes = total_of(files_),
                      .fetched = fetched_};
  }

 private:
  // Of runs that were killed between making a link and renaming it.
  void remove_leftovers() const {
    std::error_code error;
    std::vector<fs::path> leftovers;
    for (fs::directory_iterator entry(paths_.blobs, error), end; !error && entry != end;
         entry.increment(error)) {
      if (entry->path().native().ends_with(kBesideEnd)) leftovers.push_back(entry->path());
    }
    for (const fs::path& leftover : leftovers) fs::remove(leftover, error);
  }

  void tag_cache() const {
    std::error_code ignored;
    const fs::path tag = options_.cache / "CACHEDIR.TAG";
    if (!fs::exists(tag, ignored)) static_cast<void>(write_file(paths_, tag, kTag).ok());
  }

  // A file of the list by its name; nothing where it has none, or one that is too large to be read whole.
  Result<std::string> read_small(std::string_view path) const {
    const auto found =
        std::find_if(files_.begin(), files_.end(), [path](const HubFile& file) { return file.path == path; });
    if (found == files_.end()) return std::string();
    return read_file(paths_.blobs / found->blob, path == kWeightsIndex ? kMostListingBytes : kMostConfig);
  }

  Status look_at_config() {
    if (!observer_.accept) return {};
    NIBBLE_ASSIGN(std::string config, read_small("config.json"));
    NIBBLE_ASSIGN(std::string generation_config, read_small("generation_config.json"));
    return observer_.accept(std::move(config), std::move(generation_config));
  }

  Status leave_out_what_the_index_has_not() {
    NIBBLE_ASSIGN(std::string index, read_small(kWeightsIndex));
    if (index.empty()) return {};
    NIBBLE_ASSIGN(files_, keep_indexed(files_, std::move(index)));
    return {};
  }

  // Those whose contents are not in the cache, each locked until the pull ends.
  Result<std::vector<HubFile>> lock_missing(const std::vector<HubFile>& files) {
    std::vector<HubFile> missing;
    std::vector<std::string> seen;
    for (const HubFile& file : files) {
      // Two files of the same content are one blob.
      if (std::find(seen.begin(), seen.end(), file.blob) != seen.end()) continue;
      seen.push_back(file.blob);
      if (has_blob(paths_.blobs, file)) {
        NIBBLE_ASSIGN(const bool good, is_good(file));
        if (good) continue;
      }
      NIBBLE_ASSIGN(FileLock lock,
                    wait_for(paths_.locks / (file.blob + ".lock"), options_, observer_,
                             "another program downloads " + quote(file.path) + "; waiting for it"));
      if (has_blob(paths_.blobs, file)) continue;
      locks_.push_back(std::move(lock));
      missing.push_back(file);
    }
    return missing;
  }

  Status fetch(const std::vector<HubFile>& files, bool shown) {
    const DownloadOptions options{.name = options_.name,
                                  .commit = plan_.commit,
                                  .blobs = paths_.blobs,
                                  .connections = options_.connections};
    Download download(options, options_.access, options_.settings, observer_.note);
    NIBBLE_ASSIGN(const std::vector<HubFile> missing, lock_missing(files));
    NIBBLE_RETURN_IF_ERROR(check_room(missing));
    for (const HubFile& file : missing) NIBBLE_RETURN_IF_ERROR(download.add(file));
    std::int64_t fresh = 0;
    const Status status = download.run([&](const DownloadProgress& progress) {
      fresh = progress.fresh;
      if (shown && observer_.progress && progress.total > 0) observer_.progress(progress);
    });
    fetched_ += fresh;
    return status;
  }

  // Of a blob that is there. One that is wrong goes, so that it is fetched again.
  Result<bool> is_good(const HubFile& file) const {
    if (!options_.verify) return true;
    NIBBLE_ASSIGN(const bool right, blob_is_right(paths_.blobs, file));
    if (right) return true;
    if (observer_.note) observer_.note(quote(file.path) + " in the cache is damaged; fetching it anew");
    std::error_code error;
    fs::remove(paths_.blobs / file.blob, error);
    if (error)
      return io_error("cannot remove " + quote((paths_.blobs / file.blob).native()) + ": " + error.message());
    return false;
  }

  // Before a file is made: its size alone may be too much for the file system.
  Status check_room(const std::vector<HubFile>& files) const {
    std::int64_t missing = 0;
    for (const HubFile& file : files) missing += file.size - disk_bytes_of_partial(paths_.blobs, file);
    std::error_code error;
    const fs::space_info room = fs::space(paths_.blobs, error);
    if (error || missing == 0) return {};
    const auto available = static_cast<std::int64_t>(
        std::min<std::uintmax_t>(room.available, static_cast<std::uintmax_t>(INT64_MAX)));
    if (available - kSpareBytes >= missing) return {};
    return io_error(std::to_string(missing) + " bytes of " + quote(options_.name.name) +
                    " are still to come, and " + quote(options_.cache.native()) + " has room for " +
                    std::to_string(available) +
                    "; make room (nibble list, nibble rm), or set HF_HUB_CACHE to a larger disk");
  }

  Status link_snapshot() {
    const fs::path snapshot = paths_.snapshots / plan_.commit;
    NIBBLE_RETURN_IF_ERROR(make_folder(snapshot));
    // config.json last: a snapshot without it is seen to be incomplete.
    std::stable_partition(files_.begin(), files_.end(),
                          [](const HubFile& file) { return file.path != "config.json"; });
    for (const HubFile& file : files_) {
      const fs::path link = snapshot / file.path;
      const fs::path target = fs::path("../../blobs") / file.blob;
      std::error_code error;
      if (fs::read_symlink(link, error) == target) continue;
      const fs::path made = beside(paths_, file.blob);
      fs::remove(made, error);
      fs::create_symlink(target, made, error);
      if (!error) fs::rename(made, link, error);
      if (error) return io_error("cannot link " + quote(link.native()) + ": " + error.message());
    }
    sync(snapshot);
    if (options_.name.revision == plan_.commit) return {};
    return write_file(paths_, paths_.refs / options_.name.revision, plan_.commit);
  }

  // The names reach the disk before the reference that leads to them.
  void sync(const fs::path& snapshot) const {
    for (const fs::path& folder : {paths_.blobs, snapshot, paths_.snapshots}) {
      const int fd = open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
      if (fd < 0) continue;
      fsync(fd);
      close(fd);
    }
  }

  const PullOptions& options_;
  const PullPlan& plan_;
  const PullObserver& observer_;
  const RepositoryPaths paths_;
  std::vector<HubFile> files_;
  std::vector<FileLock> locks_;
  std::int64_t fetched_ = 0;
};

}  // namespace

Result<PullPlan> plan_pull(const PullOptions& options, const PullObserver& observer) {
  HubClient client(options.access, options.settings, observer.note);
  PullPlan plan;
  NIBBLE_ASSIGN(plan.commit, client.commit(options.name));
  NIBBLE_ASSIGN(const std::vector<HubFile> listed, client.files(options.name, plan.commit));
  NIBBLE_ASSIGN(plan.files, choose_files(listed, options.name.name));
  plan.bytes = total_of(plan.files);
  const RepositoryPaths paths(options.cache, options.name.name);
  for (const HubFile& file : plan.files) plan.missing += has_blob(paths.blobs, file) ? 0 : file.size;
  return plan;
}

Result<PullReport> pull(const PullOptions& options, const PullPlan& plan, const PullObserver& observer) {
  return Pull(options, plan, observer).run();
}

}  // namespace nibble
