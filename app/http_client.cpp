#include "app/http_client.h"

#include <algorithm>
#include <array>
#include <asio.hpp>
#include <vector>

#include "base/quote.h"
#include "net/http_answer.h"

namespace nibble {
namespace {

using asio::ip::tcp;

constexpr auto kPatience = std::chrono::seconds(120);  // without a byte from the server

std::string what_failed(const asio::error_code& error) {
  if (error == asio::error::connection_refused) return "nothing listens there (connection refused)";
  if (error == asio::error::connection_reset || error == asio::error::broken_pipe)
    return "the server broke the connection";
  if (error == asio::error::operation_aborted || error == asio::error::bad_descriptor)
    return "no byte came for two minutes";
  return error.message();
}

class Client;

// A connection, and the request it is busy with.
class Connection : public std::enable_shared_from_this<Connection> {
 public:
  explicit Connection(Client& client);

  void serve(std::string bytes, HttpClient::Handlers handlers);

 private:
  void connect();
  void write();
  void read();
  void received(asio::error_code error, std::size_t size);
  void fail(const std::string& what);
  void finish(const Status& outcome);
  void wait();

  Client& client_;
  tcp::socket socket_;
  asio::steady_timer patience_;
  std::array<char, 16 << 10> incoming_;
  std::string outgoing_;
  HttpClient::Handlers handlers_;
  HttpAnswer answer_;
  bool open_ = false;
  bool used_ = false;  // has carried a whole answer before
  bool heard_ = false;
};

class Client final : public HttpClient {
 public:
  explicit Client(HttpTarget target) : target_(std::move(target)) {}

  Status resolve() {
    asio::error_code error;
    tcp::resolver resolver(io_);
    const auto found = resolver.resolve(target_.host, target_.port, error);
    if (error || found.empty())
      return io_error("there is no host " + quote(target_.host) + " (" + error.message() + ")");
    endpoint_ = found.begin()->endpoint();
    return {};
  }

  void send(HttpRequestText request, Handlers handlers) override {
    const bool bracketed = target_.host.find(':') != std::string::npos;
    const std::string host = bracketed ? "[" + target_.host + "]" : target_.host;
    std::string bytes = request.method + " " + target_.prefix + request.path + " HTTP/1.1\r\nHost: " + host +
                        ":" + target_.port + "\r\nAccept: */*\r\nUser-Agent: nibble\r\n";
    if (!target_.api_key.empty()) bytes += "Authorization: Bearer " + target_.api_key + "\r\n";
    if (!request.body.empty()) {
      bytes +=
          "Content-Type: application/json\r\nContent-Length: " + std::to_string(request.body.size()) + "\r\n";
    }
    bytes += "\r\n" + request.body;
    std::shared_ptr<Connection> connection;
    if (idle_.empty()) {
      connection = std::make_shared<Connection>(*this);
    } else {
      connection = std::move(idle_.back());
      idle_.pop_back();
    }
    asio::post(io_, [connection, bytes = std::move(bytes), handlers = std::move(handlers)]() mutable {
      connection->serve(std::move(bytes), std::move(handlers));
    });
  }

  void at(Time time, std::function<void()> work) override {
    auto timer = std::make_shared<asio::steady_timer>(io_, time);
    timer->async_wait([timer, work = std::move(work)](asio::error_code error) {
      if (!error) work();
    });
  }

  void run() override {
    io_.restart();
    io_.run();
  }
  void stop() override { io_.stop(); }

  asio::io_context& io() { return io_; }
  const tcp::endpoint& endpoint() const { return endpoint_; }
  void is_idle(std::shared_ptr<Connection> connection) { idle_.push_back(std::move(connection)); }

 private:
  HttpTarget target_;
  asio::io_context io_{1};
  tcp::endpoint endpoint_;
  std::vector<std::shared_ptr<Connection>> idle_;
};

Connection::Connection(Client& client) : client_(client), socket_(client.io()), patience_(client.io()) {}

void Connection::serve(std::string bytes, HttpClient::Handlers handlers) {
  outgoing_ = std::move(bytes);
  handlers_ = std::move(handlers);
  answer_ = {};
  heard_ = false;
  open_ ? write() : connect();
}

// One timer for the whole request: when it rings, it looks whether anything was heard since.
void Connection::wait() {
  patience_.expires_after(kPatience);
  patience_.async_wait([weak = weak_from_this()](asio::error_code error) {
    const auto self = weak.lock();
    if (error || !self) return;
    if (std::exchange(self->heard_, false)) return self->wait();
    asio::error_code ignored;
    self->socket_.close(ignored);
  });
}

void Connection::connect() {
  wait();
  socket_.async_connect(client_.endpoint(), [self = shared_from_this()](asio::error_code error) {
    if (error) return self->fail(what_failed(error));
    self->open_ = true;
    asio::error_code ignored;
    self->socket_.set_option(tcp::no_delay(true), ignored);
    self->write();
  });
}

void Connection::write() {
  wait();
  asio::async_write(
      socket_, asio::buffer(outgoing_), [self = shared_from_this()](asio::error_code error, std::size_t) {
        // A server that refuses early answers before it has read all: so what it said is read.
        if (error && error != asio::error::broken_pipe && error != asio::error::connection_reset)
          return self->fail(what_failed(error));
        self->read();
      });
}

void Connection::read() {
  socket_.async_read_some(
      asio::buffer(incoming_),
      [self = shared_from_this()](asio::error_code error, std::size_t size) { self->received(error, size); });
}

void Connection::received(asio::error_code error, std::size_t size) {
  // A kept connection may have been closed by the server just as it was used again.
  if (error && used_ && answer_.status() == 0 && !heard_) {
    used_ = open_ = false;
    asio::error_code ignored;
    socket_.close(ignored);
    socket_ = tcp::socket(client_.io());
    return connect();
  }
  if (error == asio::error::eof) {
    open_ = false;
    return finish(answer_.end());
  }
  if (error) return fail(what_failed(error));
  heard_ = true;
  const Status status = answer_.take(std::string_view(incoming_.data(), size), [this](std::string_view part) {
    handlers_.body(answer_.status(), part);
  });
  if (!status.ok()) return fail(status.message());
  if (answer_.complete()) return finish({});
  read();
}

void Connection::fail(const std::string& what) {
  open_ = false;
  finish(io_error(what));
}

void Connection::finish(const Status& outcome) {
  patience_.cancel();
  const int status = answer_.status();
  const auto done = std::move(handlers_.done);
  handlers_ = {};
  if (open_ && outcome.ok() && answer_.keeps_alive()) {
    used_ = true;
    client_.is_idle(shared_from_this());
  } else {
    asio::error_code ignored;
    socket_.close(ignored);
  }
  done(status, outcome);
}

}  // namespace

Result<HttpTarget> read_url(std::string_view url) {
  constexpr std::string_view scheme = "http://";
  if (url.starts_with("https://"))
    return invalid_argument(
        "https is not spoken here; give the server's http address, or one of a proxy to it");
  if (!url.starts_with(scheme))
    return invalid_argument("no http:// address; give for example http://127.0.0.1:8000");
  url.remove_prefix(scheme.size());
  const std::size_t slash = std::min(url.find('/'), url.size());
  std::string_view authority = url.substr(0, slash);
  std::string_view prefix = url.substr(slash);
  while (prefix.ends_with('/')) prefix.remove_suffix(1);
  if (prefix.ends_with("/v1")) prefix.remove_suffix(3);
  while (prefix.ends_with('/')) prefix.remove_suffix(1);
  HttpTarget target{.prefix = std::string(prefix)};
  const bool bracketed = authority.starts_with('[') && authority.find(']') != std::string_view::npos;
  const std::size_t after_host =
      bracketed ? authority.find(']') + 1 : std::min(authority.find(':'), authority.size());
  target.host = bracketed ? authority.substr(1, after_host - 2) : authority.substr(0, after_host);
  authority.remove_prefix(after_host);
  if (authority.starts_with(':')) {
    target.port = authority.substr(1);
    authority = {};
  }
  const auto is_digit = [](char c) { return c >= '0' && c <= '9'; };
  const auto may_stand = [](char c) { return c > ' ' && c < 0x7f && c != '?' && c != '#' && c != '@'; };
  const bool fine = authority.empty() && !target.host.empty() && !target.port.empty() &&
                    target.port.size() <= 5 &&
                    std::all_of(target.port.begin(), target.port.end(), is_digit) &&
                    std::all_of(target.host.begin(), target.host.end(), may_stand) &&
                    std::all_of(prefix.begin(), prefix.end(), may_stand);
  if (!fine) return invalid_argument("no address of a server; give for example http://127.0.0.1:8000");
  return target;
}

Result<std::unique_ptr<HttpClient>> HttpClient::make(HttpTarget target) {
  auto client = std::make_unique<Client>(std::move(target));
  NIBBLE_RETURN_IF_ERROR(client->resolve());
  return std::unique_ptr<HttpClient>(std::move(client));
}

}  // namespace nibble
