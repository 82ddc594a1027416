#include "app/service_manager.h"

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdlib>
#include <cstring>

#include "base/quote.h"

namespace nibble {

Status notify_service_manager(const std::string& socket, std::string_view state) {
  if (socket.empty()) return {};
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  const bool abstract = socket.starts_with('@');
  if ((!abstract && !socket.starts_with('/')) || socket.size() >= sizeof address.sun_path) {
    return invalid_argument("NOTIFY_SOCKET " + quote(socket) + " is no address of a Unix socket");
  }
  std::ranges::copy(socket, address.sun_path);
  if (abstract) address.sun_path[0] = '\0';
  const auto length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + socket.size());
  const int descriptor = ::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  if (descriptor < 0) return io_error(std::string("no socket: ") + std::strerror(errno));
  const ssize_t sent = sendto(descriptor, state.data(), state.size(), MSG_NOSIGNAL,
                              reinterpret_cast<const sockaddr*>(&address), length);
  const int error = errno;
  close(descriptor);
  if (sent < 0) return io_error("NOTIFY_SOCKET " + quote(socket) + ": " + std::strerror(error));
  return {};
}

void notify_service_manager(std::string_view state) {
  const char* const socket = std::getenv("NOTIFY_SOCKET");
  if (socket != nullptr) (void)notify_service_manager(std::string(socket), state);
}

}  // namespace nibble
