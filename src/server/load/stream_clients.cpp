#include "server/load/stream_clients.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdint>
#include <cstring>

#include "base/check.h"

namespace nibble {
namespace {

constexpr std::size_t tail_bytes = 8;

std::chrono::nanoseconds now() { return std::chrono::steady_clock::now().time_since_epoch(); }

}  // namespace

StreamClients::StreamClients(int port, int clients, OnEvent on_event)
    : port_(port),
      poll_(epoll_create1(EPOLL_CLOEXEC)),
      on_event_(std::move(on_event)),
      clients_(static_cast<std::size_t>(clients)),
      outcomes_(static_cast<std::size_t>(clients)) {
  NIBBLE_CHECK(poll_ >= 0);
}

StreamClients::~StreamClients() {
  for (Client& client : clients_)
    if (client.handle >= 0) ::close(client.handle);
  ::close(poll_);
}

void StreamClients::begin(int number, std::string_view path, std::string_view body) {
  Client& client = clients_[static_cast<std::size_t>(number)];
  outcomes_[static_cast<std::size_t>(number)].begun = now();
  ++open_;
  client.handle = ::socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (client.handle < 0) return end(number, false);
  const int on = 1;
  ::setsockopt(client.handle, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  client.unsent = "POST " + std::string(path) +
                  " HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nConnection: "
                  "close\r\nContent-Length: " +
                  std::to_string(body.size()) + "\r\n\r\n" + std::string(body);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<std::uint16_t>(port_));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (::connect(client.handle, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0 &&
      errno != EINPROGRESS) {
    return end(number, false);
  }
  epoll_event event{.events = EPOLLIN | EPOLLOUT, .data = {.u32 = static_cast<std::uint32_t>(number)}};
  ::epoll_ctl(poll_, EPOLL_CTL_ADD, client.handle, &event);
}

void StreamClients::write(int number) {
  Client& client = clients_[static_cast<std::size_t>(number)];
  if (client.unsent.empty()) return;
  const ssize_t sent = ::send(client.handle, client.unsent.data(), client.unsent.size(), MSG_NOSIGNAL);
  if (sent < 0) {
    if (errno == EAGAIN || errno == ENOTCONN) return;
    client.unsent.clear();  // refused early, perhaps: what was said about it is read
  } else {
    client.unsent.erase(0, static_cast<std::size_t>(sent));
  }
  if (!client.unsent.empty()) return;
  epoll_event event{.events = EPOLLIN, .data = {.u32 = static_cast<std::uint32_t>(number)}};
  ::epoll_ctl(poll_, EPOLL_CTL_MOD, client.handle, &event);
}

void StreamClients::read(int number) {
  Client& client = clients_[static_cast<std::size_t>(number)];
  Outcome& outcome = outcomes_[static_cast<std::size_t>(number)];
  std::array<char, 16 << 10> bytes;
  const ssize_t size = ::recv(client.handle, bytes.data(), bytes.size(), 0);
  if (size < 0 && errno == EAGAIN) return;
  if (size <= 0) return end(number, size == 0);
  const std::string_view part(bytes.data(), static_cast<std::size_t>(size));
  if (outcome.status == 0 && part.starts_with("HTTP/1.1 ") && part.size() > 12)
    outcome.status = (part[9] - '0') * 100 + (part[10] - '0') * 10 + part[11] - '0';
  // An event ends with an empty line; framing never has one made of two bare newlines.
  char before = client.tail.empty() ? '\0' : client.tail.back();
  for (const char* at = part.data(); at < part.data() + part.size();) {
    const char* const newline = static_cast<const char*>(
        std::memchr(at, '\n', static_cast<std::size_t>(part.data() + part.size() - at)));
    if (newline == nullptr) break;
    const char previous = newline == part.data() ? before : newline[-1];
    if (previous == '\n') on_event_(number, outcome.events++);
    at = newline + 1;
  }
  client.tail.append(part.substr(part.size() - std::min(part.size(), tail_bytes)));
  client.tail.erase(0, client.tail.size() - std::min(client.tail.size(), tail_bytes));
}

void StreamClients::end(int number, bool closed) {
  Client& client = clients_[static_cast<std::size_t>(number)];
  Outcome& outcome = outcomes_[static_cast<std::size_t>(number)];
  outcome.ended = now();
  outcome.whole = closed && (outcome.status != 200 || client.tail.ends_with("0\r\n\r\n"));
  if (client.handle >= 0) ::close(client.handle);
  client.handle = -1;
  --open_;
}

void StreamClients::serve(std::chrono::milliseconds time) {
  std::array<epoll_event, 256> events;
  const int count =
      ::epoll_wait(poll_, events.data(), static_cast<int>(events.size()), static_cast<int>(time.count()));
  for (int i = 0; i < count; ++i) {
    const epoll_event& event = events[static_cast<std::size_t>(i)];
    const int number = static_cast<int>(event.data.u32);
    if ((event.events & EPOLLOUT) != 0) write(number);
    if ((event.events & (EPOLLIN | EPOLLHUP | EPOLLERR)) != 0) read(number);
  }
}

std::string stream_request(int token, int tokens) {
  return R"({"model":"fake","stream":true,"ignore_eos":true,"max_tokens":)" + std::to_string(tokens) +
         R"(,"prompt":[)" + std::to_string(token) + "]}";
}

}  // namespace nibble
