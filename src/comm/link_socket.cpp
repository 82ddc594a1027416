#include "comm/link_socket.h"

#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <memory>
#include <thread>

#include "base/quote.h"

namespace nibble {
namespace {

using std::chrono::milliseconds;

struct FreeAddresses {
  void operator()(addrinfo* list) const { freeaddrinfo(list); }
};
using Addresses = std::unique_ptr<addrinfo, FreeAddresses>;

Result<Addresses> addresses_of(const LinkAddress& address, int flags) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = flags | AI_NUMERICSERV;
  addrinfo* list = nullptr;
  const int error = getaddrinfo(address.host.c_str(), std::to_string(address.port).c_str(), &hints, &list);
  if (error != 0)
    return invalid_argument("the host " + quote(address.host) + " is not known: " + gai_strerror(error));
  return Addresses(list);
}

Status system_error(const std::string& what) { return io_error(what + ": " + std::strerror(errno)); }

// Whether a descriptor can be read before then.
bool readable(int descriptor, LinkSocket::Clock::time_point until) {
  while (true) {
    const auto left = std::chrono::duration_cast<milliseconds>(until - LinkSocket::Clock::now());
    pollfd wanted{.fd = descriptor, .events = POLLIN, .revents = 0};
    const int found = poll(&wanted, 1, static_cast<int>(std::clamp<std::int64_t>(left.count(), 0, 60'000)));
    if (found > 0) return true;
    if (LinkSocket::Clock::now() >= until) return false;
  }
}

void set(int descriptor, int level, int option, int value) {
  setsockopt(descriptor, level, option, &value, sizeof value);
}

void limit(int descriptor, int option, milliseconds time) {
  const timeval limit{.tv_sec = time.count() / 1000, .tv_usec = time.count() % 1000 * 1000};
  setsockopt(descriptor, SOL_SOCKET, option, &limit, sizeof limit);
}

}  // namespace

Result<LinkAddress> LinkAddress::parse(const std::string& text) {
  const std::size_t colon = text.rfind(':');
  LinkAddress address;
  if (colon != std::string::npos) {
    address.host = text.substr(0, colon);
    if (address.host.size() > 2 && address.host.front() == '[' && address.host.back() == ']')
      address.host = address.host.substr(1, address.host.size() - 2);
    else if (address.host.find(':') != std::string::npos)
      address.host.clear();
    const char* const end = text.data() + text.size();
    if (const auto [at, error] = std::from_chars(text.data() + colon + 1, end, address.port);
        error != std::errc() || at != end)
      address.port = 0;
  }
  if (address.host.empty() || address.port < 1 || address.port > 65535)
    return invalid_argument(quote(text) +
                            " is no address; give a host and a port, such as 10.0.0.1:5000 or [::1]:5000");
  return address;
}

std::string LinkAddress::text() const {
  const bool number = host.find(':') != std::string::npos;
  return (number ? "[" + host + "]" : host) + ":" + std::to_string(port);
}

bool LinkAddress::is_loopback() const {
  return host == "localhost" || host == "::1" || host.starts_with("127.");
}

LinkSocket::~LinkSocket() {
  if (descriptor_ >= 0) close(descriptor_);
}

Result<LinkSocket> LinkSocket::listen(const LinkAddress& at) {
  NIBBLE_ASSIGN(const Addresses addresses, addresses_of(at, AI_PASSIVE));
  LinkSocket socket(::socket(addresses->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!socket.is_open()) return system_error("no socket");
  set(socket.descriptor_, SOL_SOCKET, SO_REUSEADDR, 1);
  constexpr int waiting = 64;
  if (bind(socket.descriptor_, addresses->ai_addr, addresses->ai_addrlen) != 0 ||
      ::listen(socket.descriptor_, waiting) != 0)
    return system_error("cannot listen at " + at.text());
  return socket;
}

Result<LinkSocket> LinkSocket::accept(Clock::time_point until) const {
  while (readable(descriptor_, until)) {
    LinkSocket socket(::accept4(descriptor_, nullptr, nullptr, SOCK_CLOEXEC));
    if (!socket.is_open()) continue;  // who called has gone again
    set(socket.descriptor_, IPPROTO_TCP, TCP_NODELAY, 1);
    return socket;
  }
  return Status(StatusCode::cancelled, "nobody connected in time");
}

Result<LinkSocket> LinkSocket::connect(const LinkAddress& to, Clock::time_point until) {
  constexpr milliseconds between_tries{50};
  // A name may be of a machine that is still being started; a wrong one should not be tried for minutes.
  constexpr std::chrono::seconds until_known{30};
  const Clock::time_point known_until = std::min(until, Clock::now() + until_known);
  while (true) {
    const Result<Addresses> addresses = addresses_of(to, 0);
    if (!addresses.ok()) {
      if (Clock::now() + between_tries >= known_until) return addresses.status();
      std::this_thread::sleep_for(between_tries);
      continue;
    }
    int error = 0;
    for (const addrinfo* each = addresses->get(); each != nullptr; each = each->ai_next) {
      LinkSocket socket(::socket(each->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
      if (!socket.is_open()) return system_error("no socket");
      // Without it the system tries for minutes where packets are lost.
      set(socket.descriptor_, IPPROTO_TCP, TCP_USER_TIMEOUT, 5000);
      set(socket.descriptor_, IPPROTO_TCP, TCP_SYNCNT, 2);
      if (::connect(socket.descriptor_, each->ai_addr, each->ai_addrlen) == 0) {
        set(socket.descriptor_, IPPROTO_TCP, TCP_NODELAY, 1);
        return socket;
      }
      error = errno;
    }
    if (Clock::now() + between_tries >= until)
      return Status(StatusCode::io_error, "cannot connect to " + to.text() + ": " + std::strerror(error));
    std::this_thread::sleep_for(between_tries);
  }
}

Result<LinkAddress> LinkSocket::address() const {
  sockaddr_storage own{};
  socklen_t size = sizeof own;
  char host[NI_MAXHOST], port[NI_MAXSERV];
  if (getsockname(descriptor_, reinterpret_cast<sockaddr*>(&own), &size) != 0 ||
      getnameinfo(reinterpret_cast<const sockaddr*>(&own), size, host, sizeof host, port, sizeof port,
                  NI_NUMERICHOST | NI_NUMERICSERV) != 0)
    return system_error("a socket has no address");
  LinkAddress address{.host = host};
  std::from_chars(port, port + std::strlen(port), address.port);
  return address;
}

void LinkSocket::limit_sends(milliseconds time) const { limit(descriptor_, SO_SNDTIMEO, time); }
void LinkSocket::limit_receives(milliseconds time) const { limit(descriptor_, SO_RCVTIMEO, time); }

Status LinkSocket::send(std::span<const std::byte> head, std::span<const std::byte> body) const {
  while (!head.empty() || !body.empty()) {
    iovec parts[2] = {{.iov_base = const_cast<std::byte*>(head.data()), .iov_len = head.size()},
                      {.iov_base = const_cast<std::byte*>(body.data()), .iov_len = body.size()}};
    const msghdr message{.msg_name = nullptr,
                         .msg_namelen = 0,
                         .msg_iov = parts,
                         .msg_iovlen = 2,
                         .msg_control = nullptr,
                         .msg_controllen = 0,
                         .msg_flags = 0};
    const ssize_t sent = sendmsg(descriptor_, &message, MSG_NOSIGNAL);
    if (sent < 0 && errno == EINTR) continue;
    if (sent < 0) return system_error("a send failed");
    const std::size_t of_head = std::min(head.size(), static_cast<std::size_t>(sent));
    head = head.subspan(of_head);
    body = body.subspan(static_cast<std::size_t>(sent) - of_head);
  }
  return {};
}

Status LinkSocket::receive(std::span<std::byte> into) const {
  while (!into.empty()) {
    const ssize_t came = recv(descriptor_, into.data(), into.size(), 0);
    if (came == 0) return {StatusCode::cancelled, "the other end is closed"};
    if (came < 0 && errno == EINTR) continue;
    if (came < 0) return system_error("a receive failed");
    into = into.subspan(static_cast<std::size_t>(came));
  }
  return {};
}

void LinkSocket::shut_down() const {
  if (descriptor_ >= 0) shutdown(descriptor_, SHUT_RDWR);
}

}  // namespace nibble
