#include "base/cpu_claims.h"

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <cstring>
#include <fstream>
#include <string>

namespace nibble {
namespace {

constexpr std::string_view prefix = "nibble-cpu-";

// A socket with the CPU's name, or -1 where another has that.
int claim(int cpu) {
  const int made = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  if (made < 0) return -1;
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  const std::string name = std::string(prefix) + std::to_string(cpu);
  std::memcpy(address.sun_path + 1, name.data(), name.size());  // behind a zero byte: a name without a file
  const auto length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  if (bind(made, reinterpret_cast<const sockaddr*>(&address), length) == 0) return made;
  close(made);
  return -1;
}

}  // namespace

CpuClaims CpuClaims::take(std::span<const int> cpus, std::size_t count) {
  CpuClaims claims;
  for (const int cpu : cpus) {
    if (claims.cpus_.size() == count) break;
    const int made = claim(cpu);
    if (made < 0) continue;
    claims.cpus_.push_back(cpu);
    claims.sockets_.push_back(made);
  }
  if (claims.cpus_.size() < count) return {};
  return claims;
}

CpuClaims::~CpuClaims() {
  for (const int each : sockets_) close(each);
}

std::vector<int> claimed_cpus(const char* list) {
  std::vector<int> cpus;
  std::ifstream lines(list);
  for (std::string line; std::getline(lines, line);) {
    const std::size_t at = line.find(" @" + std::string(prefix));
    if (at == std::string::npos) continue;
    const std::string_view number = std::string_view(line).substr(at + 2 + prefix.size());
    int cpu = -1;
    const auto [end, error] = std::from_chars(number.data(), number.data() + number.size(), cpu);
    if (error == std::errc() && end == number.data() + number.size() && cpu >= 0) cpus.push_back(cpu);
  }
  std::sort(cpus.begin(), cpus.end());
  return cpus;
}

}  // namespace nibble
