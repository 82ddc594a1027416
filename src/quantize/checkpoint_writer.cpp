#include "quantize/checkpoint_writer.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <bit>
#include <cerrno>
#include <chrono>
#include <cinttypes>
#include <cstring>
#include <optional>
#include <system_error>
#include <utility>

#include "base/descriptor.h"
#include "base/file.h"
#include "base/quote.h"
#include "formats/layout_stamp.h"

namespace nibble {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

// How much may be lost when power fails: whichever is reached first.
constexpr std::int64_t sync_bytes = std::int64_t{256} << 20;
constexpr std::chrono::milliseconds sync_interval{1000};
constexpr std::size_t max_journal_bytes = std::size_t{256} << 20;
constexpr mode_t folder_mode = 0777, file_mode = 0666;  // less what the umask takes

Status failed(std::string_view verb, const fs::path& path) {
  const int error = errno;
  std::string message =
      "cannot " + std::string(verb) + " " + quote(path.native()) + ": " + std::strerror(error);
  if (error == ENOSPC || error == EDQUOT || error == EFBIG)
    message += "; make room and run the same command again, what is done is kept";
  return io_error(message);
}

Status write_all_at(int fd, std::span<const std::uint8_t> bytes, std::int64_t offset, const fs::path& path) {
  while (!bytes.empty()) {
    const ssize_t put = pwrite(fd, bytes.data(), bytes.size(), offset);
    if (put < 0 && errno == EINTR) continue;
    if (put < 0) return failed("write", path);
    bytes = bytes.subspan(static_cast<std::size_t>(put));
    offset += put;
  }
  return {};
}

std::span<const std::uint8_t> bytes_of(std::string_view text) {
  return {reinterpret_cast<const std::uint8_t*>(text.data()), text.size()};
}

Status sync_folder(const fs::path& folder) {
  const Descriptor opened(open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (opened.get() < 0 || fsync(opened.get()) != 0) return failed("sync", folder);
  return {};
}

std::string with_check(const std::string& line) {
  char check[20];
  std::snprintf(check, sizeof check, " %016" PRIx64, content_hash(bytes_of(line)));
  return line + check + "\n";
}

std::string first_line(std::uint64_t identity) {
  char text[64];
  std::snprintf(text, sizeof text, "nibble quantize 1 %016" PRIx64, identity);
  return with_check(text);
}

std::string job_line(std::size_t job, const EncodeError& error) {
  char text[128];
  std::snprintf(text, sizeof text, "job %zu %016" PRIx64 " %016" PRIx64 " %016" PRIx64 " %" PRId64, job,
                std::bit_cast<std::uint64_t>(error.squared), std::bit_cast<std::uint64_t>(error.original),
                std::bit_cast<std::uint64_t>(error.largest), error.values);
  return with_check(text);
}

// The lines of a journal that are whole: a last one may have been cut.
std::vector<std::string> whole_lines(const std::string& text) {
  std::vector<std::string> lines;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = text.find('\n', at);
    if (end == text.npos) break;
    const std::string line = text.substr(at, end - at);
    const std::size_t space = line.rfind(' ');
    if (space == line.npos || with_check(line.substr(0, space)) != line + "\n") break;
    lines.push_back(line.substr(0, space));
    at = end + 1;
  }
  return lines;
}

std::optional<std::pair<std::size_t, EncodeError>> read_job(const std::string& line) {
  std::size_t job = 0;
  std::uint64_t squared = 0, original = 0, largest = 0;
  std::int64_t values = 0;
  if (std::sscanf(line.c_str(), "job %zu %" SCNx64 " %" SCNx64 " %" SCNx64 " %" SCNd64, &job, &squared,
                  &original, &largest, &values) != 5)
    return std::nullopt;
  return std::pair(job, EncodeError{.squared = std::bit_cast<double>(squared),
                                    .original = std::bit_cast<double>(original),
                                    .largest = std::bit_cast<double>(largest),
                                    .values = values});
}

}  // namespace

struct CheckpointWriter::State {
  fs::path destination, folder, model, journal_path;
  Descriptor journal;
  std::int64_t journal_bytes = 0;
  const ConversionPlan* plan = nullptr;
  std::vector<Descriptor> files;
  std::vector<std::optional<EncodeError>> done;
  // Written, not yet certain to be on the disk.
  std::vector<std::pair<std::size_t, EncodeError>> pending;
  std::vector<bool> touched;  // files
  std::int64_t unsynced = 0;
  Clock::time_point synced = Clock::now();

  Status take_journal(std::uint64_t identity, bool restart);
  Status begin(std::uint64_t identity);
  Status open_files();
  Status sync();
};

CheckpointWriter::CheckpointWriter(std::unique_ptr<State> state) : state_(std::move(state)) {}
CheckpointWriter::CheckpointWriter(CheckpointWriter&&) noexcept = default;
CheckpointWriter::~CheckpointWriter() = default;

// Starts the folder's contents anew.
Status CheckpointWriter::State::begin(std::uint64_t identity) {
  std::error_code error;
  fs::remove_all(model, error);
  if (error) return io_error("cannot remove " + quote(model.native()) + ": " + error.message());
  if (mkdir(model.c_str(), folder_mode) != 0) return failed("make", model);
  if (ftruncate(journal.get(), 0) != 0) return failed("write", journal_path);
  const std::string line = first_line(identity);
  NIBBLE_RETURN_IF_ERROR(write_all_at(journal.get(), bytes_of(line), 0, journal_path));
  journal_bytes = static_cast<std::int64_t>(line.size());
  NIBBLE_RETURN_IF_ERROR(sync_folder(folder));
  return sync_folder(folder.parent_path());
}

Status CheckpointWriter::State::take_journal(std::uint64_t identity, bool restart) {
  journal = Descriptor(::open(journal_path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, file_mode));
  if (journal.get() < 0) return failed("open", journal_path);
  if (flock(journal.get(), LOCK_EX | LOCK_NB) != 0) {
    return invalid_argument("another nibble is making " + quote(destination.native()) +
                            "; wait for it, or give another DST");
  }
  NIBBLE_ASSIGN(const std::string text, read_file(journal_path, max_journal_bytes));
  const std::vector<std::string> lines = whole_lines(text);
  std::error_code ignored;
  // The first line alone is no work that anybody could miss.
  if (lines.size() < 2 || restart || !fs::is_directory(model, ignored)) return begin(identity);
  if (with_check(lines.front()) != first_line(identity)) {
    return invalid_argument(
        quote(folder.native()) +
        " holds an unfinished conversion of another source or with other options; finish that "
        "one, or give --restart to throw it away");
  }
  for (const std::string& line : lines) {
    journal_bytes += static_cast<std::int64_t>(with_check(line).size());
    const auto job = read_job(line);
    if (job && job->first < done.size()) done[job->first] = job->second;
  }
  if (ftruncate(journal.get(), journal_bytes) != 0) return failed("write", journal_path);
  return {};
}

Status CheckpointWriter::State::open_files() {
  for (const PlannedFile& file : plan->files) {
    const fs::path path = model / file.name;
    Descriptor opened(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, file_mode));
    if (opened.get() < 0) return failed("open", path);
    // Takes the room now: a disk that is too small says so before hours of work. Some file systems cannot.
    int error = 0;
    do {
      error = fallocate(opened.get(), 0, 0, file.bytes) == 0 ? 0 : errno;
    } while (error == EINTR);
    if (error != 0 && error != EOPNOTSUPP && error != ENOSYS) {
      errno = error;
      return failed("take " + std::to_string(file.bytes) + " bytes for", path);
    }
    NIBBLE_RETURN_IF_ERROR(write_all_at(opened.get(), bytes_of(file.header), 0, path));
    files.push_back(std::move(opened));
  }
  touched.assign(files.size(), true);
  return sync_folder(model);
}

Result<CheckpointWriter> CheckpointWriter::open(const fs::path& destination, std::uint64_t identity,
                                                const ConversionPlan& plan, bool restart) {
  auto state = std::make_unique<State>();
  state->destination = destination;
  state->folder = destination.parent_path() / ("." + destination.filename().native() + ".quantizing");
  state->model = state->folder / "model";
  state->journal_path = state->folder / "journal";
  state->plan = &plan;
  state->done.resize(plan.jobs.size());
  std::error_code ignored;
  if (fs::exists(fs::symlink_status(destination, ignored))) {
    return invalid_argument(quote(destination.native()) + " exists; give a DST that does not");
  }
  if (mkdir(state->folder.c_str(), folder_mode) != 0 && errno != EEXIST) return failed("make", state->folder);
  NIBBLE_RETURN_IF_ERROR(state->take_journal(identity, restart));
  NIBBLE_RETURN_IF_ERROR(state->open_files());
  return CheckpointWriter(std::move(state));
}

const EncodeError* CheckpointWriter::done(std::size_t job) const {
  const std::optional<EncodeError>& found = state_->done[job];
  return found ? &*found : nullptr;
}

Status CheckpointWriter::write(const PlannedTensor& tensor, std::int64_t at,
                               std::span<const std::uint8_t> bytes) {
  const auto file = static_cast<std::size_t>(tensor.file);
  state_->touched[file] = true;
  state_->unsynced += static_cast<std::int64_t>(bytes.size());
  return write_all_at(state_->files[file].get(), bytes, tensor.offset + at,
                      state_->model / state_->plan->files[file].name);
}

Status CheckpointWriter::State::sync() {
  for (std::size_t f = 0; f < files.size(); ++f) {
    if (touched[f] && fdatasync(files[f].get()) != 0) return failed("sync", model / plan->files[f].name);
    touched[f] = false;
  }
  std::string lines;
  for (const auto& [job, error] : pending) {
    lines += job_line(job, error);
    done[job] = error;
  }
  NIBBLE_RETURN_IF_ERROR(write_all_at(journal.get(), bytes_of(lines), journal_bytes, journal_path));
  if (fdatasync(journal.get()) != 0) return failed("sync", journal_path);
  journal_bytes += static_cast<std::int64_t>(lines.size());
  pending.clear();
  unsynced = 0;
  synced = Clock::now();
  return {};
}

Status CheckpointWriter::finish_job(std::size_t job, const EncodeError& error) {
  state_->pending.emplace_back(job, error);
  if (state_->unsynced < sync_bytes && Clock::now() - state_->synced < sync_interval) return {};
  return state_->sync();
}

Status CheckpointWriter::write_file(const std::string& name, std::string_view text) {
  const fs::path path = state_->model / name;
  const Descriptor file(::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, file_mode));
  if (file.get() < 0) return failed("open", path);
  NIBBLE_RETURN_IF_ERROR(write_all_at(file.get(), bytes_of(text), 0, path));
  if (fsync(file.get()) != 0) return failed("sync", path);
  return {};
}

Status CheckpointWriter::copy_file(const fs::path& from) {
  const Descriptor source(::open(from.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (source.get() < 0) return failed("open", from);
  const fs::path to = state_->model / from.filename();
  const Descriptor copy(::open(to.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, file_mode));
  if (copy.get() < 0) return failed("open", to);
  std::vector<std::uint8_t> chunk(std::size_t{1} << 20);
  for (std::int64_t at = 0;;) {
    const ssize_t got = read(source.get(), chunk.data(), chunk.size());
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return failed("read", from);
    if (got == 0) break;
    NIBBLE_RETURN_IF_ERROR(write_all_at(copy.get(), {chunk.data(), static_cast<std::size_t>(got)}, at, to));
    at += got;
  }
  if (fsync(copy.get()) != 0) return failed("sync", to);
  return {};
}

void CheckpointWriter::abandon() {
  std::error_code ignored;
  fs::remove_all(state_->folder, ignored);
}

Status CheckpointWriter::commit() {
  NIBBLE_RETURN_IF_ERROR(state_->sync());
  NIBBLE_RETURN_IF_ERROR(sync_folder(state_->model));
  if (renameat2(AT_FDCWD, state_->model.c_str(), AT_FDCWD, state_->destination.c_str(), RENAME_NOREPLACE) !=
      0) {
    if (errno == EEXIST)
      return invalid_argument(quote(state_->destination.native()) +
                              " came to be meanwhile; what was made lies in " +
                              quote(state_->model.native()));
    // Some file systems know no such flag; an empty folder that appeared meanwhile would be replaced then.
    if (errno != EINVAL || rename(state_->model.c_str(), state_->destination.c_str()) != 0)
      return failed("rename to", state_->destination);
  }
  NIBBLE_RETURN_IF_ERROR(sync_folder(state_->destination.parent_path()));
  std::error_code ignored;
  fs::remove_all(state_->folder, ignored);
  return {};
}

}  // namespace nibble
