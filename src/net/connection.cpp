#include "net/connection.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <ctime>

#include "base/quote.h"

namespace nibble {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

constexpr milliseconds kLookAgain{100};
constexpr std::size_t kMostProxyHead = 16 << 10;

std::string system_words(int error) { return std::strerror(error); }

Status broken_off() { return io_error("the connection broke off"); }

// OpenSSL writes to the socket with write(), and a server that is gone would end the process by SIGPIPE. The
// signal is this thread's own, so it is held back here and taken before it is let through again.
class HeldSigpipe {
 public:
  HeldSigpipe() {
    sigemptyset(&pipe_);
    sigaddset(&pipe_, SIGPIPE);
    pthread_sigmask(SIG_BLOCK, &pipe_, &before_);
  }
  ~HeldSigpipe() {
    if (sigismember(&before_, SIGPIPE) == 0) {
      constexpr timespec none{};
      while (sigtimedwait(&pipe_, nullptr, &none) < 0 && errno == EINTR) {
      }
    }
    pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  }
  HeldSigpipe(const HeldSigpipe&) = delete;
  HeldSigpipe& operator=(const HeldSigpipe&) = delete;

 private:
  sigset_t pipe_;
  sigset_t before_;
};

struct Addresses {
  addrinfo* first = nullptr;
  ~Addresses() {
    if (first != nullptr) freeaddrinfo(first);
  }
};

bool is_address(const std::string& host) {
  unsigned char bytes[sizeof(in6_addr)];
  return inet_pton(AF_INET, host.c_str(), bytes) == 1 || inet_pton(AF_INET6, host.c_str(), bytes) == 1;
}

}  // namespace

Connection::Connection(const ConnectionOptions& options) : options_(options) {}

Connection::~Connection() {
  if (tls_ != nullptr) SSL_free(tls_);
  if (fd_ >= 0) close(fd_);
}

std::unique_ptr<Connection> Connection::open(const ConnectionOptions& options, NetFailure& failure) {
  std::unique_ptr<Connection> connection(new Connection(options));
  const auto deadline = [&] { return steady_clock::now() + options.patience; };
  failure = {.status = connection->connect(deadline())};
  if (failure.status.ok() && options.proxy && options.url.secure())
    failure = connection->ask_proxy(deadline());
  if (failure.status.ok() && options.url.secure()) failure = connection->start_tls(deadline());
  if (failure.status.code() == StatusCode::cancelled) failure.may_pass = false;
  if (!failure.status.ok()) return nullptr;
  return connection;
}

Status Connection::wait(short events, Deadline deadline) {
  for (;;) {
    if (options_.cancelled && options_.cancelled()) return {StatusCode::cancelled, "interrupted"};
    const auto left = std::chrono::duration_cast<milliseconds>(deadline - steady_clock::now());
    if (left.count() <= 0)
      return io_error("nothing came for " + std::to_string((options_.patience.count() + 999) / 1000) + " s");
    pollfd waiting{.fd = fd_, .events = events, .revents = 0};
    const int ready = poll(&waiting, 1, static_cast<int>(std::min(left, kLookAgain).count()));
    if (ready > 0) return {};
    if (ready < 0 && errno != EINTR) return io_error("poll failed: " + system_words(errno));
  }
}

Status Connection::connect(Deadline deadline) {
  const std::string& host = options_.proxy ? options_.proxy->host : options_.url.host;
  const std::string& port = options_.proxy ? options_.proxy->port : options_.url.port;
  addrinfo wanted{};
  wanted.ai_socktype = SOCK_STREAM;
  wanted.ai_flags = AI_ADDRCONFIG;
  Addresses found;
  int error = getaddrinfo(host.c_str(), port.c_str(), &wanted, &found.first);
  if (error == EAI_NONAME || error == EAI_ADDRFAMILY) {
    // A machine without a network has loopback nonetheless.
    wanted.ai_flags = 0;
    error = getaddrinfo(host.c_str(), port.c_str(), &wanted, &found.first);
  }
  if (error != 0) return io_error("there is no host " + quote(host) + " (" + gai_strerror(error) + ")");
  Status last = io_error("there is no host " + quote(host));
  for (const addrinfo* address = found.first; address != nullptr; address = address->ai_next) {
    last = connect_to(*address, deadline);
    if (last.ok() || last.code() == StatusCode::cancelled) return last;
    if (fd_ >= 0) close(std::exchange(fd_, -1));
  }
  return last.with_context((options_.proxy ? "the proxy " : "") + quote(host) + " port " + port);
}

Status Connection::connect_to(const addrinfo& address, Deadline deadline) {
  fd_ = socket(address.ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (fd_ < 0) return io_error("no socket: " + system_words(errno));
  const int on = 1;
  setsockopt(fd_, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  if (::connect(fd_, address.ai_addr, address.ai_addrlen) == 0) return {};
  if (errno != EINPROGRESS) return io_error(system_words(errno));
  NIBBLE_RETURN_IF_ERROR(wait(POLLOUT, deadline));
  int error = 0;
  socklen_t size = sizeof error;
  getsockopt(fd_, SOL_SOCKET, SO_ERROR, &error, &size);
  return error == 0 ? Status() : io_error(system_words(error));
}

NetFailure Connection::ask_proxy(Deadline deadline) {
  const bool bracketed = options_.url.host.find(':') != std::string::npos;
  const std::string target =
      (bracketed ? "[" + options_.url.host + "]" : options_.url.host) + ":" + options_.url.port;
  std::string request = "CONNECT " + target + " HTTP/1.1\r\nHost: " + target + "\r\n";
  if (!options_.proxy->authorization.empty())
    request += "Proxy-Authorization: " + options_.proxy->authorization + "\r\n";
  if (Status status = plain_write(request + "\r\n", deadline); !status.ok()) return {.status = status};
  // Byte by byte, for what follows the head belongs to TLS.
  std::string head;
  while (!head.ends_with("\r\n\r\n")) {
    char byte = 0;
    const Result<std::size_t> got = plain_read(&byte, 1, deadline);
    if (!got.ok()) return {.status = got.status().with_context("the proxy")};
    if (*got == 0 || head.size() == kMostProxyHead)
      return {.status = io_error("the proxy " + quote(options_.proxy->host) + " answers no HTTP")};
    head += byte;
  }
  const std::string code = head.starts_with("HTTP/1.") && head.size() > 12 ? head.substr(9, 3) : "";
  if (code.starts_with('2')) return {};
  if (code == "407")
    return {.status = invalid_argument("the proxy " + quote(options_.proxy->host) +
                                       " asks for a user and a password; put them into https_proxy, as "
                                       "http://user:password@host:port"),
            .may_pass = false};
  return {.status = io_error("the proxy " + quote(options_.proxy->host) + " does not connect to " + target +
                             ": " + quote(head.substr(0, head.find('\r')), 80)),
          .may_pass = code.starts_with('5')};
}

NetFailure Connection::start_tls(Deadline deadline) {
  NIBBLE_CHECK(options_.trust != nullptr);
  const std::string& host = options_.url.host;
  tls_ = SSL_new(options_.trust->context());
  NIBBLE_CHECK(tls_ != nullptr);
  SSL_set_fd(tls_, fd_);
  if (is_address(host)) {
    X509_VERIFY_PARAM_set1_ip_asc(SSL_get0_param(tls_), host.c_str());
  } else {
    SSL_set1_host(tls_, host.c_str());
    SSL_set_tlsext_host_name(tls_, host.c_str());
  }
  const HeldSigpipe held;
  for (;;) {
    ERR_clear_error();
    errno = 0;
    const int result = SSL_connect(tls_);
    if (result == 1) return {};
    const long verdict = SSL_get_verify_result(tls_);
    if (verdict != X509_V_OK)
      return {
          .status = io_error("the certificate of " + quote(host) + " is not trusted (" +
                             X509_verify_cert_error_string(verdict) + ", by " + options_.trust->source() +
                             "); where a proxy or a mirror has its own authority, name its certificate in "
                             "SSL_CERT_FILE"),
          .may_pass = false};
    bool end = false;
    if (Status status = wait_for_tls(result, deadline, end); !status.ok()) return {.status = status};
    if (end) return {.status = broken_off()};
  }
}

Status Connection::wait_for_tls(int result, Deadline deadline, bool& end) {
  const int system_error = errno;
  switch (SSL_get_error(tls_, result)) {
    case SSL_ERROR_WANT_READ: return wait(POLLIN, deadline);
    case SSL_ERROR_WANT_WRITE: return wait(POLLOUT, deadline);
    case SSL_ERROR_ZERO_RETURN: end = true; return {};
    case SSL_ERROR_SYSCALL:
      return system_error == 0 ? broken_off()
                               : io_error("the connection broke off: " + system_words(system_error));
    default: {
      const unsigned long error = ERR_get_error();
      if (ERR_GET_REASON(error) == SSL_R_UNEXPECTED_EOF_WHILE_READING) return broken_off();
      char words[160];
      ERR_error_string_n(error, words, sizeof words);
      return io_error("TLS failed: " + std::string(words));
    }
  }
}

Result<std::size_t> Connection::plain_read(char* to, std::size_t size, Deadline deadline) {
  for (;;) {
    const ssize_t got = recv(fd_, to, size, 0);
    if (got >= 0) return static_cast<std::size_t>(got);
    if (errno == EINTR) continue;
    if (errno != EAGAIN && errno != EWOULDBLOCK)
      return io_error("the connection broke off: " + system_words(errno));
    NIBBLE_RETURN_IF_ERROR(wait(POLLIN, deadline));
  }
}

Status Connection::plain_write(std::string_view bytes, Deadline deadline) {
  while (!bytes.empty()) {
    const ssize_t sent = send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent >= 0) {
      bytes.remove_prefix(static_cast<std::size_t>(sent));
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      NIBBLE_RETURN_IF_ERROR(wait(POLLOUT, deadline));
    } else if (errno != EINTR) {
      return io_error("the connection broke off: " + system_words(errno));
    }
  }
  return {};
}

Status Connection::write(std::string_view bytes, Deadline deadline) {
  if (tls_ == nullptr) return plain_write(bytes, deadline);
  const HeldSigpipe held;
  while (!bytes.empty()) {
    ERR_clear_error();
    errno = 0;
    const int sent = SSL_write(tls_, bytes.data(), static_cast<int>(bytes.size()));
    if (sent > 0) {
      bytes.remove_prefix(static_cast<std::size_t>(sent));
      continue;
    }
    bool end = false;
    NIBBLE_RETURN_IF_ERROR(wait_for_tls(sent, deadline, end));
    if (end) return broken_off();
  }
  return {};
}

Result<std::size_t> Connection::read(char* to, std::size_t size, Deadline deadline) {
  if (tls_ == nullptr) return plain_read(to, size, deadline);
  const HeldSigpipe held;
  for (;;) {
    ERR_clear_error();
    errno = 0;
    const int got = SSL_read(tls_, to, static_cast<int>(std::min<std::size_t>(size, 1 << 20)));
    if (got > 0) return static_cast<std::size_t>(got);
    bool end = false;
    NIBBLE_RETURN_IF_ERROR(wait_for_tls(got, deadline, end));
    if (end) return std::size_t{0};
  }
}

bool Connection::is_fresh() const {
  pollfd waiting{.fd = fd_, .events = POLLIN, .revents = 0};
  if (poll(&waiting, 1, 0) == 0) return true;
  // TLS may have sent a session ticket; whatever else there is shows when it is used.
  return tls_ != nullptr && (waiting.revents & (POLLHUP | POLLERR)) == 0;
}

}  // namespace nibble
