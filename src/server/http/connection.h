// The socket of one session. For socket_server.cpp alone.
//
//   opening --TLS's handshake--> talking --all is answered--> lingering --> closed
//      |                            |                             |            ^
//      +----------------------------+--- error, time is up, close() -----------+
//
// Bytes that come feed the session; what it has to say is sent, and what it has to serve is served, by
// advance(), which runs whenever something has changed and never inside itself. A connection lives as long as
// an operation of its socket is under way.
#pragma once

#include <asio.hpp>
#include <memory>
#include <optional>
#include <string>

#include "server/http/exchange.h"
#include "server/http/places.h"
#include "server/http/socket_server.h"
#include "server/http/socket_stream.h"

namespace nibble::http {

class Connection;

// What the connections of a server share. Outlives them.
class ConnectionOwner {
 public:
  virtual ~ConnectionOwner() = default;
  virtual const ServerLimits& limits() const = 0;
  virtual const Handler& handler() const = 0;
  virtual asio::io_context& io() = 0;
  virtual bool stopping() const = 0;
  virtual void moved(Places::Id place, Stage stage) = 0;
  virtual void left(Places::Id place) = 0;

  // Bytes of requests that arrive or are served.
  void hold(std::size_t bytes) { held_ += bytes; }
  void let_go(std::size_t bytes) { held_ -= bytes; }
  bool holds_too_much() const { return held_ > limits().held_bytes; }

 private:
  std::size_t held_ = 0;
};

class Connection final : public StreamUser, public std::enable_shared_from_this<Connection> {
 public:
  // `client` is an address for the log.
  Connection(ConnectionOwner& owner, Places::Id place, std::unique_ptr<SocketStream> stream,
             std::string client);

  void start();
  void close();  // at once
  void wake();   // something has changed: advance soon

  void opened(asio::error_code error) override;
  void received(asio::error_code error, std::string_view bytes) override;
  void sent(asio::error_code error, std::size_t size) override;
  void broken() override { close(); }

 private:
  class Turn;
  enum class Phase : std::uint8_t { opening, talking, lingering, closed };

  Stage stage() const;
  void advance();
  void take(Session::Next next);
  void read();
  void input_ended();
  void send();
  void linger();
  void count_held(std::size_t bytes);
  void say_sign_of_life(std::string_view comment);

  std::optional<Session::Time> next_due() const;
  void set_timer();
  void ring();

  ConnectionOwner& owner_;
  const Places::Id place_;
  const std::unique_ptr<SocketStream> stream_;
  Session session_;
  std::weak_ptr<Turn> turn_;  // the exchange being answered
  std::string outgoing_;      // being sent, from sent_ on
  std::size_t sent_ = 0;
  std::size_t held_ = 0;  // as counted in the owner

  Phase phase_ = Phase::opening;
  bool reading_ = false;  // an operation of the socket is under way, and so on
  bool sending_ = false;
  bool waking_ = false;       // advance() is posted
  bool input_ended_ = false;  // the client sends no more

  // One timer for all that is to happen at a time. To set a timer is costly and most of these move with every
  // write, so it rings when the earliest of them was due, and then looks whether that has moved on.
  asio::steady_timer timer_;
  std::optional<Session::Time> rings_at_;
  std::optional<Session::Time> patient_until_;  // with opening, with a write, with lingering
  std::optional<Session::Time> probe_at_;       // whether a client that sends no more is there
  std::optional<Session::Time> keep_alive_at_;  // of a stream that says nothing
};

}  // namespace nibble::http
