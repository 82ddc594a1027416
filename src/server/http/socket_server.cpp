#include "server/http/socket_server.h"

#include <asio.hpp>
#include <unordered_set>

namespace nibble::http {
namespace {

using asio::ip::tcp;
using std::chrono::steady_clock;

// Every operation puts its error where it is told; nothing throws.
auto error_into(asio::error_code& error) { return asio::redirect_error(asio::use_awaitable, error); }

class Server;

// The socket of one session. The reader feeds the session, the writer sends what it has and serves what is
// next; each wakes the other by cancelling its timer. The connection lives as long as either runs.
class Connection : public std::enable_shared_from_this<Connection> {
 public:
  Connection(Server& server, tcp::socket socket);

  void start();
  void close();            // at once
  void look() { wake(); }  // at what the server has decided

 private:
  class Turn;

  asio::awaitable<void> read();
  asio::awaitable<void> write();
  asio::awaitable<bool> send(std::string bytes);
  asio::awaitable<void> linger();
  void take(Session::Next next);
  void wake() { changed_.cancel(); }
  void gone();

  Server& server_;
  tcp::socket socket_;
  asio::steady_timer changed_;   // cancelled when the writer has something to look at
  asio::steady_timer resume_;    // cancelled when the reader may go on
  asio::steady_timer patience_;  // of one write, and of lingering
  Session session_;
  std::weak_ptr<Turn> turn_;  // the exchange being answered
  bool refused_ = false;
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
  asio::awaitable<void> accept();
  void end_if_done();

  ServerLimits limits_;
  Handler handler_;
  asio::io_context io_{1};
  tcp::acceptor acceptor_;
  asio::steady_timer room_;  // cancelled when a connection leaves
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
    connection_->resume_.cancel();
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
      changed_(server.io()),
      resume_(server.io()),
      patience_(server.io()),
      session_(server.limits().session, steady_clock::now()) {}

void Connection::start() {
  server_.joined(this);
  asio::error_code ignored;
  socket_.set_option(tcp::no_delay(true), ignored);
  asio::co_spawn(
      server_.io(), [self = shared_from_this()] { return self->read(); }, asio::detached);
  asio::co_spawn(
      server_.io(), [self = shared_from_this()] { return self->write(); },
      [self = shared_from_this()](std::exception_ptr) { self->server_.left(self.get()); });
}

void Connection::close() {
  dead_ = true;
  asio::error_code ignored;
  socket_.close(ignored);
  changed_.cancel();
  resume_.cancel();
  patience_.cancel();
  gone();
}

void Connection::gone() {
  if (const std::shared_ptr<Turn> turn = turn_.lock()) turn->client_gone();
}

asio::awaitable<void> Connection::read() {
  const std::shared_ptr<Connection> self = shared_from_this();
  std::array<char, 16 << 10> buffer;
  while (!dead_) {
    if (!session_.wants_bytes()) {
      if (session_.closing() || refused_) co_return;
      // Too much is waiting; and still, a client that goes should be noticed.
      resume_.expires_after(std::chrono::milliseconds(100));
      asio::error_code woken;
      co_await resume_.async_wait(error_into(woken));
      continue;
    }
    asio::error_code error;
    const std::size_t size = co_await socket_.async_read_some(asio::buffer(buffer), error_into(error));
    if (dead_) co_return;
    if (error == asio::error::eof) {
      session_.receive_end();
      wake();
      co_return;
    }
    if (error) {
      close();
      co_return;
    }
    session_.receive(std::string_view(buffer.data(), size), steady_clock::now());
    wake();
  }
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

asio::awaitable<void> Connection::write() {
  const std::shared_ptr<Connection> self = shared_from_this();
  while (!dead_) {
    take(session_.next(steady_clock::now()));
    if (session_.has_output()) {
      if (!co_await send(session_.take_output())) break;
      resume_.cancel();
      continue;
    }
    if (session_.closing()) break;
    if (server_.stopping() && !session_.answering()) break;
    const std::optional<Session::Time> deadline = session_.deadline();
    changed_.expires_at(deadline.value_or(Session::Time::max()));
    asio::error_code woken;
    co_await changed_.async_wait(error_into(woken));
    if (deadline && session_.deadline() == deadline && steady_clock::now() >= *deadline)
      take(session_.expire());
  }
  if (!dead_ && refused_) co_await linger();
  close();
}

// Sends all of it, or returns false when the client is gone or takes nothing for too long.
asio::awaitable<bool> Connection::send(std::string bytes) {
  session_.set_unsent(bytes.size());
  for (std::size_t sent = 0; sent < bytes.size();) {
    patience_.expires_after(server_.limits().write_time);
    patience_.async_wait([self = weak_from_this()](asio::error_code error) {
      const auto connection = self.lock();
      if (!error && connection) connection->close();
    });
    asio::error_code error;
    const std::size_t size = co_await socket_.async_write_some(
        asio::buffer(bytes.data() + sent, bytes.size() - sent), error_into(error));
    patience_.cancel();
    if (dead_) co_return false;
    if (error) {
      close();
      co_return false;
    }
    sent += size;
    session_.set_unsent(bytes.size() - sent);
  }
  co_return true;
}

// The client may still be sending what was refused: closing now would reset the connection before the answer
// is read. So no more is sent, and what comes is read and forgotten for a moment.
asio::awaitable<void> Connection::linger() {
  asio::error_code ignored;
  socket_.shutdown(tcp::socket::shutdown_send, ignored);
  patience_.expires_after(server_.limits().linger_time);
  patience_.async_wait([self = weak_from_this()](asio::error_code error) {
    const auto connection = self.lock();
    if (!error && connection) connection->close();
  });
  std::array<char, 16 << 10> buffer;
  while (!dead_) {
    asio::error_code error;
    co_await socket_.async_read_some(asio::buffer(buffer), error_into(error));
    if (error) break;
  }
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

asio::awaitable<void> Server::accept() {
  while (!stopping_) {
    if (count_ >= limits_.connections) {
      room_.expires_at(steady_clock::time_point::max());
      asio::error_code woken;
      co_await room_.async_wait(error_into(woken));
      continue;
    }
    asio::error_code error;
    tcp::socket socket = co_await acceptor_.async_accept(error_into(error));
    if (stopping_) break;
    if (error) {
      // Out of descriptors, as a rule: wait for some to come back.
      room_.expires_after(std::chrono::milliseconds(50));
      asio::error_code woken;
      co_await room_.async_wait(error_into(woken));
      continue;
    }
    std::make_shared<Connection>(*this, std::move(socket))->start();
  }
}

void Server::joined(Connection* connection) {
  live_.insert(connection);
  ++count_;
}

void Server::left(Connection* connection) {
  live_.erase(connection);
  --count_;
  room_.cancel();
  end_if_done();
}

void Server::end_if_done() {
  if (stopping_ && live_.empty()) io_.stop();
}

void Server::run(Handler handler) {
  handler_ = std::move(handler);
  asio::co_spawn(io_, accept(), asio::detached);
  const auto work = asio::make_work_guard(io_);
  io_.run();
}

void Server::stop(std::chrono::milliseconds deadline) {
  asio::post(io_, [this, deadline] {
    if (std::exchange(stopping_, true)) return;
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
    for (Connection* connection : all) connection->look();
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
