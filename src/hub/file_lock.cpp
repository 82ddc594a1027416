#include "hub/file_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "base/quote.h"

namespace nibble {
namespace {

namespace fs = std::filesystem;

// huggingface_hub's mode: users of one group may share a cache.
constexpr mode_t kMode = 0664;
// A lock file that whoever held it deletes while we open it is opened again, this often at most.
constexpr int kTries = 100;

bool is_still_there(int fd, const fs::path& path) {
  struct stat held {};
  struct stat there {};
  return fstat(fd, &held) == 0 && stat(path.c_str(), &there) == 0 && held.st_ino == there.st_ino &&
         held.st_dev == there.st_dev;
}

}  // namespace

FileLock::~FileLock() {
  if (fd_ >= 0) close(fd_);
}

Result<std::optional<FileLock>> FileLock::try_file(const fs::path& path) {
  std::error_code error;
  fs::create_directories(path.parent_path(), error);
  if (error)
    return io_error("cannot make the folder " + quote(path.parent_path().native()) + ": " + error.message());
  for (int i = 0; i < kTries; ++i) {
    const int fd = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, kMode);
    if (fd < 0) return io_error("cannot open the lock " + quote(path.native()) + ": " + std::strerror(errno));
    FileLock lock(fd);
    if (flock(fd, LOCK_EX | LOCK_NB) != 0) {
      if (errno == EWOULDBLOCK) return std::optional<FileLock>();
      // The file system has no such locks. What is downloaded is renamed into place when it is whole, so two
      // processes cost time and damage nothing.
      return std::optional<FileLock>(std::move(lock));
    }
    if (is_still_there(fd, path)) return std::optional<FileLock>(std::move(lock));
  }
  return io_error("the lock " + quote(path.native()) + " is deleted again and again");
}

std::optional<FileLock> FileLock::try_folder(const fs::path& path, bool shared) {
  const int fd = open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return FileLock();
  FileLock lock(fd);
  if (flock(fd, (shared ? LOCK_SH : LOCK_EX) | LOCK_NB) != 0 && errno == EWOULDBLOCK) return std::nullopt;
  return lock;
}

}  // namespace nibble
