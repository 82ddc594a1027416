// Locks between processes: flock on a file or a folder. The system gives one back when its process ends,
// however it ends.
#pragma once

#include <filesystem>
#include <optional>
#include <utility>

#include "base/status.h"

namespace nibble {

class FileLock {
 public:
  FileLock() = default;  // holds nothing
  ~FileLock();
  FileLock(FileLock&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  FileLock& operator=(FileLock&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }

  bool held() const { return fd_ >= 0; }

  // Makes the file, and its folder, where they are absent. Nothing when another process holds it.
  static Result<std::optional<FileLock>> try_file(const std::filesystem::path& path);

  // Of a folder that is there; nothing when another process holds it in a way that excludes this one.
  // `shared` locks exclude exclusive ones alone. A file system without such locks gives a lock of nothing.
  static std::optional<FileLock> try_folder(const std::filesystem::path& path, bool shared);

 private:
  explicit FileLock(int fd) : fd_(fd) {}

  int fd_ = -1;
};

}  // namespace nibble
