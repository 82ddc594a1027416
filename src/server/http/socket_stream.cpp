#include "server/http/socket_stream.h"

#include <array>

namespace nibble::http {
namespace {

using Socket = StreamProtocol::socket;

void watch_socket(Socket& socket, std::shared_ptr<StreamUser> user) {
  socket.async_wait(Socket::wait_error, [user = std::move(user)](asio::error_code error) {
    if (error != asio::error::operation_aborted) user->broken();
  });
}

void close_socket(Socket& socket) {
  asio::error_code ignored;
  socket.close(ignored);
}

// Waits without a buffer of its own, so that ten thousand idle clients cost none.
class PlainStream final : public SocketStream {
 public:
  PlainStream(Socket socket, std::vector<char>& incoming) : socket_(std::move(socket)), incoming_(incoming) {
    asio::error_code ignored;
    socket_.non_blocking(true, ignored);
  }

  void open(std::shared_ptr<StreamUser> user) override { user->opened({}); }

  void read(std::shared_ptr<StreamUser> user) override {
    socket_.async_wait(Socket::wait_read, [this, user = std::move(user)](asio::error_code error) mutable {
      if (error) return user->received(error, {});
      const std::size_t size = socket_.read_some(asio::buffer(incoming_), error);
      if (error == asio::error::would_block) return read(std::move(user));
      user->received(error, {incoming_.data(), size});
    });
  }

  void write(std::shared_ptr<StreamUser> user, const char* data, std::size_t size) override {
    socket_.async_write_some(
        asio::buffer(data, size),
        [user = std::move(user)](asio::error_code error, std::size_t sent) { user->sent(error, sent); });
  }

  void watch(std::shared_ptr<StreamUser> user) override { watch_socket(socket_, std::move(user)); }
  void end_writing(std::shared_ptr<StreamUser>) override {
    asio::error_code ignored;
    socket_.shutdown(Socket::shutdown_send, ignored);
  }
  void close() override { close_socket(socket_); }

 private:
  Socket socket_;
  std::vector<char>& incoming_;
};

class SecureStream final : public SocketStream {
 public:
  SecureStream(Socket socket, asio::ssl::context& context) : stream_(std::move(socket), context) {}

  void open(std::shared_ptr<StreamUser> user) override {
    stream_.async_handshake(asio::ssl::stream_base::server,
                            [user = std::move(user)](asio::error_code error) { user->opened(error); });
  }

  void read(std::shared_ptr<StreamUser> user) override {
    stream_.async_read_some(asio::buffer(incoming_),
                            [this, user = std::move(user)](asio::error_code error, std::size_t size) {
                              // A client that ends without TLS's own goodbye has ended nonetheless.
                              if (error == asio::ssl::error::stream_truncated) error = asio::error::eof;
                              user->received(error, {incoming_.data(), size});
                            });
  }

  void write(std::shared_ptr<StreamUser> user, const char* data, std::size_t size) override {
    stream_.async_write_some(
        asio::buffer(data, size),
        [user = std::move(user)](asio::error_code error, std::size_t sent) { user->sent(error, sent); });
  }

  void watch(std::shared_ptr<StreamUser> user) override {
    watch_socket(stream_.next_layer(), std::move(user));
  }
  void end_writing(std::shared_ptr<StreamUser> user) override {
    stream_.async_shutdown([user = std::move(user)](asio::error_code) {});
  }
  void close() override { close_socket(stream_.next_layer()); }

 private:
  asio::ssl::stream<Socket> stream_;
  std::array<char, 16 << 10> incoming_;
};

}  // namespace

Result<asio::ssl::context> load_certificate(const std::string& certificate_file,
                                            const std::string& key_file) {
  asio::ssl::context context(asio::ssl::context::tls_server);
  asio::error_code error;
  context.set_options(asio::ssl::context::default_workarounds | asio::ssl::context::no_sslv2 |
                          asio::ssl::context::no_sslv3 | asio::ssl::context::no_tlsv1 |
                          asio::ssl::context::no_tlsv1_1,
                      error);
  // A key under a password is refused, where OpenSSL would ask on the terminal.
  context.set_password_callback(
      [](std::size_t, asio::ssl::context::password_purpose) { return std::string(); }, error);
  context.use_certificate_chain_file(certificate_file, error);
  if (error)
    return invalid_argument("--ssl-certfile " + certificate_file + ": " + error.message() +
                            "; give a certificate with its chain, as PEM");
  context.use_private_key_file(key_file, asio::ssl::context::pem, error);
  if (error)
    return invalid_argument("--ssl-keyfile " + key_file + ": " + error.message() +
                            "; give the certificate's private key, as PEM without a password");
  return context;
}

std::unique_ptr<SocketStream> make_stream(Socket socket, StreamContext& context) {
  if (context.secure) return std::make_unique<SecureStream>(std::move(socket), *context.secure);
  return std::make_unique<PlainStream>(std::move(socket), context.incoming);
}

}  // namespace nibble::http
