#include "server/http/socket_server.h"

#include <array>
#include <asio.hpp>
#include <atomic>
#include <unordered_set>

namespace nibble::http {
namespace {

using asio::ip::tcp;
using std::chrono::steady_clock;

class Server;

// The socket of one session. Bytes that come feed the session; what it has to say is sent, and what it has to
// serve is served, by advance(), which runs whenever something has changed and never inside itself. The
// connection lives as long as an operation of its is under way.
class Connection : public std::enable_shared_from_this<Connection> {
 public:
  Connection(Server& server, tcp::socket socket);

  void start();
  void close();  // at once
  void wake();   // something has changed: advance soon

 private:
  class Turn;

  void read();
  void received(asio::error_code error, std::size_t size);
  void advance();
  void wait_for_change();
  void send();
  void sent(asio::error_code error, std::size_t size);
  void linger();
  void take(Session::Next next);
  void close_after(std::chrono::seconds patience);

  Server& server_;
  tcp::socket socket_;
  asio::steady_timer deadline_;  // of the session
  asio::steady_timer resume_;    // when to look whether reading may go on
  asio::steady_timer patience_;  // of one write, and of lingering
  Session session_;
  std::weak_ptr<Turn> turn_;  // the exchange being answered
  std::array<char, 16 << 10> incoming_;
  std::string outgoing_;  // being sent, from sent_ on
  std::size_t sent_ = 0;
  bool sending_ = false;
  bool waking_ = false;
  bool refused_ = false;
  bool lingering_ = false;
  bool dead_ = false;
};

class Server final : public SocketServer {
 public:
  Server(const ServerLimits& limits) : limits_(limits), acceptor_(io_), room_(io_), deadline_(io_) {}

  Status open(const std::string& host, int port);

  int port() const override { return port_; }
  void run(Handler handler) override;
  void post(std::function<void()> work) override { asio::post(io_, std::move(work)); }
  void stop(std::chrono::milliseconds deadline) override;
  int connections() const override { return count_; }

  const ServerLimits& limits() const { return limits_; }
  const Handler& handler() const { return handler_; }
  asio::io_context& io() { return io_; }
  bool stopping() const { return stopping_; }
  void joined(Connection* connection);
  void left(Connection* connection);

 private:
  void accept();
  void end_if_done();

  ServerLimits limits_;
  Handler handler_;
  asio::io_context io_{1};
  tcp::acceptor acceptor_;
  asio::steady_timer room_;  // when accepting failed
  asio::steady_timer deadline_;
  std::unordered_set<Connection*> live_;
  std::atomic<int> count_ = 0;
  int port_ = 0;
  bool stopping_ = false;
};

// What a handler holds of a request. Outlives its connection if it must; then it does nothing.
class Connection::Turn final : public Exchange {
 public:
  Turn(std::shared_ptr<Connection> connection, HttpRequest request)
      : connection_(std::move(connection)), request_(std::move(request)) {}
  // Let go of without an answer: the client should not wait for one.
  ~Turn() override {
    if (here()) connection_->close();
  }

  const HttpRequest& request() const override { return request_; }

  void answer(Response response) override {
    if (!here()) return;
    connection_->session_.answer(response, steady_clock::now());
    finish();
  }
  void begin_stream(Response head) override {
    if (!here()) return;
    connection_->session_.begin_stream(head);
    connection_->wake();
  }
  void stream(std::string_view data) override {
    if (!here()) return;
    connection_->session_.stream(data);
    if (connection_->session_.unsent() > connection_->server_.limits().unsent_bytes)
      return connection_->close();
    connection_->wake();
  }
  void end_stream() override {
    if (!here()) return;
    connection_->session_.end_stream(steady_clock::now());
    finish();
  }
  void break_stream() override {
    if (!here()) return;
    connection_->session_.break_stream();
    finish();
  }
  void on_gone(std::function<void()> gone) override { on_gone_ = std::move(gone); }

  void client_gone() {
    if (done_ || gone_) return;
    gone_ = true;
    if (on_gone_) std::exchange(on_gone_, nullptr)();
  }

 private:
  bool here() const { return !done_ && !gone_; }
  void finish() {
    done_ = true;
    on_gone_ = nullptr;
    connection_->wake();
  }

  std::shared_ptr<Connection> connection_;
  HttpRequest request_;
  std::function<void()> on_gone_;
  bool done_ = false;
  bool gone_ = false;
};

Connection::Connection(Server& server, tcp::socket socket)
    : server_(server),
      socket_(std::move(socket)),
      deadline_(server.io()),
      resume_(server.io()),
      patience_(server.io()),
      session_(server.limits().session, steady_clock::now()) {}

void Connection::start() {
  server_.joined(this);
  asio::error_code ignored;
  socket_.set_option(tcp::no_delay(true), ignored);
  wait_for_change();
  read();
}

void Connection::close() {
  if (std::exchange(dead_, true)) return;
  asio::error_code ignored;
  socket_.close(ignored);
  deadline_.cancel();
  resume_.cancel();
  patience_.cancel();
  if (const std::shared_ptr<Turn> turn = turn_.lock()) turn->client_gone();
  server_.left(this);
}

void Connection::wake() {
  if (dead_ || std::exchange(waking_, true)) return;
  asio::post(server_.io(), [self = shared_from_this()] {
    self->waking_ = false;
    self->advance();
  });
}

void Connection::read() {
  if (dead_) return;
  if (!lingering_ && !session_.wants_bytes()) {
    if (refused_ || session_.closing()) return;
    // Too much is waiting; look again before long.
    resume_.expires_after(std::chrono::milliseconds(20));
    resume_.async_wait([self = shared_from_this()](asio::error_code) { self->read(); });
    return;
  }
  socket_.async_read_some(
      asio::buffer(incoming_),
      [self = shared_from_this()](asio::error_code error, std::size_t size) { self->received(error, size); });
}

void Connection::received(asio::error_code error, std::size_t size) {
  if (dead_) return;
  if (error == asio::error::eof && !lingering_) {
    session_.receive_end();
    wake();
    return;
  }
  if (error) return close();
  if (!lingering_) {
    session_.receive(std::string_view(incoming_.data(), size), steady_clock::now());
    wake();
  }
  read();
}

void Connection::take(Session::Next next) {
  if (const auto* refusal = std::get_if<Refusal>(&next)) {
    refused_ = true;
    session_.answer(server_.handler().refusal(*refusal), steady_clock::now());
  } else if (auto* request = std::get_if<HttpRequest>(&next)) {
    const auto turn = std::make_shared<Turn>(shared_from_this(), std::move(*request));
    turn_ = turn;
    server_.handler().request(turn);
  }
}

void Connection::advance() {
  if (dead_ || lingering_) return;
  if (const auto deadline = session_.deadline(); deadline && steady_clock::now() >= *deadline)
    take(session_.expire());
  if (!sending_) take(session_.next(steady_clock::now()));
  if (dead_ || sending_) return;
  if (session_.has_output()) return send();
  if (session_.closing() || (server_.stopping() && !session_.answering()))
    return refused_ ? linger() : close();
  wait_for_change();
}

// Until the session's deadline, if it has one; whatever else happens wakes the connection itself.
void Connection::wait_for_change() {
  const std::optional<Session::Time> deadline = session_.deadline();
  deadline_.expires_at(deadline.value_or(Session::Time::max()));
  deadline_.async_wait([self = weak_from_this()](asio::error_code error) {
    const auto connection = self.lock();
    if (!error && connection) connection->advance();
  });
}

void Connection::close_after(std::chrono::seconds patience) {
  patience_.expires_after(patience);
  patience_.async_wait([self = weak_from_this()](asio::error_code error) {
    const auto connection = self.lock();
    if (!error && connection) connection->close();
  });
}

void Connection::send() {
  if (!sending_) {
    sending_ = true;
    outgoing_ = session_.take_output();
    sent_ = 0;
  }
  session_.set_unsent(outgoing_.size() - sent_);
  close_after(server_.limits().write_time);
  socket_.async_write_some(
      asio::buffer(outgoing_.data() + sent_, outgoing_.size() - sent_),
      [self = shared_from_this()](asio::error_code error, std::size_t size) { self->sent(error, size); });
}

void Connection::sent(asio::error_code error, std::size_t size) {
  if (dead_) return;
  patience_.cancel();
  if (error) return close();
  sent_ += size;
  if (sent_ < outgoing_.size()) return send();
  sending_ = false;
  session_.set_unsent(0);
  advance();
}

// The client may still be sending what was refused: closing now would reset the connection before the answer
// is read. So no more is sent, and what comes is read and forgotten for a moment.
void Connection::linger() {
  lingering_ = true;
  asio::error_code ignored;
  socket_.shutdown(tcp::socket::shutdown_send, ignored);
  close_after(server_.limits().linger_time);
  read();
}

Status Server::open(const std::string& host, int port) {
  asio::error_code error;
  tcp::resolver resolver(io_);
  const auto found = resolver.resolve(host, std::to_string(port),
                                      tcp::resolver::passive | tcp::resolver::numeric_service, error);
  if (error || found.empty())
    return invalid_argument("--host " + host + ": no such address; give one of this machine, as 127.0.0.1");
  const tcp::endpoint endpoint = found.begin()->endpoint();
  acceptor_.open(endpoint.protocol(), error);
  if (!error) acceptor_.set_option(tcp::acceptor::reuse_address(true), error);
  if (!error) acceptor_.bind(endpoint, error);
  if (!error) acceptor_.listen(asio::socket_base::max_listen_connections, error);
  if (error)
    return io_error("cannot listen on " + host + " port " + std::to_string(port) + ": " + error.message() +
                    "; give another --port or --host");
  port_ = acceptor_.local_endpoint(error).port();
  return {};
}

void Server::accept() {
  if (stopping_) return;
  if (count_ >= limits_.connections) return;  // left() goes on
  acceptor_.async_accept([this](asio::error_code error, tcp::socket socket) {
    if (stopping_) return;
    if (!error) {
      std::make_shared<Connection>(*this, std::move(socket))->start();
      return accept();
    }
    // Out of descriptors, as a rule: wait for some to come back.
    room_.expires_after(std::chrono::milliseconds(50));
    room_.async_wait([this](asio::error_code) { accept(); });
  });
}

void Server::joined(Connection* connection) {
  live_.insert(connection);
  ++count_;
}

void Server::left(Connection* connection) {
  live_.erase(connection);
  if (count_-- == limits_.connections) accept();
  end_if_done();
}

void Server::end_if_done() {
  if (stopping_ && live_.empty()) io_.stop();
}

void Server::run(Handler handler) {
  handler_ = std::move(handler);
  accept();
  const auto work = asio::make_work_guard(io_);
  io_.run();
}

void Server::stop(std::chrono::milliseconds deadline) {
  asio::post(io_, [this, deadline] {
    stopping_ = true;
    asio::error_code ignored;
    acceptor_.close(ignored);
    room_.cancel();
    deadline_.expires_after(deadline);
    deadline_.async_wait([this](asio::error_code error) {
      if (error) return;
      const std::vector<Connection*> left(live_.begin(), live_.end());
      for (Connection* connection : left) connection->close();
    });
    const std::vector<Connection*> all(live_.begin(), live_.end());
    for (Connection* connection : all) connection->wake();
    end_if_done();
  });
}

}  // namespace

Result<std::unique_ptr<SocketServer>> SocketServer::listen(const std::string& host, int port,
                                                           const ServerLimits& limits) {
  auto server = std::make_unique<Server>(limits);
  NIBBLE_RETURN_IF_ERROR(server->open(host, port));
  return std::unique_ptr<SocketServer>(std::move(server));
}

}  // namespace nibble::http
