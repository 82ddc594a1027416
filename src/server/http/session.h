// One client's connection without its socket: bytes and time in, requests out; answers in, bytes out. What a
// socket does (short reads, half closes, silence) is a call here, so that all of it can be tested in memory.
//
// Requests that a client sends ahead wait until those before them are answered. After a refusal of the
// framing nothing more is read: the answer goes out and the connection closes.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <variant>

#include "server/http/body_reader.h"
#include "server/http/response.h"

namespace nibble::http {

struct SessionLimits {
  HeadLimits head;
  std::uint64_t body_bytes = std::uint64_t{4} << 20;
  // Bytes held for requests that wait; beyond them the socket is not read.
  std::size_t ahead_bytes = 64 << 10;
  // From a request's first byte to its last, however it drips; and silence between requests.
  std::chrono::seconds request_time{30};
  std::chrono::seconds idle_time{120};
};

struct HttpRequest {
  RequestHead head;
  std::string body;
};

// An answer to a head alone, or nothing: the request goes on.
using Screen = std::function<std::optional<Response>(const RequestHead&)>;

class Session {
 public:
  using Time = std::chrono::steady_clock::time_point;

  // `screen`, if any, outlives the session. What it answers is sent when the body has been read, and its
  // client may then go on with the next request; a client that waits for `100 Continue` gets it at once.
  // `client` is the address that requests' heads name.
  Session(const SessionLimits& limits, Time now, const Screen* screen = nullptr, std::string client = {})
      : limits_(limits), screen_(screen), client_(std::move(client)), since_(now) {}

  // Whether more of the socket should be read now.
  bool wants_bytes() const {
    return !closing_ && !at_end_ && received_.size() < limits_.ahead_bytes + limits_.head.bytes;
  }
  void receive(std::string_view bytes, Time now);
  // The client sends no more. What it sent is still answered.
  void receive_end();

  // The next request, once the one before is answered; nothing while it is incomplete. A refusal is answered
  // like a request.
  using Next = std::variant<std::monostate, HttpRequest, Refusal>;
  Next next(Time now);
  bool answering() const { return answering_; }
  // What the client is to send next, while nothing is answered. A client that has sent no whole head yet is
  // waited for as for a head, even if it has sent nothing.
  enum class Awaits : std::uint8_t { head, body, request };
  Awaits awaits() const {
    if (head_) return Awaits::body;
    return begun_ || !asked_ ? Awaits::head : Awaits::request;
  }
  // What is known of a refused request until it is answered: its head, or only the client.
  const RequestHead& refused_head() const { return *head_; }

  // The answer to the request that next() gave, whole or as a stream of pieces.
  void answer(const Response& response, Time now);
  void begin_stream(const Response& head);
  void stream(std::string_view data);  // nothing, if empty
  void end_stream(Time now);
  // A stream that failed half way: ended so that the client sees it is not whole.
  void break_stream();

  // Bytes that are held of what the client sent: the request that arrives, and those ahead of it.
  std::size_t held() const { return received_.size() + (body_ ? body_->body().size() : 0); }
  // Refuses the request that is arriving for a reason of the server's own, as if its framing were bad.
  Next refuse(Refusal refusal);

  // A sign of life to a client that sends no more and has an answer coming: one that has gone for good will
  // answer it with a reset. `comment` is what a reader of the stream passes over.
  void probe(std::string_view comment);

  // What is to be sent; the caller takes it all.
  std::string take_output() { return std::exchange(output_, {}); }
  bool has_output() const { return !output_.empty(); }
  // Bytes that the client has not taken yet, those the caller is sending among them.
  std::size_t unsent() const { return output_.size() + sending_; }
  void set_unsent(std::size_t sending) { sending_ = sending; }
  // Close the socket once all output is sent.
  bool closing() const { return closing_ && !answering_; }

  // When silence ends the session, and then what to do about it: answer 408 if a request had begun.
  std::optional<Time> deadline() const;
  Next expire();

 private:
  bool keeps_alive() const { return keep_alive_ && !(at_end_ && received_.empty()); }
  void finish(Time now);
  std::optional<Refusal> begin_body();

  SessionLimits limits_;
  const Screen* screen_;
  std::string client_;
  std::string received_;
  std::string output_;
  std::size_t sending_ = 0;
  Time since_;                       // of the request's first byte, or of the silence
  std::optional<RequestHead> head_;  // whose body is arriving, or of a request that was refused
  std::optional<BodyReader> body_;
  std::optional<Response> screened_;  // the answer, once the body is over
  bool asked_ = false;                // a whole head has come
  bool begun_ = false;                // a request's first byte is here
  bool answering_ = false;
  bool streaming_ = false;
  bool keep_alive_ = true;  // of the request being answered
  bool chunked_ = true;     // its stream
  bool head_only_ = false;  // it was a HEAD
  bool at_end_ = false;
  bool closing_ = false;
};

}  // namespace nibble::http
