#include "server/http/socket_server.h"

#include <arpa/inet.h>
#include <sys/socket.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <unordered_map>

#include "server/http/connection.h"

namespace nibble::http {
namespace {

using asio::ip::tcp;
using std::chrono::steady_clock;

// What the system holds for a client that does not read counts too: it is told to hold no more than this.
constexpr int kernel_send_bytes = 128 << 10;
constexpr std::chrono::milliseconds accept_again{50};
constexpr std::chrono::seconds sweep_period{1};

// Who is at the other end of a socket.
struct Peer {
  std::string name;     // for the log: an address, or the user of a Unix socket
  std::string network;  // shared by those who can have many addresses for nothing: all of an IPv6 network /64
};

std::string address_text(int family, const void* address) {
  char text[INET6_ADDRSTRLEN] = {};
  inet_ntop(family, address, text, sizeof text);
  return text;
}

Peer peer_of(StreamProtocol::socket& socket) {
  asio::error_code error;
  const StreamProtocol::endpoint endpoint = socket.remote_endpoint(error);
  if (error) return {};
  sockaddr_storage storage{};
  std::memcpy(&storage, endpoint.data(), std::min<std::size_t>(endpoint.size(), sizeof storage));
  if (storage.ss_family == AF_INET) {
    const std::string text = address_text(AF_INET, &reinterpret_cast<const sockaddr_in&>(storage).sin_addr);
    return {.name = text, .network = text};
  }
  if (storage.ss_family == AF_INET6) {
    const in6_addr& address = reinterpret_cast<const sockaddr_in6&>(storage).sin6_addr;
    if (IN6_IS_ADDR_V4MAPPED(&address)) {
      const std::string text = address_text(AF_INET, address.s6_addr + 12);
      return {.name = text, .network = text};
    }
    return {.name = address_text(AF_INET6, &address),
            .network = std::string(reinterpret_cast<const char*>(address.s6_addr), 8)};
  }
  ucred who{};
  socklen_t size = sizeof who;
  if (getsockopt(socket.native_handle(), SOL_SOCKET, SO_PEERCRED, &who, &size) != 0)
    return {.name = "unix", .network = ""};
  return {.name = "unix:uid=" + std::to_string(who.uid), .network = std::to_string(who.uid)};
}

class Server final : public SocketServer, public ConnectionOwner {
 public:
  explicit Server(const ServerLimits& limits)
      : limits_(limits),
        places_(limits.connections),
        acceptor_(io_),
        accept_again_(io_),
        sweep_(io_),
        deadline_(io_) {}

  Status open(ListeningSocket socket, const TlsFiles& tls);

  int port() const override { return port_; }
  void run(Handler handler) override;
  void post(std::function<void()> work) override { asio::post(io_, std::move(work)); }
  void after(std::chrono::milliseconds delay, std::function<void()> work) override;
  void stop(std::chrono::milliseconds deadline) override;
  int connections() const override { return count_; }
  Status replace_certificate(const TlsFiles& tls) override;
  std::uint64_t displaced() const override { return displaced_; }

  const ServerLimits& limits() const override { return limits_; }
  const Handler& handler() const override { return handler_; }
  asio::io_context& io() override { return io_; }
  bool stopping() const override { return stopping_; }
  void moved(Places::Id place, Stage stage) override { places_.move(place, stage, steady_clock::now()); }
  void left(Places::Id place) override;

 private:
  void accept();
  void take(StreamProtocol::socket socket);
  void wait_to_accept();
  bool displace(std::optional<Places::Id> place);
  void sweep();
  void end_if_done();
  std::vector<std::shared_ptr<Connection>> all() const;

  // What connections use outlives the context, which may hold the last of them.
  ServerLimits limits_;
  Handler handler_;
  StreamContext context_;
  Places places_;
  std::unordered_map<Places::Id, Connection*> live_;
  std::atomic<int> count_ = 0;
  std::atomic<std::uint64_t> displaced_ = 0;
  int port_ = 0;
  bool accepting_ = false;
  bool stopping_ = false;
  asio::io_context io_{1};
  asio::basic_socket_acceptor<StreamProtocol> acceptor_;
  asio::steady_timer accept_again_;  // when accepting failed, or nobody could go
  asio::steady_timer sweep_;
  asio::steady_timer deadline_;
};

Status Server::open(ListeningSocket socket, const TlsFiles& tls) {
  NIBBLE_RETURN_IF_ERROR(replace_certificate(tls));
  context_.incoming.resize(64 << 10);
  port_ = socket.port();
  const StreamProtocol protocol(socket.family(), 0);
  asio::error_code error;
  acceptor_.assign(protocol, socket.release(), error);
  if (error) return io_error("cannot accept connections: " + error.message());
  return {};
}

Status Server::replace_certificate(const TlsFiles& tls) {
  if (tls.certificate.empty()) return {};
  NIBBLE_ASSIGN(context_.secure, load_certificate(tls.certificate, tls.key));
  return {};
}

void Server::accept() {
  if (stopping_ || accepting_) return;
  if (places_.full() && !displace(places_.first_to_go(steady_clock::now()))) return wait_to_accept();
  accepting_ = true;
  acceptor_.async_accept([this](asio::error_code error, StreamProtocol::socket socket) {
    accepting_ = false;
    if (stopping_) return;
    if (error) {  // out of descriptors, as a rule
      displace(places_.first_to_go(steady_clock::now()));
      return wait_to_accept();
    }
    take(std::move(socket));
    accept();
  });
}

void Server::take(StreamProtocol::socket socket) {
  asio::error_code ignored;  // a Unix socket has no such options
  socket.set_option(tcp::no_delay(true), ignored);
  socket.set_option(tcp::socket::send_buffer_size(kernel_send_bytes), ignored);
  Peer peer = peer_of(socket);
  const Places::Id place = places_.enter(std::move(peer.network), steady_clock::now());
  const auto connection = std::make_shared<Connection>(*this, place, make_stream(std::move(socket), context_),
                                                       std::move(peer.name));
  live_.emplace(place, connection.get());
  count_ = static_cast<int>(live_.size());
  connection->start();
  displace(places_.too_many());
}

// Others wait in the system's queue meanwhile. left() accepts too.
void Server::wait_to_accept() {
  accept_again_.expires_after(accept_again);
  accept_again_.async_wait([this](asio::error_code error) {
    if (!error) accept();
  });
}

// Closes a connection so that another may come. A client that was idle finds a new one when it asks again.
bool Server::displace(std::optional<Places::Id> place) {
  if (!place) return false;
  ++displaced_;
  live_.at(*place)->close();
  return true;
}

// While many half-sent requests wait, each has less time.
void Server::sweep() {
  while (const std::optional<Places::Id> late = places_.overdue(steady_clock::now())) displace(late);
  sweep_.expires_after(sweep_period);
  sweep_.async_wait([this](asio::error_code error) {
    if (!error) sweep();
  });
}

void Server::left(Places::Id place) {
  places_.leave(place);
  live_.erase(place);
  count_ = static_cast<int>(live_.size());
  // Not from within: whoever made room may be about to accept itself.
  if (!accepting_ && !stopping_) asio::post(io_, [this] { accept(); });
  end_if_done();
}

void Server::end_if_done() {
  if (stopping_ && live_.empty()) io_.stop();
}

void Server::run(Handler handler) {
  handler_ = std::move(handler);
  accept();
  sweep();
  const auto work = asio::make_work_guard(io_);
  io_.run();
}

void Server::after(std::chrono::milliseconds delay, std::function<void()> work) {
  asio::post(io_, [this, delay, work = std::move(work)]() mutable {
    const auto timer = std::make_shared<asio::steady_timer>(io_, delay);
    timer->async_wait([timer, work = std::move(work)](asio::error_code error) {
      if (!error) work();
    });
  });
}

std::vector<std::shared_ptr<Connection>> Server::all() const {
  std::vector<std::shared_ptr<Connection>> connections;
  for (const auto& [place, connection] : live_) connections.push_back(connection->shared_from_this());
  return connections;
}

void Server::stop(std::chrono::milliseconds deadline) {
  asio::post(io_, [this, deadline] {
    stopping_ = true;
    asio::error_code ignored;
    acceptor_.close(ignored);
    accept_again_.cancel();
    deadline_.expires_after(deadline);
    deadline_.async_wait([this](asio::error_code error) {
      if (error) return;
      for (const std::shared_ptr<Connection>& connection : all()) connection->close();
    });
    for (const std::shared_ptr<Connection>& connection : all()) connection->wake();
    end_if_done();
  });
}

}  // namespace

Result<std::unique_ptr<SocketServer>> SocketServer::listen(const std::string& host, int port,
                                                           const ServerLimits& limits) {
  NIBBLE_ASSIGN(ListeningSocket socket, ListeningSocket::open(host, port));
  return over(std::move(socket), limits, {});
}

Result<std::unique_ptr<SocketServer>> SocketServer::over(ListeningSocket socket, const ServerLimits& limits,
                                                         const TlsFiles& tls) {
  auto server = std::make_unique<Server>(limits);
  NIBBLE_RETURN_IF_ERROR(server->open(std::move(socket), tls));
  return std::unique_ptr<SocketServer>(std::move(server));
}

}  // namespace nibble::http
