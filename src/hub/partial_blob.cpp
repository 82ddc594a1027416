#include "hub/partial_blob.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "base/quote.h"
#include "hub/digest.h"

namespace nibble {
namespace {

namespace fs = std::filesystem;

Status failed(std::string_view verb, const fs::path& path) {
  const int error = errno;
  const std::string advice =
      error == ENOSPC || error == EDQUOT ? "; make room, then the same command goes on" : "";
  return io_error("cannot " + std::string(verb) + " " + quote(path.native()) + ": " + std::strerror(error) +
                  advice);
}

fs::path partial_path(const fs::path& blobs, const HubFile& file) {
  return blobs / (file.blob + ".nibble.incomplete");
}

Result<bool> hash_matches(int fd, const HubFile& file, const fs::path& path) {
  Digest digest = file.large ? Digest::sha256() : Digest::git_blob(file.size);
  std::vector<char> buffer(std::size_t{1} << 20);
  std::int64_t at = 0;
  while (at < file.size) {
    const std::int64_t wanted =
        std::min<std::int64_t>(file.size - at, static_cast<std::int64_t>(buffer.size()));
    const ssize_t got = pread(fd, buffer.data(), static_cast<std::size_t>(wanted), at);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return failed("read", path);
    if (got == 0) return false;
    digest.update(buffer.data(), static_cast<std::size_t>(got));
    at += got;
  }
  return digest.hex() == file.blob;
}

}  // namespace

Result<PartialBlob> PartialBlob::open(const fs::path& blobs, const HubFile& file) {
  PartialBlob blob(partial_path(blobs, file), blobs / file.blob, file);
  blob.fd_ = ::open(blob.path_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0666);
  if (blob.fd_ < 0) return failed("open", blob.path_);
  struct stat facts {};
  if (fstat(blob.fd_, &facts) != 0) return failed("stat", blob.path_);
  if (!S_ISREG(facts.st_mode)) return io_error(quote(blob.path_.native()) + " is no regular file; remove it");
  const std::int64_t blocks = blob.blocks();
  if (facts.st_size == file.size && file.size > 0) {
    // Whole, and killed before it got its name.
    blob.done_.assign(static_cast<std::size_t>(blocks), 1);
    blob.resumed_ = true;
    return blob;
  }
  if (facts.st_size != file.size + blocks) {
    NIBBLE_RETURN_IF_ERROR(blob.restart());
    return blob;
  }
  blob.done_.resize(static_cast<std::size_t>(blocks));
  std::size_t read = 0;
  while (read < blob.done_.size()) {
    const ssize_t got = pread(blob.fd_, blob.done_.data() + read, blob.done_.size() - read,
                              file.size + static_cast<std::int64_t>(read));
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return failed("read", blob.path_);
    read += static_cast<std::size_t>(got);
  }
  for (char& mark : blob.done_) mark = mark == 1 ? 1 : 0;
  blob.resumed_ = std::find(blob.done_.begin(), blob.done_.end(), 1) != blob.done_.end();
  return blob;
}

PartialBlob::~PartialBlob() {
  if (fd_ >= 0) close(fd_);
}

PartialBlob::PartialBlob(PartialBlob&& other) noexcept
    : path_(std::move(other.path_)),
      destination_(std::move(other.destination_)),
      file_(std::move(other.file_)),
      fd_(std::exchange(other.fd_, -1)),
      done_(std::move(other.done_)),
      resumed_(other.resumed_) {}

PartialBlob& PartialBlob::operator=(PartialBlob&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(destination_, other.destination_);
  std::swap(file_, other.file_);
  std::swap(fd_, other.fd_);
  std::swap(done_, other.done_);
  std::swap(resumed_, other.resumed_);
  return *this;
}

Status PartialBlob::restart() {
  resumed_ = false;
  done_.assign(static_cast<std::size_t>(blocks()), 0);
  if (ftruncate(fd_, 0) != 0 || ftruncate(fd_, file_.size + blocks()) != 0) return failed("resize", path_);
  return {};
}

Status PartialBlob::write(std::int64_t at, std::string_view bytes) const {
  NIBBLE_CHECK(at >= 0 && at + static_cast<std::int64_t>(bytes.size()) <= file_.size);
  while (!bytes.empty()) {
    const ssize_t written = pwrite(fd_, bytes.data(), bytes.size(), at);
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return failed("write", path_);
    bytes.remove_prefix(static_cast<std::size_t>(written));
    at += written;
  }
  return {};
}

Status PartialBlob::mark(std::int64_t block) const {
  const char mark = 1;
  while (pwrite(fd_, &mark, 1, file_.size + block) != 1) {
    if (errno != EINTR) return failed("write", path_);
  }
  return {};
}

Result<bool> PartialBlob::is_right() const { return hash_matches(fd_, file_, path_); }

Status PartialBlob::finish() {
  if (ftruncate(fd_, file_.size) != 0) return failed("resize", path_);
  if (fdatasync(fd_) != 0) return failed("write", path_);
  if (rename(path_.c_str(), destination_.c_str()) != 0) return failed("rename", path_);
  return {};
}

std::int64_t disk_bytes_of_partial(const fs::path& blobs, const HubFile& file) {
  struct stat facts {};
  if (stat(partial_path(blobs, file).c_str(), &facts) != 0) return 0;
  return std::min<std::int64_t>(facts.st_blocks * 512, file.size);
}

bool has_blob(const fs::path& blobs, const HubFile& file) {
  std::error_code error;
  const std::uintmax_t size = fs::file_size(blobs / file.blob, error);
  return !error && static_cast<std::int64_t>(size) == file.size;
}

Result<bool> blob_is_right(const fs::path& blobs, const HubFile& file) {
  const fs::path path = blobs / file.blob;
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return failed("open", path);
  Result<bool> right = hash_matches(fd, file, path);
  close(fd);
  return right;
}

}  // namespace nibble
