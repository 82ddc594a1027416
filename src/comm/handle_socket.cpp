#include "comm/handle_socket.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <thread>

#include "base/check.h"

namespace nibble {
namespace {

using std::chrono::milliseconds;

Status system_error(const std::string& what) { return io_error(what + ": " + std::strerror(errno)); }

struct Address {
  sockaddr_un text{};
  socklen_t size = 0;

  // A name without a file: behind a zero byte.
  explicit Address(const std::string& name) {
    NIBBLE_CHECK(name.size() + 1 < sizeof text.sun_path);
    text.sun_family = AF_UNIX;
    std::memcpy(text.sun_path + 1, name.data(), name.size());
    size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  }
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&text); }
};

// Messages keep their borders.
Descriptor new_socket() { return Descriptor(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0)); }

bool is_of_this_user(int socket) {
  ucred peer{};
  socklen_t size = sizeof peer;
  return getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0 && peer.uid == geteuid();
}

bool readable(int socket, HandleSocket::Clock::time_point until) {
  while (true) {
    const auto left = std::chrono::duration_cast<milliseconds>(until - HandleSocket::Clock::now());
    pollfd wanted{.fd = socket, .events = POLLIN, .revents = 0};
    if (poll(&wanted, 1, static_cast<int>(std::clamp<std::int64_t>(left.count(), 0, 60'000))) > 0)
      return true;
    if (HandleSocket::Clock::now() >= until) return false;
  }
}

constexpr std::size_t control_bytes = CMSG_SPACE(HandleSocket::most_files * sizeof(int));
struct Control {
  alignas(cmsghdr) std::byte room[control_bytes] = {};
};

}  // namespace

Result<HandleSocket> HandleSocket::listen(const std::string& name) {
  Descriptor socket = new_socket();
  if (!socket.is_open()) return system_error("no socket of this host");
  const Address address(name);
  constexpr int waiting = 16;
  if (bind(socket.get(), address.get(), address.size) != 0 || ::listen(socket.get(), waiting) != 0)
    return system_error("cannot listen to processes of this host");
  return HandleSocket(std::move(socket));
}

Result<HandleSocket> HandleSocket::accept(Clock::time_point until) const {
  while (readable(socket_.get(), until)) {
    Descriptor socket(::accept4(socket_.get(), nullptr, nullptr, SOCK_CLOEXEC));
    if (socket.is_open() && is_of_this_user(socket.get())) return HandleSocket(std::move(socket));
  }
  return Status(StatusCode::cancelled, "nobody connected in time");
}

Result<HandleSocket> HandleSocket::connect(const std::string& name, Clock::time_point until) {
  constexpr milliseconds between_tries{20};
  const Address address(name);
  while (true) {
    Descriptor socket = new_socket();
    if (!socket.is_open()) return system_error("no socket of this host");
    if (::connect(socket.get(), address.get(), address.size) == 0) {
      if (is_of_this_user(socket.get())) return HandleSocket(std::move(socket));
      return invalid_argument("it is another user's");
    }
    if (Clock::now() + between_tries >= until) return system_error("it cannot be reached");
    std::this_thread::sleep_for(between_tries);
  }
}

Status HandleSocket::send(std::span<const std::byte> bytes, std::span<const int> files) const {
  NIBBLE_CHECK(!bytes.empty() && bytes.size() <= most_bytes && files.size() <= most_files);
  iovec part{.iov_base = const_cast<std::byte*>(bytes.data()), .iov_len = bytes.size()};
  Control control;
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  if (!files.empty()) {
    message.msg_control = control.room;
    message.msg_controllen = CMSG_SPACE(files.size_bytes());
    cmsghdr* const passed = CMSG_FIRSTHDR(&message);
    passed->cmsg_level = SOL_SOCKET;
    passed->cmsg_type = SCM_RIGHTS;
    passed->cmsg_len = CMSG_LEN(files.size_bytes());
    std::memcpy(CMSG_DATA(passed), files.data(), files.size_bytes());
  }
  while (true) {
    if (sendmsg(socket_.get(), &message, MSG_NOSIGNAL) >= 0) return {};
    if (errno != EINTR) return system_error("files could not be passed");
  }
}

Result<HandleSocket::Message> HandleSocket::receive(Clock::time_point until) const {
  if (!readable(socket_.get(), until)) return io_error("nothing came in time");
  Message came{.bytes = std::vector<std::byte>(most_bytes), .files = {}};
  iovec part{.iov_base = came.bytes.data(), .iov_len = came.bytes.size()};
  Control control;
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control.room;
  message.msg_controllen = sizeof control.room;
  ssize_t size = -1;
  do {
    size = recvmsg(socket_.get(), &message, MSG_CMSG_CLOEXEC);
  } while (size < 0 && errno == EINTR);
  if (size < 0) return system_error("a receive failed");
  // Before anything is refused: what came is this process's to close.
  for (cmsghdr* each = CMSG_FIRSTHDR(&message); each != nullptr; each = CMSG_NXTHDR(&message, each)) {
    if (each->cmsg_level != SOL_SOCKET || each->cmsg_type != SCM_RIGHTS) continue;
    for (std::size_t at = 0; at + sizeof(int) <= each->cmsg_len - CMSG_LEN(0); at += sizeof(int)) {
      int descriptor = -1;
      std::memcpy(&descriptor, CMSG_DATA(each) + at, sizeof descriptor);
      came.files.emplace_back(descriptor);
    }
  }
  if (size == 0) return Status(StatusCode::cancelled, "the other end is closed");
  if ((message.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) != 0)
    return io_error("a message is cut; may this process open more files (ulimit -n)?");
  came.bytes.resize(static_cast<std::size_t>(size));
  return came;
}

}  // namespace nibble
