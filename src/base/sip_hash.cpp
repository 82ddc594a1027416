#include "base/sip_hash.h"

#include <sys/random.h>

#include <cerrno>

#include "base/check.h"

namespace nibble {

HashKey drawn_key() {
  HashKey key{};
  ssize_t got = -1;
  // Sixteen bytes come whole; a signal can interrupt the wait for the kernel's first random numbers.
  while ((got = getrandom(key.data(), sizeof key, 0)) < 0 && errno == EINTR) {
  }
  NIBBLE_CHECK(got == static_cast<ssize_t>(sizeof key), "the kernel gives random numbers");
  return key;
}

}  // namespace nibble
