#include "comm/link_key.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/rand.h>

#include <string>
#include <vector>

#include "base/check.h"
#include "base/file.h"

namespace nibble {

Result<LinkKey> LinkKey::from_file(const std::filesystem::path& file) {
  constexpr std::size_t most = 4096;
  NIBBLE_ASSIGN(std::string bytes, read_file(file, most));
  bytes.erase(bytes.find_last_not_of("\r\n") + 1);
  if (bytes.size() < least_bytes) {
    return invalid_argument("the key in " + file.string() + " has " + std::to_string(bytes.size()) +
                            " bytes; give at least " + std::to_string(least_bytes) +
                            ", such as those of: openssl rand -hex 32");
  }
  return LinkKey(bytes);
}

LinkKey::Nonce LinkKey::draw_nonce() {
  Nonce nonce;
  NIBBLE_CHECK(RAND_bytes(reinterpret_cast<unsigned char*>(nonce.data()), static_cast<int>(nonce.size())) ==
               1);
  return nonce;
}

LinkKey::Proof LinkKey::prove(Side side, const Nonce& of_caller, const Nonce& of_called) const {
  constexpr std::string_view name = "nibble ranks 1";
  std::vector<unsigned char> text(name.begin(), name.end());
  text.push_back(static_cast<unsigned char>(side));
  for (const Nonce* nonce : {&of_caller, &of_called})
    for (const std::byte byte : *nonce) text.push_back(static_cast<unsigned char>(byte));
  Proof proof;
  unsigned int size = 0;
  // An empty key needs a pointer too.
  const void* const key = bytes_.empty() ? static_cast<const void*>("") : bytes_.data();
  NIBBLE_CHECK(HMAC(EVP_sha256(), key, static_cast<int>(bytes_.size()), text.data(), text.size(),
                    reinterpret_cast<unsigned char*>(proof.data()), &size) != nullptr &&
               size == proof.size());
  return proof;
}

bool LinkKey::proves(const Proof& proof, Side side, const Nonce& of_caller, const Nonce& of_called) const {
  const Proof own = prove(side, of_caller, of_called);
  return CRYPTO_memcmp(own.data(), proof.data(), own.size()) == 0;
}

}  // namespace nibble
