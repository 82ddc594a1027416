// nibble rm: a model, or one revision of it, out of the Hugging Face cache.
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "app/amount.h"
#include "app/commands.h"
#include "app/question.h"
#include "base/quote.h"
#include "hub/cache_contents.h"
#include "hub/cache_place.h"
#include "hub/file_lock.h"
#include "hub/file_users.h"

namespace nibble {
namespace {

namespace fs = std::filesystem;

struct Options {
  std::string model;
  bool yes = false;
};

struct Target {
  CachedRepository repository;
  const CachedRevision* revision = nullptr;  // null: all of them
};

Result<Target> find_target(const HubName& name, const fs::path& cache) {
  NIBBLE_ASSIGN(std::optional<CachedRepository> repository, scan_repository(cache, name.name));
  if (!repository)
    return not_found("model " + quote(name.name) + " is not in the Hugging Face cache " +
                     quote(cache.native()) + "; nibble list shows what is");
  Target target{.repository = std::move(*repository)};
  if (!name.revision_given) return target;
  NIBBLE_ASSIGN(target.revision, find_revision(target.repository, name.revision));
  if (target.revision == nullptr)
    return not_found("the cache has no revision " + quote(name.revision) + " of " + quote(name.name) +
                     "; nibble list --json shows those it has");
  return target;
}

// Held while files go: against a pull of the same model, and against whoever serves one of its revisions.
struct Locks {
  std::optional<FileLock> pull;
  std::vector<FileLock> snapshots;
};

Result<Locks> take_locks(const HubName& name, const Removal& removal, const fs::path& cache) {
  Locks locks;
  NIBBLE_ASSIGN(locks.pull, FileLock::try_file(pull_lock(RepositoryPaths(cache, name.name))));
  if (!locks.pull)
    return io_error("a pull of " + quote(name.name) + " is under way; end it first, or wait for it");
  for (const fs::path& snapshot : removal.snapshots) {
    std::optional<FileLock> lock = FileLock::try_folder(snapshot, false);
    if (!lock) return io_error(quote(name.text()) + " is in use by a running nibble; stop that first");
    locks.snapshots.push_back(std::move(*lock));
  }
  if (const std::optional<std::string> user = process_that_maps(removal.blobs))
    return io_error(quote(name.text()) + " is in use by " + *user + "; stop that first");
  return locks;
}

Status run(const Options& options, Console& console) {
  NIBBLE_ASSIGN(const HubName name, read_hub_name(options.model));
  NIBBLE_ASSIGN(const fs::path cache, required_hub_cache(HubEnvironment::of_this_process()));
  NIBBLE_ASSIGN(const Target target, find_target(name, cache));
  const Removal removal = plan_removal(target.repository, target.revision);
  const std::string what = name.text() + " (" + scaled_bytes(removal.bytes) + ")";
  if (!options.yes) {
    if (!can_ask(console))
      return invalid_argument("nobody can be asked whether to remove " + what +
                              "; give --yes where there is no terminal");
    if (!ask("remove " + what + " from " + quote(cache.native()) + "?", console)) {
      std::fprintf(console.err, "nothing was removed\n");
      return {};
    }
  }
  NIBBLE_ASSIGN(const Locks locks, take_locks(name, removal, cache));
  NIBBLE_RETURN_IF_ERROR(remove(removal));
  std::fprintf(console.out, "removed %s\n", what.c_str());
  if (removal.shared_bytes > 0)
    std::fprintf(
        console.err,
        "%s stay in huggingface_hub's shared store, where other models may use them; \"hf cache prune\" "
        "removes what none uses\n",
        scaled_bytes(removal.shared_bytes).c_str());
  return {};
}

CommandLine declare() {
  auto options = std::make_shared<Options>();
  CommandLine line;
  line.positionals = {{.name = "MODEL",
                       .help = "org/name, or org/name@revision for one revision alone",
                       .target = &options->model}};
  line.options = {{.name = "--yes",
                   .aliases = {"-y"},
                   .help = "remove without asking",
                   .set = switch_value(options->yes)}};
  line.run = [options](Console& console) { return run(*options, console); };
  return line;
}

}  // namespace

const Command rm_command{.name = "rm",
                         .summary = "a model out of the Hugging Face cache",
                         .example = "nibble rm openai/gpt-oss-20b",
                         .declare = declare};

}  // namespace nibble
