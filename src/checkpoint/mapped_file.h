// A file's bytes, mapped into memory where possible and read into a buffer where not.
//
// Other processes may change a file while it is mapped. Touching a page that the file no longer has raises
// SIGBUS, which would kill the process. So mappings are known to a process-wide table, and a SIGBUS handler
// puts a page of zeros where the lost one was and marks the mapping; intact() then says what happened.
// The table and the handler are the one piece of global state in nibble: a signal has no other way to
// find out whose page it was about. A SIGBUS elsewhere goes to the handler that was there before.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>

#include "base/status.h"

namespace nibble {

enum class FileAccess : std::uint8_t {
  map_or_read,
  read,  // never map: a private copy that later changes of the file cannot touch
};

class MappedFile {
 public:
  // Regular files only. An empty file is an empty span.
  static Result<MappedFile> open(const std::filesystem::path& path,
                                 FileAccess access = FileAccess::map_or_read);

  MappedFile(MappedFile&&) noexcept;
  MappedFile& operator=(MappedFile&&) noexcept;
  ~MappedFile();

  // Valid while this object lives (moving it is fine); starts on a 64-byte boundary.
  std::span<const std::byte> bytes() const;
  // Copies bytes() from `offset` on. It maps no page: taking pages out of the mapping again costs as much as
  // a third of copying them. An error where the file no longer has the bytes.
  Status read(std::size_t offset, std::span<std::byte> to) const;
  // Maps the pages of bytes [offset, offset + size) if they are in the page cache, so that nobody has to
  // fault them in one by one; returns how many bytes that were. What would have to come from the disk is left
  // alone. offset is a multiple of 2 MiB; ranges may be mapped at once by several threads.
  std::size_t map_cached(std::size_t offset, std::size_t size) const;
  // Gives the memory of whole pages within a part of bytes() back to the system: whoever reads them again
  // maps them again.
  void release(std::span<const std::byte> part) const;
  const std::filesystem::path& path() const;
  bool is_mapped() const;

  // Whether bytes() still is what was opened. An error when the file has shrunk, grown or been written to
  // since, or when a page could not be read; what was computed from it since the last ok is worthless.
  // A few system calls' worth of work at most: meant to be asked once a step.
  Status intact() const;

 private:
  struct State;
  explicit MappedFile(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace nibble
