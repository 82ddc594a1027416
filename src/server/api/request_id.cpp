#include "server/api/request_id.h"

#include <sys/random.h>

#include <algorithm>
#include <array>
#include <cstdint>

#include "base/check.h"

namespace nibble::api {

std::string new_request_id() {
  std::array<std::uint8_t, 16> bytes;
  // So few bytes come whole once the system's pool is filled, which it is long after start-up.
  const ::ssize_t got = ::getrandom(bytes.data(), bytes.size(), 0);
  NIBBLE_CHECK(got == ::ssize_t{16}, "the system gives random numbers");
  constexpr std::string_view digits = "0123456789abcdef";
  std::string id;
  for (const std::uint8_t byte : bytes) {
    id += digits[byte >> 4];
    id += digits[byte & 15];
  }
  return id;
}

bool may_echo(std::string_view id) {
  return !id.empty() && id.size() <= 256 &&
         std::all_of(id.begin(), id.end(), [](char c) { return c > ' ' && c < '\x7f'; });
}

}  // namespace nibble::api
