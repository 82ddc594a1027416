// A blob while it is downloaded: in any order, by several connections, and over several runs.
//
// One file, blobs/<name>.nibble.incomplete, has the content and behind it a byte for each MiB, 1 where that
// MiB has been written. A MiB is written before its byte, so a process may be killed between any two
// instructions. After a loss of power the bytes may be ahead of the content; the hash at the end finds that.
// The name is nibble's own: what older versions of huggingface_hub leave as <name>.incomplete is a beginning,
// without a record of its parts.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "hub/listing.h"

namespace nibble {

class PartialBlob {
 public:
  static constexpr std::int64_t kBlock = std::int64_t{1} << 20;

  // What an earlier run left is taken up; where nothing fits, the file is new.
  static Result<PartialBlob> open(const std::filesystem::path& blobs, const HubFile& file);
  ~PartialBlob();
  PartialBlob(PartialBlob&& other) noexcept;
  PartialBlob& operator=(PartialBlob&& other) noexcept;

  std::int64_t size() const { return file_.size; }
  std::int64_t blocks() const { return (file_.size + kBlock - 1) / kBlock; }
  // As the file had them when it was opened.
  const std::vector<char>& done() const { return done_; }
  bool resumed() const { return resumed_; }

  // Any thread may write; two never the same place. `at + bytes.size()` is at most size().
  Status write(std::int64_t at, std::string_view bytes) const;
  // Call it once the whole block is written.
  Status mark(std::int64_t block) const;

  // Hashes the content; empty where the file cannot be read.
  Result<bool> is_right() const;
  // Makes it the blob of its name. Not before is_right().
  Status finish();
  // Throws away what there is and begins anew.
  Status restart();

 private:
  PartialBlob(std::filesystem::path path, std::filesystem::path destination, HubFile file)
      : path_(std::move(path)), destination_(std::move(destination)), file_(std::move(file)) {}

  std::filesystem::path path_;
  std::filesystem::path destination_;
  HubFile file_;
  int fd_ = -1;
  std::vector<char> done_;
  bool resumed_ = false;
};

// Bytes of the disk that what an earlier run left of a blob takes.
std::int64_t disk_bytes_of_partial(const std::filesystem::path& blobs, const HubFile& file);

// Whether a blob that lies in the cache has the size that the hub says. Its content is not read.
bool has_blob(const std::filesystem::path& blobs, const HubFile& file);
// Whether its content is what its name says.
Result<bool> blob_is_right(const std::filesystem::path& blobs, const HubFile& file);

}  // namespace nibble
