#include "server/http/listening_socket.h"

#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <memory>

#include "base/check.h"

namespace nibble::http {
namespace {

sockaddr_storage address_of(int handle) {
  sockaddr_storage address{};
  socklen_t size = sizeof address;
  NIBBLE_CHECK(getsockname(handle, reinterpret_cast<sockaddr*>(&address), &size) == 0);
  return address;
}

}  // namespace

Result<ListeningSocket> ListeningSocket::open(const std::string& host, int port) {
  const addrinfo hints{.ai_flags = AI_PASSIVE | AI_NUMERICSERV,
                       .ai_family = AF_UNSPEC,
                       .ai_socktype = SOCK_STREAM,
                       .ai_protocol = 0,
                       .ai_addrlen = 0,
                       .ai_addr = nullptr,
                       .ai_canonname = nullptr,
                       .ai_next = nullptr};
  addrinfo* list = nullptr;
  if (getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &list) != 0)
    return invalid_argument("--host " + host + ": no such address; give one of this machine, as 127.0.0.1");
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> owner(list, freeaddrinfo);
  ListeningSocket listening(
      ::socket(list->ai_family, list->ai_socktype | SOCK_CLOEXEC | SOCK_NONBLOCK, list->ai_protocol));
  const int on = 1;
  if (listening.handle_ < 0 || setsockopt(listening.handle_, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) != 0 ||
      ::bind(listening.handle_, list->ai_addr, list->ai_addrlen) != 0 ||
      ::listen(listening.handle_, SOMAXCONN) != 0) {
    return io_error("cannot listen on " + host + " port " + std::to_string(port) + ": " +
                    std::strerror(errno) + "; give another --port or --host");
  }
  return listening;
}

ListeningSocket::~ListeningSocket() {
  if (handle_ >= 0) ::close(handle_);
}

int ListeningSocket::port() const {
  const sockaddr_storage address = address_of(handle_);
  return ntohs(address.ss_family == AF_INET6 ? reinterpret_cast<const sockaddr_in6&>(address).sin6_port
                                             : reinterpret_cast<const sockaddr_in&>(address).sin_port);
}

bool ListeningSocket::is_ipv6() const { return address_of(handle_).ss_family == AF_INET6; }

}  // namespace nibble::http
