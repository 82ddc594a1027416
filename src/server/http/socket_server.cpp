#include "server/http/socket_server.h"

#include <atomic>
#include <unordered_set>

#include "server/http/socket_stream.h"

namespace nibble::http {
namespace {

using asio::ip::tcp;
using std::chrono::steady_clock;

// What the system holds for a client that does not read counts too: it is told to hold no more than this.
constexpr int kernel_send_bytes = 128 << 10;
// How long an answer may take before a client that sends no more is asked for a sign of life.
constexpr std::chrono::milliseconds probe_time{300};

// A client that has just come may be about to ask.
constexpr std::chrono::milliseconds grace{250};

class Server;

// The socket of one session. Bytes that come feed the session; what it has to say is sent, and what it has to
// serve is served, by advance(), which runs whenever something has changed and never inside itself. The
// connection lives as long as an operation of its is under way.
class Connection final : public StreamUser, public std::enable_shared_from_this<Connection> {
 public:
  Connection(Server& server, std::unique_ptr<SocketStream> stream);

  void start();
  void close();  // at once
  void wake();   // something has changed: advance soon
  // Since when nothing is asked of the server; nothing while something is.
  std::optional<Session::Time> idle_since() const;

  void opened(asio::error_code error) override;
  void received(asio::error_code error, std::string_view bytes) override;
  void sent(asio::error_code error, std::size_t size) override;
  void broken() override { close(); }

 private:
  class Turn;

  void read();
  void ended();
  void advance();
  void wait_for_change();
  void send();
  void linger();
  void take(Session::Next next);
  void close_after(std::chrono::seconds patience);
  void be_patient();
  void count_held(std::size_t bytes);

  Server& server_;
  std::unique_ptr<SocketStream> stream_;
  asio::steady_timer deadline_;  // of the session
  asio::steady_timer resume_;    // when to look whether reading may go on, or to probe
  asio::steady_timer patience_;  // of opening, of one write, and of lingering
  Session session_;
  std::weak_ptr<Turn> turn_;  // the exchange being answered
  std::string outgoing_;      // being sent, from sent_ on
  std::size_t sent_ = 0;
  std::size_t held_ = 0;  // as counted in the server
  Session::Time last_;    // when bytes came last
  // Timers are costly to set anew for each of a stream's writes: deadline_ is left alone while it is right,
  // and patience_ looks when it rings whether it rang for nothing.
  std::optional<Session::Time> waiting_until_;  // what deadline_ is set to
  std::optional<Session::Time> patient_until_;  // nothing: nothing has to happen
  bool patience_runs_ = false;
  bool reading_ = false;
  bool sending_ = false;
  bool waking_ = false;
  bool lingering_ = false;
  bool half_closed_ = false;
  bool dead_ = false;
};

class Server final : public SocketServer {
 public:
  explicit Server(const ServerLimits& limits) : limits_(limits), acceptor_(io_), room_(io_), deadline_(io_) {}

  Status open(ListeningSocket socket, const TlsFiles& tls);

  int port() const override { return port_; }
  void run(Handler handler) override;
  void post(std::function<void()> work) override { asio::post(io_, std::move(work)); }
  void after(std::chrono::milliseconds delay, std::function<void()> work) override;
  void stop(std::chrono::milliseconds deadline) override;
  int connections() const override { return count_; }

  const ServerLimits& limits() const { return limits_; }
  const Handler& handler() const { return handler_; }
  asio::io_context& io() { return io_; }
  bool stopping() const { return stopping_; }
  void joined(Connection* connection);
  void left(Connection* connection);
  // Bytes of requests, those of exchanges that are being served among them.
  void hold(std::size_t bytes) { held_ += bytes; }
  void let_go(std::size_t bytes) { held_ -= bytes; }
  bool holds_too_much() const { return held_ > limits_.held_bytes; }

 private:
  void accept();
  void wait_for_room();
  void make_room();
  void end_if_done();

  ServerLimits limits_;
  Handler handler_;
  asio::io_context io_{1};
  StreamContext context_;
  tcp::acceptor acceptor_;
  asio::steady_timer room_;  // when accepting failed
  asio::steady_timer deadline_;
  std::unordered_set<Connection*> live_;
  std::atomic<int> count_ = 0;
  std::size_t held_ = 0;
  int port_ = 0;
  bool accepting_ = false;
  bool stopping_ = false;
};

// What a handler holds of a request. Outlives its connection if it must; then it does nothing.
class Connection::Turn final : public Exchange {
 public:
  Turn(std::shared_ptr<Connection> connection, HttpRequest request)
      : connection_(std::move(connection)), request_(std::move(request)), held_(request_.body.capacity()) {
    connection_->server_.hold(held_);
  }
  // Let go of without an answer: the client should not wait for one.
  ~Turn() override {
    connection_->server_.let_go(held_);
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
    // What one step adds is sent before it counts.
    if (connection_->sending_ && connection_->session_.unsent() > connection_->server_.limits().unsent_bytes)
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
  void on_gone(std::function<void()> gone) override {
    if (gone_) return gone();
    on_gone_ = std::move(gone);
  }

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
  std::size_t held_;
  std::function<void()> on_gone_;
  bool done_ = false;
  bool gone_ = false;
};

Connection::Connection(Server& server, std::unique_ptr<SocketStream> stream)
    : server_(server),
      stream_(std::move(stream)),
      deadline_(server.io()),
      resume_(server.io()),
      patience_(server.io()),
      session_(server.limits().session, steady_clock::now(), &server.handler().screen),
      last_(steady_clock::now()) {}

void Connection::start() {
  server_.joined(this);
  close_after(server_.limits().session.request_time);
  stream_->open(shared_from_this());
}

void Connection::opened(asio::error_code error) {
  if (dead_) return;
  if (error) return close();
  patient_until_.reset();
  wait_for_change();
  read();
}

void Connection::close() {
  if (std::exchange(dead_, true)) return;
  stream_->close();
  deadline_.cancel();
  resume_.cancel();
  patience_.cancel();
  if (const std::shared_ptr<Turn> turn = turn_.lock()) turn->client_gone();
  count_held(0);
  server_.left(this);
}

std::optional<Session::Time> Connection::idle_since() const {
  if (session_.answering() || sending_ || session_.held() > 0) return {};
  return last_;
}

void Connection::count_held(std::size_t bytes) {
  server_.let_go(held_);
  server_.hold(bytes);
  held_ = bytes;
}

void Connection::wake() {
  if (dead_ || std::exchange(waking_, true)) return;
  asio::post(server_.io(), [self = shared_from_this()] {
    self->waking_ = false;
    self->advance();
  });
}

void Connection::read() {
  if (dead_ || reading_ || half_closed_) return;
  if (!lingering_ && !session_.wants_bytes()) {
    if (session_.closing()) return;
    // Too much is waiting, or what waits is refused; look again before long.
    resume_.expires_after(std::chrono::milliseconds(20));
    resume_.async_wait([self = shared_from_this()](asio::error_code) { self->read(); });
    return;
  }
  reading_ = true;
  stream_->read(shared_from_this());
}

void Connection::received(asio::error_code error, std::string_view bytes) {
  reading_ = false;
  if (dead_) return;
  if (error == asio::error::eof && !lingering_) return ended();
  if (error) return close();
  if (!lingering_) {
    last_ = steady_clock::now();
    session_.receive(bytes, last_);
    count_held(session_.held());
    wake();
  }
  read();
}

// The client sends no more. It may wait for its answer, or be gone: both look the same until something is
// sent to it. An answer that comes soon tells; before a longer one, a sign of life is sent for the purpose.
void Connection::ended() {
  half_closed_ = true;
  session_.receive_end();
  stream_->watch(shared_from_this());
  wake();
  resume_.expires_after(probe_time);
  resume_.async_wait([self = weak_from_this()](asio::error_code error) {
    const auto connection = self.lock();
    if (error || !connection || connection->dead_ || connection->sending_) return;
    connection->session_.probe(":\n\n");
    connection->wake();
  });
}

void Connection::take(Session::Next next) {
  if (const auto* refusal = std::get_if<Refusal>(&next)) {
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
  if (dead_) return;
  if (!session_.answering() && server_.holds_too_much() &&
      session_.held() > server_.limits().session.ahead_bytes)
    take(session_.refuse({503, "the server holds as many requests as it may; try again later"}));
  count_held(session_.held());
  if (dead_ || sending_) return;
  if (session_.has_output()) return send();
  if (session_.closing()) return half_closed_ ? close() : linger();
  if (server_.stopping() && !session_.answering()) return close();
  wait_for_change();
}

// Until the session's deadline, if it has one; whatever else happens wakes the connection itself.
void Connection::wait_for_change() {
  const std::optional<Session::Time> deadline = session_.deadline();
  if (deadline == waiting_until_) return;
  waiting_until_ = deadline;
  deadline_.cancel();
  if (!deadline) return;
  deadline_.expires_at(*deadline);
  deadline_.async_wait([self = weak_from_this()](asio::error_code error) {
    const auto connection = self.lock();
    if (error || !connection) return;
    connection->waiting_until_.reset();
    connection->advance();
  });
}

void Connection::close_after(std::chrono::seconds patience) {
  patient_until_ = steady_clock::now() + patience;
  if (patience_runs_ && patience_.expiry() <= *patient_until_) return;
  be_patient();
}

void Connection::be_patient() {
  patience_runs_ = true;
  patience_.expires_at(*patient_until_);
  patience_.async_wait([self = weak_from_this()](asio::error_code error) {
    const auto connection = self.lock();
    if (error || !connection) return;  // set anew, or closed
    connection->patience_runs_ = false;
    if (!connection->patient_until_) return;
    if (steady_clock::now() >= *connection->patient_until_) return connection->close();
    connection->be_patient();
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
  stream_->write(shared_from_this(), outgoing_.data() + sent_, outgoing_.size() - sent_);
}

void Connection::sent(asio::error_code error, std::size_t size) {
  if (dead_) return;
  patient_until_.reset();
  if (error) return close();
  sent_ += size;
  if (sent_ < outgoing_.size()) return send();
  sending_ = false;
  std::string().swap(outgoing_);
  session_.set_unsent(0);
  advance();
}

// The client may still be sending: closing now would reset the connection before the answer is read. So no
// more is sent, and what comes is read and forgotten for a moment.
void Connection::linger() {
  lingering_ = true;
  stream_->end_writing(shared_from_this());
  close_after(server_.limits().linger_time);
  read();
}

Status Server::open(ListeningSocket socket, const TlsFiles& tls) {
  if (!tls.certificate.empty()) {
    NIBBLE_ASSIGN(context_.secure, load_certificate(tls.certificate, tls.key));
  }
  context_.incoming.resize(64 << 10);
  port_ = socket.port();
  asio::error_code error;
  const auto protocol = socket.is_ipv6() ? tcp::v6() : tcp::v4();
  acceptor_.assign(protocol, socket.release(), error);
  if (error) return io_error("cannot accept connections: " + error.message());
  return {};
}

void Server::accept() {
  if (stopping_ || accepting_) return;
  if (count_ >= limits_.connections) return wait_for_room();  // left() goes on too
  accepting_ = true;
  acceptor_.async_accept([this](asio::error_code error, tcp::socket socket) {
    accepting_ = false;
    if (stopping_) return;
    if (error) return wait_for_room();  // out of descriptors, as a rule
    asio::error_code ignored;
    socket.set_option(tcp::no_delay(true), ignored);
    socket.set_option(tcp::socket::send_buffer_size(kernel_send_bytes), ignored);
    std::make_shared<Connection>(*this, make_stream(std::move(socket), context_))->start();
    accept();
  });
}

// Others wait in the system's queue meanwhile.
void Server::wait_for_room() {
  make_room();
  room_.expires_after(std::chrono::milliseconds(50));
  room_.async_wait([this](asio::error_code error) {
    if (!error) accept();
  });
}

// Whoever was silent longest between two requests goes, and finds a new connection when it asks again.
void Server::make_room() {
  Connection* oldest = nullptr;
  const Session::Time newest = steady_clock::now() - grace;
  for (Connection* connection : live_) {
    const std::optional<Session::Time> since = connection->idle_since();
    if (since && *since < newest && (oldest == nullptr || *since < *oldest->idle_since()))
      oldest = connection;
  }
  if (oldest != nullptr) oldest->close();
}

void Server::joined(Connection* connection) {
  live_.insert(connection);
  ++count_;
}

void Server::left(Connection* connection) {
  live_.erase(connection);
  --count_;
  accept();
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

void Server::after(std::chrono::milliseconds delay, std::function<void()> work) {
  asio::post(io_, [this, delay, work = std::move(work)]() mutable {
    const auto timer = std::make_shared<asio::steady_timer>(io_, delay);
    timer->async_wait([timer, work = std::move(work)](asio::error_code error) {
      if (!error) work();
    });
  });
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
