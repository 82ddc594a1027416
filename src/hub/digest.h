// The hashes that name contents on the hub: sha256 of large files, git's sha1 of small ones.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

struct evp_md_ctx_st;

namespace nibble {

class Digest {
 public:
  static Digest sha256();
  // As git names a blob of this size: sha1 of "blob <size>", a zero byte and the content.
  static Digest git_blob(std::int64_t size);

  void update(const char* bytes, std::size_t size);
  // In lower case; once, at the end.
  std::string hex();

 private:
  explicit Digest(const void* kind);

  std::shared_ptr<evp_md_ctx_st> context_;
};

}  // namespace nibble
