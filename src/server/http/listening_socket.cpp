#include "server/http/listening_socket.h"

#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>

#include "base/check.h"

namespace nibble::http {
namespace {

constexpr std::string_view unix_prefix = "unix:";

Status cannot_listen(const std::string& where, int error) {
  return io_error("cannot listen on " + where + ": " + std::strerror(error) +
                  "; give another --port or --host");
}

// The address of a file; the path fits.
sockaddr_un file_address(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path, path.c_str(), path.size() + 1);
  return address;
}

// Whether a server accepts at a path.
bool somebody_listens(const std::string& path) {
  const int handle = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (handle < 0) return true;
  const sockaddr_un address = file_address(path);
  const bool refused = ::connect(handle, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0 &&
                       errno == ECONNREFUSED;
  ::close(handle);
  return !refused;
}

// Makes sure that the path is free: deletes a socket's file that its server left behind.
Status clear_path(const std::string& path) {
  struct stat facts {};
  if (lstat(path.c_str(), &facts) != 0) return {};  // nothing is there, or bind() will say what is wrong
  if (!S_ISSOCK(facts.st_mode))
    return invalid_argument("--host unix:" + path +
                            ": a file is there that is no socket; delete it or give another path");
  if (somebody_listens(path))
    return io_error("--host unix:" + path + ": another server listens there; stop it or give another path");
  unlink(path.c_str());
  return {};
}

sockaddr_storage address_of(int handle) {
  sockaddr_storage address{};
  socklen_t size = sizeof address;
  NIBBLE_CHECK(getsockname(handle, reinterpret_cast<sockaddr*>(&address), &size) == 0);
  return address;
}

}  // namespace

bool is_unix_host(const std::string& host) { return host.starts_with(unix_prefix); }

void SocketFile::remove() const {
  struct stat facts {};
  if (lstat(path.c_str(), &facts) == 0 && facts.st_dev == device && facts.st_ino == inode)
    unlink(path.c_str());
}

Result<ListeningSocket> ListeningSocket::open_file(const std::string& path, mode_t mode) {
  if (path.empty() || path.front() != '/' || path.find('\0') != std::string::npos)
    return invalid_argument("--host unix:" + path +
                            ": give an absolute path, as unix:/run/nibble/nibble.sock");
  // The socket is made under another name and renamed when its permissions are right and it listens, so no
  // client meets one that is not ready, or is open to more users than it should be.
  const std::string draft = path + ".new";
  if (draft.size() >= sizeof sockaddr_un{}.sun_path)
    return invalid_argument("--host unix:" + path + ": the path is longer than the " +
                            std::to_string(sizeof sockaddr_un{}.sun_path - 5) +
                            " bytes that the system allows");
  NIBBLE_RETURN_IF_ERROR(clear_path(path));
  NIBBLE_RETURN_IF_ERROR(clear_path(draft));
  ListeningSocket listening(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  const sockaddr_un address = file_address(draft);
  struct stat facts {};
  if (listening.handle_ < 0 ||
      ::bind(listening.handle_, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0)
    return cannot_listen("unix:" + path, errno);
  if (::chmod(draft.c_str(), mode) != 0 || ::listen(listening.handle_, SOMAXCONN) != 0 ||
      ::rename(draft.c_str(), path.c_str()) != 0 || ::lstat(path.c_str(), &facts) != 0) {
    const int error = errno;
    ::unlink(draft.c_str());
    return cannot_listen("unix:" + path, error);
  }
  listening.file_ = SocketFile{.path = path, .device = facts.st_dev, .inode = facts.st_ino};
  return listening;
}

Result<ListeningSocket> ListeningSocket::open(const std::string& host, int port, mode_t mode) {
  if (is_unix_host(host)) return open_file(host.substr(unix_prefix.size()), mode);
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
    return cannot_listen(host + " port " + std::to_string(port), errno);
  }
  return listening;
}

ListeningSocket::~ListeningSocket() {
  if (handle_ >= 0) ::close(handle_);
}

int ListeningSocket::port() const {
  const sockaddr_storage address = address_of(handle_);
  if (address.ss_family == AF_INET6) return ntohs(reinterpret_cast<const sockaddr_in6&>(address).sin6_port);
  if (address.ss_family == AF_INET) return ntohs(reinterpret_cast<const sockaddr_in&>(address).sin_port);
  return 0;
}

int ListeningSocket::family() const { return address_of(handle_).ss_family; }

}  // namespace nibble::http
