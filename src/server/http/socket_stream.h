// The bytes of one connection, in the clear or under TLS: the only difference between the two. For
// socket_server.cpp alone.
#pragma once

#include <asio.hpp>
#include <asio/ssl.hpp>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace nibble::http {

// TCP over IPv4 or IPv6, and Unix sockets.
using StreamProtocol = asio::generic::stream_protocol;

// Who is told of what happened. An operation under way keeps its user alive.
class StreamUser {
 public:
  virtual ~StreamUser() = default;
  virtual void opened(asio::error_code error) = 0;
  // The view lives during the call. At the client's end `error` is asio::error::eof.
  virtual void received(asio::error_code error, std::string_view bytes) = 0;
  virtual void sent(asio::error_code error, std::size_t size) = 0;
  // The connection is broken, though nobody is reading or writing.
  virtual void broken() = 0;
};

// At most one of each operation at a time.
class SocketStream {
 public:
  virtual ~SocketStream() = default;
  virtual void open(std::shared_ptr<StreamUser> user) = 0;
  virtual void read(std::shared_ptr<StreamUser> user) = 0;
  // The bytes stay where they are until sent() tells how many went.
  virtual void write(std::shared_ptr<StreamUser> user, const char* data, std::size_t size) = 0;
  // For when no more is read: a reset calls broken().
  virtual void watch(std::shared_ptr<StreamUser> user) = 0;
  // The client sees that no more comes; it may still be read.
  virtual void end_writing(std::shared_ptr<StreamUser> user) = 0;
  virtual void close() = 0;
};

// What all connections of a server have in common.
struct StreamContext {
  std::vector<char> incoming;                // where plain connections' bytes arrive, one at a time
  std::optional<asio::ssl::context> secure;  // TLS, if that is spoken
};

// Reads a certificate with its chain and its key, both PEM.
Result<asio::ssl::context> load_certificate(const std::string& certificate_file, const std::string& key_file);

// The context's buffer outlives the stream; its certificate may be replaced meanwhile.
std::unique_ptr<SocketStream> make_stream(StreamProtocol::socket socket, StreamContext& context);

}  // namespace nibble::http
