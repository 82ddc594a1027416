#include "hub/digest.h"

#include <openssl/evp.h>

#include "base/check.h"

namespace nibble {

Digest::Digest(const void* kind) : context_(EVP_MD_CTX_new(), EVP_MD_CTX_free) {
  NIBBLE_CHECK(context_ != nullptr);
  NIBBLE_CHECK(EVP_DigestInit_ex(context_.get(), static_cast<const EVP_MD*>(kind), nullptr) == 1);
}

Digest Digest::sha256() { return Digest(EVP_sha256()); }

Digest Digest::git_blob(std::int64_t size) {
  Digest digest(EVP_sha1());
  const std::string head = "blob " + std::to_string(size);
  digest.update(head.c_str(), head.size() + 1);
  return digest;
}

void Digest::update(const char* bytes, std::size_t size) {
  NIBBLE_CHECK(EVP_DigestUpdate(context_.get(), bytes, size) == 1);
}

std::string Digest::hex() {
  static constexpr char digits[] = "0123456789abcdef";
  unsigned char bytes[EVP_MAX_MD_SIZE];
  unsigned size = 0;
  NIBBLE_CHECK(EVP_DigestFinal_ex(context_.get(), bytes, &size) == 1);
  std::string text;
  for (unsigned i = 0; i < size; ++i) {
    text += digits[bytes[i] >> 4];
    text += digits[bytes[i] & 15];
  }
  return text;
}

}  // namespace nibble
